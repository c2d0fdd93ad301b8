package testenv

import (
	"fmt"
	"os"
	"testing"
)

// RequireVariable names the environment variable that, set to 1, makes a test
// fail that would be left out for want of a server. `make test` sets it.
const RequireVariable = "INBOX_TEST_REQUIRE"

// LeaveOut ends a test whose server is missing: skipped, loudly, so that plain
// `go test` works anywhere; failed where every test must run. The variable is
// the one that would have named the server.
func LeaveOut(t testing.TB, server, variable string) {
	t.Helper()
	leaveOut(t, fmt.Sprintf("%s is required (%s=1), but %s is not set", server, RequireVariable, variable),
		fmt.Sprintf("LEFT OUT: %s (%s is not set); run `make test`", server, variable))
}

// LeaveOutIf ends a test whose own server could not be started, as LeaveOut
// does where one is not named; nil does nothing.
func LeaveOutIf(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		leaveOut(t, fmt.Sprintf("a server of its own is required (%s=1): %v", RequireVariable, err),
			fmt.Sprintf("LEFT OUT: a server of its own cannot be started: %v", err))
	}
}

func leaveOut(t testing.TB, required, skipped string) {
	t.Helper()
	if os.Getenv(RequireVariable) == "1" {
		t.Fatalf("%s", required)
	}
	t.Skipf("%s", skipped)
}
