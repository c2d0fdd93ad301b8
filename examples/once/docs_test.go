package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// quoting are the pages whose Go code is this program's, letter by letter.
var quoting = []string{"../../docs/idempotent.md"}

var codeBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

func TestPagesQuoteThisProgram(t *testing.T) {
	var sources strings.Builder
	for _, file := range []string{"main.go", "howto.go"} {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		sources.Write(source)
	}
	for _, page := range quoting {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		blocks := codeBlock.FindAllStringSubmatch(string(text), -1)
		require.NotEmpty(t, blocks, page)
		for _, block := range blocks {
			require.Contains(t, sources.String(), "\n"+block[1], page)
		}
		require.Contains(t, string(text), "```go\n"+shown(t)+"```\n", "%s must have the part between the marks", page)
	}
}

// shown is the part of the program for README and the page.
func shown(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile("main.go")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(source), "// README begins\n\n")
	require.True(t, found)
	part, _, found := strings.Cut(rest, "\n// README ends\n")
	require.True(t, found)
	require.LessOrEqual(t, strings.Count(part, "\n"), 26)
	return part
}
