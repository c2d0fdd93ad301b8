package models_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/models"
)

// FuzzNamesStayWithinTheirQuotes checks names that come from configuration: what Validate accepts
// cannot leave its quotes, however it is put into SQL (contract 3.4).
func FuzzNamesStayWithinTheirQuotes(f *testing.F) {
	f.Add("shop", "in_")
	f.Add("", "")
	f.Add("a\".b", "x;--")
	f.Add("${prefix}", "${schema}")
	f.Add("a\n", "_")
	quoted := regexp.MustCompile(`^("[A-Za-z_][A-Za-z0-9_]*"\.)?"[A-Za-z_][A-Za-z0-9_]*"$`)
	f.Fuzz(func(t *testing.T, schema, prefix string) {
		naming := models.Naming{Schema: schema, Prefix: prefix}
		for _, dialect := range []string{"postgres", "sqlite"} {
			migrations, err := models.SQL(dialect, naming)
			require.Equal(t, naming.Validate() == nil && (dialect == "postgres" || schema == ""), err == nil)
			for _, migration := range migrations {
				require.NotContains(t, migration.SQL, "${")
				require.Zero(t, strings.Count(migration.SQL, `"`)%2)
				require.NotEmpty(t, migration.Statements())
			}
		}
		if naming.Validate() != nil {
			return
		}
		for _, name := range []string{
			naming.Messages(), naming.HandlerStatuses(), naming.RejectedMessages(), naming.Locks(), naming.Workers(),
			naming.Handlers(), naming.Markers(), naming.Audit(), naming.Meta(),
		} {
			require.Regexp(t, quoted, columns.Quote(name))
			require.LessOrEqual(t, len(name), columns.MaxSchema+1+63, "PostgreSQL would cut it")
		}
	})
}

// FuzzStatementsLoseNothing checks that splitting a migration leaves out comments and empty lines
// and nothing else.
func FuzzStatementsLoseNothing(f *testing.F) {
	f.Add("CREATE TABLE a (\n  b int\n);\n\n-- comment;\nCREATE INDEX c ON a (b);\n")
	f.Add("SELECT 1;\nSELECT 2")
	f.Add("SELECT 1; \nSELECT 2;\t\r\n  -- c\n")
	f.Add(";")
	f.Fuzz(func(t *testing.T, text string) {
		statements := models.Migration{SQL: text}.Statements()
		kept := []string{}
		for _, line := range strings.Split(text, "\n") {
			if trimmed := strings.TrimSpace(line); trimmed != "" && !strings.HasPrefix(trimmed, "--") {
				kept = append(kept, line)
			}
		}
		require.Equal(t, strings.Join(kept, "\n"), strings.Join(statements, "\n"))
		for i, statement := range statements {
			require.NotEmpty(t, strings.TrimSpace(statement))
			lines := strings.Split(statement, "\n")
			for j, line := range lines {
				ends := strings.HasSuffix(strings.TrimSpace(line), ";")
				require.Equal(t, j == len(lines)-1, ends || j == len(lines)-1 && i == len(statements)-1,
					"a statement ends where a line ends with a semicolon")
			}
		}
	})
}
