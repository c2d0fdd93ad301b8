package inbox_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/stretchr/testify/require"
)

// The packages that an application on PostgreSQL imports need no module that only tests or other databases need. Such a
// module is in this module's go.mod, but Go prunes it from the application's, because no imported package needs it.
func TestPostgreSQLApplicationsNeedNoTestOrOtherDatabaseModules(t *testing.T) {
	t.Parallel()
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}",
		".", "./handler", "./models", "./envelope", "./kafkaconsumer", "./kafkapublisher", "./ops", "./dashboard", "./idempotent",
		"./idempotent/gormstore", "./idempotent/memstore")
	found, err := list.Output()
	require.NoError(t, err)
	modules := strings.Fields(string(found))
	require.Contains(t, modules, "gorm.io/gorm", "it lists modules")
	for _, unwanted := range []string{
		"github.com/stretchr/testify", "go.uber.org/goleak", "pgregory.net/rapid",
		"gorm.io/driver/sqlite", "gorm.io/driver/postgres", "gorm.io/driver/mysql", "github.com/go-sql-driver/mysql", "github.com/mattn/go-sqlite3", "modernc.org/sqlite",
		"gopkg.in/yaml.v3", "github.com/caarlos0/env/v11", "github.com/twmb/franz-go",
	} {
		require.NotContains(t, modules, unwanted)
	}
}

// levels are the packages of this module from the top down. Each imports only packages of lower levels. Services do not
// import each other: the types that they share are in handler or envelope.
var levels = []string{
	"internal/inboxtest dashboard/dashboardfx",
	"fxtest",
	".",
	"dashboard internal/engine",
	"kafkapublisher",
	"acceptor processor cleanup kafkaconsumer ops internal/synchronous " +
		"idempotent/gormstore idempotent/memstore idempotent/idempotenttest",
	"idempotent internal/store/storetest",
	"internal/stores internal/kafkaclient",
	"internal/kafkawire",
	"envelope outgoing internal/attempt internal/condition internal/lease internal/logging internal/store/mysql " +
		"internal/store/postgres internal/store/sqlite",
	"internal/store/operators internal/health",
	"internal/store/base",
	"internal/properties internal/registry internal/store internal/telemetry",
	"handler internal/fingerprint internal/handlertx internal/redaction",
	"models redact",
	"internal/dialects internal/store/postgres/pgdsn internal/store/sqlite/sqlitedsn",
	"internal/store/mysql/mysqldialect internal/store/postgres/pgdialect internal/store/sqlite/sqlitedialect",
	"internal/dialect",
	"internal/clock internal/columns internal/keyless internal/settings " +
		"internal/pages internal/pages/options internal/pages/schema " +
		"internal/store/postgres/pgxtx internal/problems internal/racetest internal/scheduler internal/secrets internal/session internal/sqlitefile internal/sqltest " +
		"internal/testenv internal/testenv/pgproxy internal/txcontrol",
	"internal/routine",
	"internal/brief",
}

func TestPackagesImportOnlyLowerLevels(t *testing.T) {
	t.Parallel()
	const module = "github.com/gorm-inbox/inbox"
	levelOf := map[string]int{}
	for level, names := range levels {
		for name := range strings.FieldsSeq(names) {
			levelOf[strings.TrimSuffix(module+"/"+name, "/.")] = level
		}
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	listed, err := list.Output()
	require.NoError(t, err)
	packages := 0
	for line := range strings.Lines(string(listed)) {
		paths := strings.Fields(line)
		level, known := levelOf[paths[0]]
		require.True(t, known, "%s has no level", paths[0])
		packages++
		for _, imported := range paths[1:] {
			if imported == module || strings.HasPrefix(imported, module+"/") {
				require.Greater(t, levelOf[imported], level, "%s imports %s", paths[0], imported)
			}
		}
	}
	require.Len(t, levelOf, packages, "each package of the table is there")
}

// TestNoDialectsNameIsCompared proves that what is to be known of a database is in its own folder: elsewhere no code
// compares its name, in a condition, a switch or the key of a map. Tests may.
func TestNoDialectsNameIsCompared(t *testing.T) {
	t.Parallel()
	files := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{"internal/store/postgres", "internal/store/sqlite", "bench", "examples",
			"integration"}, filepath.ToSlash(path)):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files++
		positions := token.NewFileSet()
		file, err := parser.ParseFile(positions, path, nil, 0)
		require.NoError(t, err)
		check := func(compared ast.Expr) {
			literal, ok := compared.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return
			}
			name, err := strconv.Unquote(literal.Value)
			require.NoError(t, err)
			require.NotContains(t, dialects.Names(), strings.ToLower(name), positions.Position(literal.Pos()))
		}
		ast.Inspect(file, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.BinaryExpr:
				check(node.X)
				check(node.Y)
			case *ast.CaseClause:
				for _, each := range node.List {
					check(each)
				}
			case *ast.KeyValueExpr:
				check(node.Key)
			case *ast.IndexExpr:
				check(node.Index)
			}
			return true
		})
		return nil
	}))
	require.Greater(t, files, 300)
}
