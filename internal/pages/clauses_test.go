package pages

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	clause  = regexp.MustCompile(`(?m)^#{2,3} (\d+(?:\.\d+)?)\b`)
	cited   = regexp.MustCompile(`\b[Cc]ontract \[?(\d+(?:\.\d+)?)\]?(?:\([^)]*\))?((?:(?:, | and |–|-)\[?\d+(?:\.\d+)?\]?(?:\([^)]*\))?)*)`)
	further = regexp.MustCompile(`(?:^|, | and |–|-)\[?(\d+(?:\.\d+)?)`)
)

// Who cites the contract cites a clause that is there.
func TestCitedClausesAreInTheContract(t *testing.T) {
	contract, err := os.ReadFile(filepath.Join(root, "docs/contract.md"))
	require.NoError(t, err)
	there := map[string]bool{}
	for _, found := range clause.FindAllStringSubmatch(string(contract), -1) {
		there[found[1]] = true
	}
	seen := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(path); ext != ".go" && ext != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, found := range cited.FindAllStringSubmatch(string(text), -1) {
			for _, number := range append([][]string{{"", found[1]}}, further.FindAllStringSubmatch(found[2], -1)...) {
				seen++
				require.True(t, there[number[1]], "%s cites contract %s", path, number[1])
			}
		}
		return err
	}))
	require.Greater(t, seen, 500, "clauses were checked")
}
