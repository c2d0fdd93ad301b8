package testenv

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// RequireVariable names the environment variable that, set to 1, makes a test
// fail that would be left out for want of a server. CI=true does the same.
const RequireVariable = "INBOX_TEST_REQUIRE"

// MissingSuffix is what, after the name of a server's variable, names the variable that
// says why there is no such server. cmd/withservers sets it.
const MissingSuffix = "_MISSING"

// Required reports whether a test that lacks a server fails instead of being
// left out.
func Required() bool {
	return os.Getenv(RequireVariable) == "1" || os.Getenv("CI") == "true"
}

// LeaveOut ends a test whose server is missing: skipped, with a line that
// `make test` repeats at its end, so that the tests pass on any machine; failed
// where every test must run. The variable is the one that would have named the
// server.
func LeaveOut(t testing.TB, server, variable string) {
	t.Helper()
	why := os.Getenv(variable + MissingSuffix)
	if why == "" {
		why = variable + " is not set"
	}
	LeaveOutFor(t, server+" ("+why+")")
}

// LeaveOutIf ends a test whose own server could not be started, as LeaveOut
// does where one is not named; nil does nothing.
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

// LeaveOutFor is LeaveOut for want of anything else, which says what and why.
func LeaveOutFor(t testing.TB, what string) {
	t.Helper()
	what = strings.Join(strings.Fields(what), " ") // one line: testreport reads it
	if Required() {
		t.Fatalf("required (%s=1 or CI=true), but not there: %s", RequireVariable, what)
	}
	t.Skipf("LEFT OUT: %s", what)
}
