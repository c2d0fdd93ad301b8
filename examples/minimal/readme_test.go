package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	readmeBegins = "\t// README begins\n"
	readmeEnds   = "\t// README ends\n"
)

func TestReadmeQuotesThisProgram(t *testing.T) {
	source, err := os.ReadFile("main.go")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(source), readmeBegins)
	require.True(t, found, "main.go has no %q", readmeBegins)
	quoted, _, found := strings.Cut(rest, readmeEnds)
	require.True(t, found, "main.go has no %q", readmeEnds)
	quoted = strings.TrimPrefix(strings.ReplaceAll(quoted, "\n\t", "\n"), "\t")

	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "```go\n"+quoted+"```\n",
		"README.md must have this program as a Go code block, letter by letter")
}
