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

// TestTestsThatProveGuaranteesExist checks that each test named in guarantees.md exists.
func TestTestsThatProveGuaranteesExist(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/guarantees.md"))
	require.NoError(t, err)
	named := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(page), -1)
	require.NotEmpty(t, named)
	var tests strings.Builder
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
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
