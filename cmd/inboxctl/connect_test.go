package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSQLitePathMayContainAnyCharacter checks escaping: SQLite parses the path of a DSN as a
// URL, so special characters must not lead to another file.
func TestSQLitePathMayContainAnyCharacter(t *testing.T) {
	t.Parallel()
	for named, directory := range map[string]string{
		"a#b":       "a#b",
		"a%23b":     "a#b",
		"a%3Fb":     "a?b",
		"100%25 ü+": "100% ü+",
		"%2541":     "%41",
		"a&b=c;d":   "a&b=c;d",
	} {
		for _, prefix := range []string{"file:", "file://", ""} {
			if prefix == "" {
				if named = directory; strings.Contains(named, "?") {
					continue // it begins the parameters, as GORM takes it
				}
			}
			root := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(root, directory), 0o700))
			env := map[string]string{dsnVariable: prefix + root + "/" + named + "/x.db", actorVariable: "alice"}
			out := runWith(t, t.Context(), env, "", "migrate", "up", "--inbox", "test")
			require.Equal(t, 0, out.code, "%s: %s", named, out.errOut)
			require.FileExists(t, filepath.Join(root, directory, "x.db"))
			require.Equal(t, 0, runWith(t, t.Context(), env, "", "status").code)
			entries, err := os.ReadDir(root)
			require.NoError(t, err)
			require.Len(t, entries, 1, "nothing beside it")
		}
	}
}

// TestWrongPrefixIsAnsweredWithTheInboxesThatAreThere: creating tables for it would make a second, empty inbox.
func TestWrongPrefixIsAnsweredWithTheInboxesThatAreThere(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for _, args := range [][]string{{"status"}, {"migrate", "status"}, {"cleanup", "--retention", "1h", "--yes"}} {
			out := r.run(append(args, "--prefix", "in_")...)
			require.Equal(t, exitFailed, out.code)
			require.Regexp(t, `"in_"\): looked in .* It has other inboxes: .*table prefix "inbox_"\)\. Is one of these meant\? `+
				`Only for a new inbox: .*\. Choose the inbox with --schema and --prefix, the database with --dsn`, out.errOut)
		}
	})
}
