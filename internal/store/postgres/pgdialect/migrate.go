package pgdialect

import (
	"context"
	"database/sql"
	"embed"
	"hash/fnv"
	"strings"

	"github.com/gorm-inbox/inbox/internal/columns"
)

//go:embed migrations
var migrations embed.FS

// beginMigration waits for an advisory lock. The lock ends with the transaction, so nothing of it stays on a
// pooled connection, and the server ends the transaction if we vanish. With READ COMMITTED, the work of the
// previous holder is visible after the wait.
func beginMigration(ctx context.Context, conn *sql.Conn, lock string) error {
	key := fnv.New64a()
	key.Write([]byte(lock))
	if _, err := conn.ExecContext(ctx, `BEGIN ISOLATION LEVEL READ COMMITTED`); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, `SET LOCAL idle_in_transaction_session_timeout = '1min'`); err != nil {
		return err
	}
	_, err := conn.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(key.Sum64()))
	return err
}

// createSchema checks for the schema first, because CREATE SCHEMA IF NOT EXISTS needs the privilege
// even if there is nothing to create.
func createSchema(ctx context.Context, conn *sql.Conn, schema string) error {
	var exists bool
	err := conn.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)`, schema).Scan(&exists)
	if err == nil && !exists {
		_, err = conn.ExecContext(ctx, `CREATE SCHEMA `+columns.Quote(schema))
	}
	return err
}

// columnsSQL reads the catalog by the tables' OIDs.
func columnsSQL(tables map[string]string, schema string) string {
	var list []string
	for table, name := range tables {
		list = append(list, `('`+table+`', to_regclass('`+columns.Quote(name)+`'))`)
	}
	later := `c.relnamespace IS DISTINCT FROM to_regnamespace(quote_ident(current_schema()))`
	if schema != "" {
		later = `false`
	}
	return `SELECT t.column1, a.attname::text, ` + later + ` FROM (VALUES ` + strings.Join(list, ", ") + `) AS t
		JOIN pg_class c ON c.oid = t.column2
		JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attrelid, a.attnum`
}
