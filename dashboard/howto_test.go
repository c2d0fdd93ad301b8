package dashboard_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/redact"
)

// User is the application's own user type.
type User struct {
	Email  string
	Groups map[string]bool
}

func userOf(r *http.Request) (User, bool) {
	name := r.Header.Get("X-Test-User")
	return User{Email: name, Groups: map[string]bool{"inbox-operators": true}}, name != ""
}

func makeDashboard(ib *inbox.Inbox, log *zap.Logger) (*dashboard.Dashboard, error) {
	o, err := ib.Ops()
	if err != nil {
		return nil, err
	}
	return dashboard.New(o, func(o *dashboard.Options) {
		o.Authorizer = authorize
		o.ShowPayloads = true
		o.Logger = log
	})
}

// authorize returns the principal of the session that the application's own middleware has found.
func authorize(r *http.Request) (dashboard.Principal, error) {
	user, ok := userOf(r)
	if !ok {
		return dashboard.Principal{}, errors.New("no session")
	}
	p := dashboard.Principal{Actor: user.Email} // no role: nothing is shown
	switch {
	case user.Groups["inbox-admins"]:
		p.Role = dashboard.Admin
	case user.Groups["inbox-operators"]:
		p.Role = dashboard.Operator
	case user.Groups["developers"]:
		p.Role = dashboard.Viewer
	}
	return p, nil
}

var customerNumber = regexp.MustCompile(`\bCU-\d+\b`)

// hideSecrets is the option Redact.
func hideSecrets(v redact.Value) []byte {
	v.Bytes = customerNumber.ReplaceAll(v.Bytes, []byte("[customer]"))
	return redact.Common(v)
}

func mountOnServeMux(mux *http.ServeMux, d *dashboard.Dashboard) {
	mux.Handle("/admin/inbox/", http.StripPrefix("/admin/inbox", d))
}

// mounter is implemented by chi.Router and other routers.
type mounter interface {
	Mount(pattern string, h http.Handler)
}

func mountOnChi(router mounter, d *dashboard.Dashboard) {
	router.Mount("/admin/inbox", http.StripPrefix("/admin/inbox", d))
}

// mountSeveral serves two inboxes at /admin/inbox/orders/ and /admin/inbox/billing/, with a switch.
func mountSeveral(mux *http.ServeMux, orders, billing *dashboard.Dashboard) error {
	both, err := dashboard.Several(map[string]*dashboard.Dashboard{"orders": orders, "billing": billing})
	if err != nil {
		return err
	}
	mux.Handle("/admin/inbox/", http.StripPrefix("/admin/inbox", both))
	return nil
}

func nothing(context.Context, inboxtest.Bytes) error { return nil }

// likeChi passes requests below a pattern to a handler with the path unchanged.
type likeChi struct{ *http.ServeMux }

func (m likeChi) Mount(pattern string, h http.Handler) {
	m.Handle(pattern, h)
	m.Handle(pattern+"/", h)
}

func TestPageShowsWorkingCode(t *testing.T) {
	source, err := os.ReadFile("howto_test.go")
	require.NoError(t, err)
	page, err := os.ReadFile("../docs/dashboard.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		require.Contains(t, string(source), "\n"+block[1])
	}
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("mail", nothing)),
			inbox.Configure(func(o *inbox.Options) {
				o.Redact = hideSecrets
			}))
		dash, err := makeDashboard(ib, zap.NewNop())
		require.NoError(t, err)
		mux, chi := http.NewServeMux(), likeChi{http.NewServeMux()}
		mountOnServeMux(mux, dash)
		mountOnChi(chi, dash)
		two := http.NewServeMux()
		require.NoError(t, mountSeveral(two, dash, dash))
		for _, router := range []http.Handler{mux, chi} {
			for user, want := range map[string]int{"": http.StatusUnauthorized, "ada@example.org": http.StatusOK} {
				for _, path := range []string{"/admin/inbox", "/admin/inbox/", "/admin/inbox/failures"} {
					server := httptest.NewServer(router)
					request, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+path, nil)
					require.NoError(t, err)
					request.Header.Set("X-Test-User", user)
					response, err := server.Client().Do(request)
					require.NoError(t, err)
					require.NoError(t, response.Body.Close())
					require.Equal(t, want, response.StatusCode, path)
					server.Close()
				}
			}
		}
	})
}

// TestPagesShowAllPicturesWithTheirText checks that no picture is missing or left over, and that each is described for
// those who do not see it. TestPicturesShowTheCurrentPages of the module integration checks what they show.
func TestPagesShowAllPicturesWithTheirText(t *testing.T) {
	files, err := filepath.Glob("../docs/images/*.png")
	require.NoError(t, err)
	var shown []string
	for _, name := range []string{"../docs/dashboard.md", "../README.md"} {
		page, err := os.ReadFile(name)
		require.NoError(t, err)
		pictures := regexp.MustCompile(`!\[([^\]]*)\]\(([^)]+\.png)\)`).FindAllStringSubmatch(string(page), -1)
		require.NotEmpty(t, pictures, name)
		for _, picture := range pictures {
			shown = append(shown, filepath.Join(filepath.Dir(name), picture[2]))
			require.Greater(t, len(picture[1]), 60, "the text of %s", picture[2])
		}
	}
	slices.Sort(shown)
	require.Equal(t, files, slices.Compact(shown))
}
