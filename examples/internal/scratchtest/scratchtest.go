// Package scratchtest is what the tests of the examples have in common.
package scratchtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

// Temporary gives the test a directory for temporary files of its own.
func Temporary(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return dir
}

// RequireEmpty fails if anything was left in the directory.
func RequireEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// Logs is the end of what the processes of a failed run logged below dir.
func Logs(dir string) string {
	files, _ := filepath.Glob(filepath.Join(dir, "*", "*.log"))
	var all strings.Builder
	for _, file := range files {
		log, _ := os.ReadFile(file)
		fmt.Fprintf(&all, "%s:\n%s\n", file, log[max(0, len(log)-8000):])
	}
	return all.String()
}

// OnBoth runs a test with SQLite, for which server is empty, and with a database
// of its own on PostgreSQL, whose DSN it is.
func OnBoth(t *testing.T, test func(t *testing.T, server string)) {
	t.Run("SQLite", func(t *testing.T) { test(t, "") })
	t.Run("PostgreSQL", func(t *testing.T) { test(t, testenv.PostgresDSN(t)) })
}
