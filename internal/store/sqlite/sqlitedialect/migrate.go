package sqlitedialect

import (
	"context"
	"database/sql"
	"embed"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/internal/routine"
)

//go:embed migrations
var migrations embed.FS

// beginMigration takes the write lock before it reads anything, so that no snapshot is outdated when it is written
// from. It retries on a busy database until ctx ends, for a minute at most, under any busy_timeout of the connection.
func beginMigration(ctx context.Context, conn *sql.Conn, _ string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := conn.ExecContext(ctx, `BEGIN IMMEDIATE`)
		if err == nil {
			return nil
		}
		text := strings.ToLower(err.Error())
		if !strings.Contains(text, "locked") && !strings.Contains(text, "busy") {
			return err
		}
		if !routine.Sleep(ctx, 20*time.Millisecond) {
			return err
		}
	}
}

// columnsSQL reads the schema's table.
func columnsSQL(tables map[string]string, _ string) string {
	var list []string
	for table, name := range tables {
		list = append(list, `('`+table+`', '`+name+`')`)
	}
	return `SELECT t.column1, c.name, false FROM (VALUES ` + strings.Join(list, ", ") + `) AS t
		JOIN sqlite_master m ON m.type IN ('table', 'view') AND m.name = t.column2 COLLATE NOCASE
		JOIN pragma_table_info(m.name) c`
}
