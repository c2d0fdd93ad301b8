package inbox_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What an application on PostgreSQL imports brings it no module that only tests or
// other databases need. Such a module is in this module's go.mod, but in none of
// theirs: Go prunes what no imported package needs.
func TestApplicationsOnPostgreSQLGetNoModuleOfTestsOrOfOtherDatabases(t *testing.T) {
	t.Parallel()
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}",
		".", "./handler", "./models", "./envelope", "./kafkaconsumer", "./ops", "./dashboard", "./idempotent", "./idempotent/gormstore", "./idempotent/memstore")
	found, err := list.Output()
	require.NoError(t, err)
	modules := strings.Fields(string(found))
	require.Contains(t, modules, "gorm.io/gorm", "it lists modules")
	for _, unwanted := range []string{
		"github.com/stretchr/testify", "go.uber.org/goleak", "pgregory.net/rapid",
		"gorm.io/driver/sqlite", "gorm.io/driver/postgres", "github.com/mattn/go-sqlite3", "modernc.org/sqlite",
		"gopkg.in/yaml.v3", "github.com/caarlos0/env/v11", "github.com/twmb/franz-go",
	} {
		require.NotContains(t, modules, unwanted)
	}
}
