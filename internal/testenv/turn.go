package testenv

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TurnVariable is the environment variable with a number, by which long tests rotate: each run has one of their parts.
// Without it, or with "all", a run has all parts. `make test` sets it to the number of commits.
const TurnVariable = "INBOX_TEST_TURN"

// All is Turn's answer for all parts.
const All = -1

// Turn returns which of n parts of a test this run has, or All.
func Turn(t testing.TB, n int) int {
	t.Helper()
	turn := os.Getenv(TurnVariable)
	if turn == "" || turn == "all" {
		return All
	}
	number, err := strconv.Atoi(turn)
	require.NoError(t, err, TurnVariable)
	return number % n
}
