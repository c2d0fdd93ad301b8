package scratch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// SQLite reads the path of a DSN as a URL's: what is special there must not lead to
// another file.
func TestSQLiteFileMayBeAnywhere(t *testing.T) {
	for _, directory := range []string{"a#b", "a?b", "100% ü+", "%41", "a&b=c;d"} {
		root := t.TempDir()
		file := filepath.Join(root, directory, "x.db")
		require.NoError(t, os.Mkdir(filepath.Dir(file), 0o700))
		db, err := Open(SQLiteDSN(file), 1)
		require.NoError(t, err)
		require.NoError(t, db.Exec("CREATE TABLE t (n int)").Error, directory)
		require.NoError(t, Close(db))
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "for this user alone")
	}
}
