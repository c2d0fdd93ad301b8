package fxtest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

func TestEachTestGetsASeparateDatabase(t *testing.T) {
	for _, name := range []string{"same", "same", "100%", "a?b", "a b#c"} { // the second "same" is called same#01
		t.Run(name, func(t *testing.T) {
			db := fxtest.OpenDB(t)
			require.NoError(t, db.Exec("CREATE TABLE things (id INTEGER)").Error, "the file is new")
			var file string
			require.NoError(t, db.Raw("SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&file).Error)
			require.Equal(t, filepath.Dir(filepath.Dir(file)), filepath.Dir(t.TempDir()), "a directory of this test")
			require.Equal(t, "inbox.db", filepath.Base(file))
			require.NoError(t, func() error { _, err := os.Stat(file); return err }())
		})
	}
}

// TestDatabaseIsReadableOnlyByItsUser checks the file's permissions: SQLite by itself creates files that
// everybody may read.
func TestDatabaseIsReadableOnlyByItsUser(t *testing.T) { inboxtest.RequirePrivate(t, fxtest.OpenDB(t)) }
