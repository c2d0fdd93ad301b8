// Package mysqldialect describes MySQL and MariaDB.
package mysqldialect

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/txcontrol"
)

// Dialect is MySQL 8.0.19 or later and MariaDB 10.6 or later.
var Dialect = &dialect.Dialect{
	Name:           "mysql",
	Title:          "MySQL",
	Classify:       classify,
	Waits:          "look in information_schema.innodb_trx for old transactions, and in SHOW PROCESSLIST",
	Migrations:     migrations,
	BeginMigration: beginMigration,
	EndMigration:   endMigration,
	Quote:          "`",
	CreateSchema:   createSchema,
	ColumnsSQL:     columnsSQL,
	Columns:        ownColumns,
	PlaceSQL:       placeSQL,
	InboxesSQL:     inboxesSQL,
	Now:            `UTC_TIMESTAMP(6)`,
	NoTime:         `CAST(NULL AS DATETIME(6))`,
	Identity:       "bigint AUTO_INCREMENT",
	Isolations:     []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable},
	Stated:         sql.LevelReadCommitted,
	GapLocks:       true,
	Pool:           Translating,
	RolledBack:     rolledBack,
	Syntax: &txcontrol.Syntax{
		Boundaries: append(slices.Clone(txcontrol.Boundaries), committing...),
		Exceptions: []string{"CREATE TEMPORARY", "DROP TEMPORARY", "DROP PREPARE"},
		Settings:   []string{"SET"},
		Ending:     "AUTOCOMMIT",
		Quotes:     "'\"`",
		Backslash:  true,
		Hash:       true,
		Executable: true,
		LineEnds:   "\n",
		Body:       "BEGIN",
	},
}

// committing are the words that begin a statement before or after which the server commits, or which runs a text that
// may.
var committing = []string{"XA", "SET PASSWORD", "SET STATEMENT", "CREATE", "DROP", "ALTER", "RENAME", "TRUNCATE", "GRANT", "REVOKE",
	"LOCK", "UNLOCK", "ANALYZE", "OPTIMIZE", "REPAIR", "CHECK TABLE", "CACHE", "LOAD INDEX", "FLUSH", "RESET", "INSTALL",
	"USE", "CALL", "UNINSTALL", "IMPORT", "CHANGE", "STOP", "BACKUP", "SHUTDOWN", "RESTART", "CLONE", "EXECUTE"}

//go:embed migrations
var migrations embed.FS

// lockName names a lock of the whole server: it begins with a hash of the database, and is not longer than MySQL takes.
func lockName(database, lock string) string {
	sum := sha256.Sum256([]byte(database + "\x00" + lock))
	return "inbox " + hex.EncodeToString(sum[:16])
}

// beginMigration waits for a lock of the session. DDL commits by itself, so there is no transaction: each step is
// idempotent instead.
func beginMigration(ctx context.Context, conn *sql.Conn, lock string) error {
	name, err := sessionLock(ctx, conn, lock)
	for err == nil {
		// The server may not notice for long that a client has gone that waits.
		var got sql.NullInt64
		if err = conn.QueryRowContext(ctx, `SELECT GET_LOCK(?, 5)`, name).Scan(&got); err == nil && got.Int64 == 1 {
			return nil
		}
		err = errors.Join(err, ctx.Err())
	}
	return err
}

// endMigration selects, because Vitess would run DO in another session.
func endMigration(ctx context.Context, conn *sql.Conn, lock string) error {
	name, err := sessionLock(ctx, conn, lock)
	if err == nil {
		err = conn.QueryRowContext(ctx, `SELECT RELEASE_LOCK(?)`, name).Scan(new(sql.NullInt64))
	}
	return err
}

func sessionLock(ctx context.Context, conn *sql.Conn, lock string) (string, error) {
	var database sql.NullString
	err := conn.QueryRowContext(ctx, `SELECT DATABASE()`).Scan(&database)
	return lockName(database.String, lock), err
}

// createSchema checks for the database first, because CREATE DATABASE IF NOT EXISTS needs the privilege even if there
// is nothing to create.
func createSchema(ctx context.Context, conn *sql.Conn, schema string) error {
	var exists bool
	err := conn.QueryRowContext(ctx,
		`SELECT count(*) > 0 FROM information_schema.schemata WHERE schema_name = ?`, schema).Scan(&exists)
	if err == nil && !exists {
		_, err = conn.ExecContext(ctx, `CREATE DATABASE `+quoted(schema))
	}
	return err
}

func quoted(name string) string { return strings.ReplaceAll(columns.Quote(name), `"`, "`") }

// ownColumns are not in tables that AutoMigrate has made or changed: there IDs are compared without case, times are
// cut, and what claims and workers use is missing.
var ownColumns = map[string][]string{
	"messages":         {"id varbinary(800)", "received_at datetime(6)"},
	"handler_statuses": {"id varbinary(36)", "due_at datetime(6)"},
	"worker_locks":     {"id varbinary(36)"},
}

// columnsSQL reads the dictionary's rows of the tables: each column once alone, and once with its type.
func columnsSQL(tables map[string]string, schema string) string {
	of := `DATABASE()`
	if schema != "" {
		of = `'` + schema + `'`
	}
	var cases, names []string
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		name := `'` + strings.TrimPrefix(tables[table], schema+".") + `'`
		cases, names = append(cases, `WHEN `+name+` THEN '`+table+`'`), append(names, name)
	}
	return `SELECT CASE table_name ` + strings.Join(cases, " ") + ` END, CONCAT(column_name, CASE typed WHEN 1 THEN CONCAT(' ', column_type) ELSE '' END), false
		FROM information_schema.columns, (SELECT 0 AS typed UNION ALL SELECT 1) t
		WHERE table_schema = ` + of + ` AND table_name IN (` + strings.Join(names, ", ") + `) ORDER BY table_name, ordinal_position`
}

const placeSQL = `SELECT CONCAT('database ', COALESCE(DATABASE(), '(none)'), ' of ', @@hostname, ':', @@port), ''`

// inboxesSQL reads the dictionary, which shows what this user may read.
func inboxesSQL(limit int) string {
	return fmt.Sprintf(`SELECT s.table_schema, LEFT(s.table_name, LENGTH(s.table_name) - LENGTH('handler_statuses')), true
		FROM information_schema.tables s
		JOIN information_schema.tables m ON m.table_schema = s.table_schema
			AND m.table_name = CONCAT(LEFT(s.table_name, LENGTH(s.table_name) - LENGTH('handler_statuses')), 'meta')
		WHERE RIGHT(s.table_name, LENGTH('handler_statuses')) = 'handler_statuses' ORDER BY 1, 2 LIMIT %d`, limit)
}
