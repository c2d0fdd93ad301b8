package secrets_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/secrets"
)

func TestPasswordsAreMasked(t *testing.T) {
	for text, want := range map[string]string{
		"nothing to hide":                    "nothing to hide",
		"postgres://u@h/d":                   "postgres://u@h/d",
		"postgres://u:p@h/d":                 "postgres://u:xxxxx@h/d",
		"postgres://u:p@ss@h/d and more":     "postgres://u:xxxxx@h/d and more",
		"http://h:80/a":                      "http://h:80/a",
		"u:p@tcp(h:3306)/d?x=y":              "u:xxxxx@tcp(h:3306)/d?x=y",
		"open u:p@s/s@unix(/run/s)/d: no":    "open u:xxxxx@unix(/run/s)/d: no",
		"u:p@/d":                             "u:xxxxx@/d",
		"u:p/q@tcp/d":                        "u:xxxxx@tcp/d",
		"u:p@cloud(project:zone)/d":          "u:xxxxx@cloud(project:zone)/d",
		"at 10:30 by a@b.c/d":                "at 10:30 by a@b.c/d",
		"password=p host=h":                  "password=xxxxx host=h",
		"PASSWORD = 'p q' host":              "PASSWORD = xxxxx host",
		"?sslpassword=p&x=y":                 "?sslpassword=xxxxx&x=y",
		"`user=u database=d`: no such thing": "`user=u database=d`: no such thing",
	} {
		require.Equal(t, want, secrets.Mask(text))
	}
}
