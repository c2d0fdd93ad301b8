package testenv_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMissingServerSkipsUnlessRequired(t *testing.T) {
	const unset, missing = "PostgreSQL (INBOX_TEST_POSTGRES is not set)", "PostgreSQL (no postgres on the PATH)"
	for name, c := range map[string]struct{ require, ci, why, want string }{
		"anywhere":              {want: "skipped: LEFT OUT: " + unset},
		"where the why is said": {why: "no postgres on the PATH", want: "skipped: LEFT OUT: " + missing},
		"where it is required": {require: "1", want: "failed: required (INBOX_TEST_REQUIRE=1 or CI=true), but not there: " +
			unset},
		"in CI": {ci: "true", why: "no postgres on the PATH",
			want: "failed: required (INBOX_TEST_REQUIRE=1 or CI=true), but not there: " + missing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(testenv.RequireVariable, c.require)
			t.Setenv("CI", c.ci)
			t.Setenv(testenv.PostgresVariable, "")
			t.Setenv(testenv.PostgresVariable+testenv.MissingSuffix, c.why)
			require.Equal(t, c.want, verdictOf(t, func(t testing.TB) { testenv.PostgresDSN(t) }))
		})
	}
}

func TestFailedServerStartNamesTheServer(t *testing.T) {
	t.Setenv(testenv.RequireVariable, "")
	t.Setenv("CI", "")
	for err, want := range map[error]string{
		nil:                                      "",
		fmt.Errorf("Kafka: %w", noJava{}):        "skipped: LEFT OUT: Kafka on a real broker (no Java)",
		errors.New("its log:\n\tno such option"): "skipped: LEFT OUT: a server of its own (its log: no such option)",
	} {
		require.Equal(t, want, verdictOf(t, func(t testing.TB) { testenv.LeaveOutIf(t, err) }))
	}
}

type noJava struct{}

func (noJava) Error() string   { return "no Java; install with apt-get install default-jdk-headless" }
func (noJava) LeftOut() string { return "Kafka on a real broker (no Java)" }

// verdictOf returns how the function ended its test, or "" if it did not.
func verdictOf(t *testing.T, f func(testing.TB)) string {
	verdict := &verdict{TB: t}
	done := make(chan struct{})
	go func() { // tests run on goroutines that can end themselves
		defer close(done)
		f(verdict)
	}()
	<-done
	return verdict.said
}

// verdict is a test that records how it was ended.
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
