package schema

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/models"
)

// table is what is said of one: columns as "name type" or "name type null", in their order.
type table struct {
	columns, indexes []string
}

var (
	create  = regexp.MustCompile(`(?s)^CREATE TABLE IF NOT EXISTS "(\w+)" \((.*)\)`)
	index   = regexp.MustCompile(`^CREATE (UNIQUE )?INDEX IF NOT EXISTS "(\w+)" ON "(\w+)" \((.*?)\)(?: WHERE .*)?;`)
	column  = regexp.MustCompile(`(?m)^\s+"(\w+)" (\w+(?:\(\d+\))?)(.*)$`)
	listed  = regexp.MustCompile("`(\\w+)`\\s+((?:varchar\\(\\d+\\)|bigint|boolean|bytea|integer|text|timestamptz|uuid)(?: null)?)[:,\n]")
	indexed = regexp.MustCompile("`(\\w+)`( unique)? \\(([^)]*)\\)")
)

func TestSchemaPageListsAllColumnsAndIndexes(t *testing.T) {
	migrations, err := models.SQL("postgres", models.Naming{})
	require.NoError(t, err)
	inSQL := map[string]table{}
	for _, m := range migrations {
		for _, statement := range m.Statements() {
			if found := create.FindStringSubmatch(statement); found != nil {
				var made table
				for _, c := range column.FindAllStringSubmatch(found[2], -1) {
					null := " null"
					if strings.Contains(c[3], "NOT NULL") {
						null = ""
					}
					made.columns = append(made.columns, c[1]+" "+c[2]+null)
				}
				inSQL[found[1]] = made
			} else if found := index.FindStringSubmatch(statement); found != nil {
				made := inSQL[found[3]]
				columns := strings.NewReplacer(`"`, "", `COALESCE("next_attempt_at", "created_at")`, "due time").Replace(found[4])
				made.indexes = append(made.indexes, found[2]+" "+strings.ToLower(found[1])+"("+columns+")")
				inSQL[found[3]] = made
			} else {
				require.True(t, strings.HasPrefix(statement, "INSERT"), "a statement that this test cannot read: %s", statement)
			}
		}
	}

	text, err := os.ReadFile("../../../docs/schema.md")
	require.NoError(t, err)
	onPage := map[string]table{}
	for _, part := range strings.Split(string(text), "\n### ")[1:] {
		name, rest, _ := strings.Cut(part, "\n")
		var said table
		columns, indexes, _ := strings.Cut(rest, "\nIndexes:\n")
		for _, c := range listed.FindAllStringSubmatch(columns, -1) {
			said.columns = append(said.columns, c[1]+" "+c[2])
		}
		for _, i := range indexed.FindAllStringSubmatch(indexes, -1) {
			said.indexes = append(said.indexes, i[1]+" "+strings.TrimPrefix(i[2]+" ", " ")+"("+i[3]+")")
		}
		onPage[name] = said
	}
	require.Equal(t, inSQL, onPage)

	var ofModels []string
	for _, model := range models.All() {
		stmt := &gorm.Statement{DB: fxtest.OpenDB(t)}
		require.NoError(t, stmt.Parse(model))
		require.Len(t, onPage[stmt.Table].columns, len(stmt.Schema.DBNames), "columns of %s", stmt.Table)
		for _, name := range stmt.Schema.DBNames {
			require.Contains(t, strings.Join(onPage[stmt.Table].columns, "\n")+"\n", name+" ", "column of %s", stmt.Table)
		}
		ofModels = append(ofModels, stmt.Table)
	}
	require.Len(t, onPage, len(ofModels))
}

// The page's conditions tell states apart: each status is in one.
func TestStatesOnThePageExist(t *testing.T) {
	text, err := os.ReadFile("../../../docs/schema.md")
	require.NoError(t, err)
	conditions := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| (\\w+) \\| `([^`]+)`.*\\|$").FindAllStringSubmatch(string(text), -1) {
		conditions[row[1]] = row[2]
	}
	require.Len(t, conditions, 6)

	kit := fxtest.New(t, inbox.Configure(func(o *inbox.Options) {
		o.Processor.MaxRetries = 2
	}), inbox.Channel("c", inbox.On("t",
		inbox.Func("done", func(context.Context, handler.Message[[]byte]) error { return nil }),
		inbox.Func("given-up", func(context.Context, handler.Message[[]byte]) error { return handler.Poison(nil) }),
		inbox.Func("later", func(context.Context, handler.Message[[]byte]) error { return handler.Snooze(1) }))))
	kit.Accept(handler.RawMessage{Channel: "c", Type: "t", ID: "1"})
	kit.Process()
	kit.Accept(handler.RawMessage{Channel: "c", Type: "t", ID: "2"})
	require.NoError(t,
		kit.DB.Exec("UPDATE inbox_handler_statuses SET processing_started_at = CURRENT_TIMESTAMP WHERE message_id = '2' AND handler_key = 'done'").Error)
	for state, want := range map[string]int64{"pending": 3, "processing": 1, "poisoned": 1, "completed": 1, "discarded": 0,
		"superseded": 0} {
		var n int64
		require.NoError(t, kit.DB.Table(kit.Inbox.Tables().HandlerStatuses()).Where(conditions[state]).Count(&n).Error, state)
		require.Equal(t, want, n, state)
	}
}

var action = regexp.MustCompile(`Action = "(\w+)"`)

func TestSchemaPageNamesEveryAuditAction(t *testing.T) {
	text, err := os.ReadFile("../../../docs/schema.md")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(text), "\n- `action` ")
	require.True(t, found)
	row, _, _ := strings.Cut(after, "\n- ")
	source, err := os.ReadFile("../../../ops/audit.go")
	require.NoError(t, err)
	actions := action.FindAllStringSubmatch(string(source), -1)
	require.Greater(t, len(actions), 5)
	for _, a := range actions {
		require.Contains(t, row, "`"+a[1]+"`")
	}
}
