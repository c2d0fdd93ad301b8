package testenv

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// RotationVariable is the environment variable with a number, by which long tests rotate: each run executes one of
// their parts. Without it, or with "all", a run executes all. `make test` sets it to the number of commits.
const RotationVariable = "INBOX_TEST_ROTATION"

// All is the result of Rotation for all parts.
const All = -1

// Rotation returns which of n parts of a test this run executes, or All.
func Rotation(t testing.TB, n int) int {
	t.Helper()
	value := os.Getenv(RotationVariable)
	if value == "" || value == "all" {
		return All
	}
	number, err := strconv.Atoi(value)
	require.NoError(t, err, RotationVariable)
	return number % n
}
