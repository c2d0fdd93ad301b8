package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	readmeBegins = "\t//page:begin readme\n"
	readmeEnds   = "\t//page:end\n"
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

func TestTestsThatReadmeNamesExist(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	named := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, named)
	var tests strings.Builder
	require.NoError(t, filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		tests.Write(source)
		return err
	}))
	for _, name := range named {
		require.Contains(t, tests.String(), "\nfunc "+name[1]+"(")
	}
}
