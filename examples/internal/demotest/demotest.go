// Package demotest is what the tests of the examples share.
package demotest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
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

// Logs returns the end of what the processes of a failed run logged below dir.
func Logs(dir string) string {
	files, _ := filepath.Glob(filepath.Join(dir, "*", "*.log"))
	var all strings.Builder
	for _, file := range files {
		log, _ := os.ReadFile(file)
		fmt.Fprintf(&all, "%s:\n%s\n", file, log[max(0, len(log)-8000):])
	}
	return all.String()
}

// OnEach runs a test with SQLite, for which server is empty, and with a PostgreSQL and a MariaDB database of its own,
// whose DSN it is.
func OnEach(t *testing.T, test func(t *testing.T, server string)) {
	t.Run("SQLite", func(t *testing.T) { test(t, "") })
	t.Run("PostgreSQL", func(t *testing.T) { test(t, testenv.PostgresDSN(t)) })
	t.Run("MariaDB", func(t *testing.T) { test(t, testenv.MySQLDSN(t, testenv.MariaDBVariable)) })
}

// On returns the flag that names the server of OnEach.
func On(server string) []string {
	if demo.OnMySQL(server) {
		return []string{"-mysql", server}
	}
	return []string{"-postgres", server}
}

// Environment returns an environment that is closed with the test.
func Environment(t *testing.T, name, server string) *demo.Environment {
	t.Helper()
	Temporary(t)
	env, err := demo.NewEnvironment(demo.Options{Name: name, Server: server, Seed: 4, Out: t.Output()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, env.Close(t.Context(), true)) })
	return env
}

// Figures returns those of a ledger, which must be the last of the output, in this order and
// nothing else.
func Figures(t *testing.T, out string, names ...string) map[string]float64 {
	t.Helper()
	lines := `(?:^|\n)`
	for _, name := range names {
		lines += regexp.QuoteMeta(name) + `: (\d+(?:\.\d+)?)\n`
	}
	found := regexp.MustCompile(lines + "$").FindStringSubmatch(out)
	require.NotNil(t, found, "%s", out)
	figures := map[string]float64{}
	for i, name := range names {
		value, err := strconv.ParseFloat(found[i+1], 64)
		require.NoError(t, err)
		figures[name] = value
	}
	return figures
}

// Counts returns figures of a ledger by name.
func Counts(l *demo.Ledger, names ...string) []int {
	counts := make([]int, len(names))
	for i, name := range names {
		counts[i] = l.Count(name)
	}
	return counts
}
