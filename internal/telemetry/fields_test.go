package telemetry_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Readers of logs rely on their fields: each field has one name, which only fields.go defines.
func TestLogFieldsAreNamedInOnePlace(t *testing.T) {
	literal := regexp.MustCompile(`zap\.(Any|Binary|Bool|Duration|Float64|Int|Int32|Int64|NamedError|Stack|String|Stringer|Stringp|Strings|Time|Uint64)\("`)
	uses := 0
	require.NoError(t, filepath.WalkDir(filepath.Join("..", ".."), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && name != ".." {
			switch name {
			case "integration", "examples", "bench", "tools", "fxtest", "testdata", "inboxtest", "testenv":
				return filepath.SkipDir
			}
			if strings.HasPrefix(name, ".") {
				return filepath.SkipDir
			}
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		require.Empty(t, literal.FindString(string(text)), path)
		uses += strings.Count(string(text), "telemetry.Field")
		return nil
	}))
	require.Greater(t, uses, 100, "fields were checked")
	text, err := os.ReadFile("fields.go")
	require.NoError(t, err)
	names := map[string]bool{}
	for _, found := range regexp.MustCompile(`= "([^"]*)"`).FindAllStringSubmatch(string(text), -1) {
		require.Regexp(t, `^[a-z]+(_[a-z]+)*$`, found[1])
		require.False(t, names[found[1]], "%q twice", found[1])
		names[found[1]] = true
	}
}
