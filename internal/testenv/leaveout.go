package testenv

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// RequireVariable names the environment variable that makes tests fail instead of being left out
// when their server is missing. It must be 1. CI=true has the same effect.
const RequireVariable = "INBOX_TEST_REQUIRE"

// MissingSuffix is appended to the name of a server's variable. The resulting variable says why
// there is no such server. cmd/withservers sets it.
const MissingSuffix = "_MISSING"

// Required reports whether a test whose server is missing fails instead of being left out.
func Required() bool {
	return os.Getenv(RequireVariable) == "1" || os.Getenv("CI") == "true"
}

// LeaveOut ends a test whose server is missing. The test is skipped, so that the tests pass on any
// machine, with a line that `make test` repeats at its end. Where every test must run, it fails
// instead. The variable is the one that would have named the server.
func LeaveOut(t testing.TB, server, variable string) {
	t.Helper()
	why := os.Getenv(variable + MissingSuffix)
	if why == "" {
		why = variable + " is not set"
	}
	LeaveOutFor(t, server+" ("+why+")")
}

// LeaveOutIf ends a test whose own server could not be started, like LeaveOut. It does nothing if
// err is nil.
func LeaveOutIf(t testing.TB, err error) {
	t.Helper()
	var missing interface{ LeftOut() string }
	switch {
	case err == nil:
	case errors.As(err, &missing):
		LeaveOutFor(t, missing.LeftOut())
	default:
		LeaveOutFor(t, fmt.Sprintf("a server of its own (%v)", err))
	}
}

// Long leaves out a test that takes seconds where no server is configured: `go test ./...` alone is for the loop
// of a change. `make test` runs it.
func Long(t testing.TB) {
	t.Helper()
	if !HasPostgres() && !HasMySQL() && !sqliteAlone() {
		t.Skip("LEFT OUT: long tests (no server is configured)")
	}
}

// LeaveOutFor is like LeaveOut for other missing requirements. The text says what is missing and
// why.
func LeaveOutFor(t testing.TB, what string) {
	t.Helper()
	what = strings.Join(strings.Fields(what), " ") // one line, because testreport reads it
	if Required() {
		t.Fatalf("required (%s=1 or CI=true), but not there: %s", RequireVariable, what)
	}
	t.Skipf("LEFT OUT: %s", what)
}
