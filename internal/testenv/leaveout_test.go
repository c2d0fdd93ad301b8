package testenv_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMissingServerSkipsOrFailsWhereRequired(t *testing.T) {
	for required, want := range map[string]string{
		"":  "skipped: LEFT OUT: PostgreSQL (INBOX_TEST_POSTGRES is not set); run `make test`",
		"1": "failed: PostgreSQL is required (INBOX_TEST_REQUIRE=1), but INBOX_TEST_POSTGRES is not set",
	} {
		t.Setenv(testenv.RequireVariable, required)
		t.Setenv(testenv.PostgresVariable, "")
		verdict := &verdict{TB: t}
		done := make(chan struct{})
		go func() { // as each test runs on a goroutine that can end by itself
			defer close(done)
			testenv.PostgresDSN(verdict)
		}()
		<-done
		require.Equal(t, want, verdict.said)
	}
}

// verdict is a test that notes how it was ended.
type verdict struct {
	testing.TB
	said string
}

func (v *verdict) Skipf(format string, args ...any)  { v.end("skipped", format, args...) }
func (v *verdict) Fatalf(format string, args ...any) { v.end("failed", format, args...) }

func (v *verdict) end(how, format string, args ...any) {
	v.said = how + ": " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}
