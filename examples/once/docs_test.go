package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Contract 8.1: three lines around a handler. What docs/idempotent.md shows of
// it first has to stay that short.
func TestQuotedExampleStaysShort(t *testing.T) {
	source, err := os.ReadFile("main.go")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(source), "//page:begin consume\n\n")
	require.True(t, found)
	part, _, found := strings.Cut(rest, "\n//page:end\n")
	require.True(t, found)
	require.LessOrEqual(t, strings.Count(part, "\n"), 26)
}
