// Package sqlitedialect describes SQLite.
package sqlitedialect

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/txcontrol"
)

// Dialect is SQLite 3.35 or later, with any driver. Its transactions are serializable by any name.
var Dialect = &dialect.Dialect{
	Title:              "SQLite",
	Name:               "sqlite",
	Classify:           classify,
	Waits:              "look for a process that keeps a transaction on the file open",
	SingleWriter:       true,
	Returning:          true,
	Isolations:         []sql.IsolationLevel{sql.LevelSerializable},
	Stated:             sql.LevelDefault,
	Migrations:         migrations,
	BeginMigration:     beginMigration,
	ColumnsSQL:         columnsSQL,
	PlaceSQL:           placeSQL,
	InboxesSQL:         inboxesSQL,
	RolledBack:         rolledBack,
	CommitsByStatement: true,
	Syntax: &txcontrol.Syntax{
		Boundaries: txcontrol.Boundaries,
		Quotes:     "'\"`[",
		LineEnds:   "\n",
		Body:       "BEGIN",
	},
}

// rolledBack asks SQLite whether a statement that failed has rolled back the whole transaction, as it does for
// ON CONFLICT ROLLBACK, RAISE(ROLLBACK) or a full disk: the error does not say so. Within a transaction BEGIN is
// refused. If the transaction is gone, BEGIN begins another one, which the end of the attempt undoes.
func rolledBack(_ error, run func(statement string) error) bool { return run("BEGIN") == nil }

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
	for _, table := range slices.Sorted(maps.Keys(tables)) { // one text, so that it is prepared once
		list = append(list, `('`+table+`', '`+tables[table]+`')`)
	}
	return `SELECT t.column1, c.name, false FROM (VALUES ` + strings.Join(list, ", ") + `) AS t
		JOIN sqlite_master m ON m.type IN ('table', 'view') AND m.name = t.column2 COLLATE NOCASE
		JOIN pragma_table_info(m.name) c`
}

const placeSQL = `SELECT CASE file WHEN '' THEN 'a database in memory' ELSE 'file ' || file END, ''
	FROM pragma_database_list WHERE name = 'main'`

// inboxesSQL reads the schema's table, which has no index.
func inboxesSQL(limit int) string {
	return fmt.Sprintf(`SELECT '', substr(s.name, 1, length(s.name) - length('handler_statuses')), true
		FROM sqlite_master s
		JOIN sqlite_master m ON m.type = 'table' AND m.name = substr(s.name, 1, length(s.name) - length('handler_statuses')) || 'meta'
		WHERE s.type = 'table' AND s.name LIKE '%%handler\_statuses' ESCAPE '\'
			AND (SELECT count(*) FROM pragma_table_info(m.name) WHERE name IN ('key', 'value')) = 2
		ORDER BY 2 LIMIT %d`, limit)
}
