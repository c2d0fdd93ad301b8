package pages

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever is called by an alert finds it on the page for 3 a.m.
func TestEveryAlertIsOnTheOnCallPage(t *testing.T) {
	names := func(file, pattern string) []string {
		text, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		var found []string
		for _, each := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			found = append(found, each[1])
		}
		slices.Sort(found)
		require.NotEmpty(t, found)
		return found
	}
	require.Equal(t, names("docs/prometheus/alerts.yaml", `(?m)^ +- alert: (\w+)$`),
		names("docs/poisoned.md", "`(Inbox[A-Z]\\w+)`"))
}
