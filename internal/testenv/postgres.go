// Package testenv provides tests with real databases. Each call gives an empty database, whose
// contents are removed when the test ends.
package testenv

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the "pgx" driver of database/sql
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
)

// PostgresVariable names the environment variable with the DSN (a
// postgres:// URL) of a server on which tests may create databases.
const PostgresVariable = "INBOX_TEST_POSTGRES"

// adminTimeout is the timeout for creating or dropping one database, which writes a checkpoint.
const adminTimeout = 5 * time.Minute

// Postgres returns a session on an empty database of the server that PostgresVariable names, see
// PostgresDSN. The pool is closed when the test ends. Without a server it ends the test, see
// LeaveOut.
func Postgres(t testing.TB) *gorm.DB {
	t.Helper()
	return OpenPostgres(t, PostgresDSN(t))
}

// HasPostgres reports whether tests have a PostgreSQL server, or fail without one.
func HasPostgres() bool {
	return !sqliteAlone() && (os.Getenv(PostgresVariable) != "" || Required())
}

// OpenPostgres opens one more pool on a database that PostgresDSN made, like a second process of
// the same inbox. The pool is closed when the test ends.
func OpenPostgres(t testing.TB, dsn string) *gorm.DB {
	t.Helper()
	return Open(t, postgres.Open(dsn), gorm.Config{})
}

// PostgresDSN returns the DSN of an empty database that no other test uses until this test ends.
// After the test, open connections to it are terminated, and it is emptied and reused, or dropped
// (see Main). Without a server it ends the test, see LeaveOut.
func PostgresDSN(t testing.TB) string {
	t.Helper()
	leaveOutOnSQLiteAlone(t, "PostgreSQL")
	server := os.Getenv(PostgresVariable)
	if server == "" {
		LeaveOut(t, "PostgreSQL", PostgresVariable)
	}
	name, found := databases.take(server)
	if !found {
		name = "inbox_test_" + randomHex(t)
	}
	dsn, err := onDatabase(server, name)
	require.NoError(t, err)
	t.Cleanup(func() {
		empty, err := empty(dsn)
		if err != nil { // dropping the database is more thorough
			t.Logf("database %s cannot be emptied, it is dropped: %v", name, err)
		}
		require.NoError(t, databases.giveBack(server, name, empty))
	})
	if !found {
		// template0 accepts no connections, so no session can block the copy.
		require.NoError(t, administer(server, "CREATE DATABASE "+name+" TEMPLATE template0"))
	}
	return dsn
}

func administer(dsn, statement string) error {
	// The test's context has ended when cleanups run.
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

func randomHex(t testing.TB) string {
	t.Helper()
	raw := make([]byte, 8)
	_, err := rand.Read(raw)
	require.NoError(t, err)
	return hex.EncodeToString(raw)
}

// PgxReserved returns pgx settings under which a connection may be used only through database/sql.
// Either a tracer must see each statement, or statements must not be prepared (as behind some
// poolers).
func PgxReserved() map[string]func(*pgx.ConnConfig) {
	mode := func(m pgx.QueryExecMode) func(*pgx.ConnConfig) {
		return func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = m }
	}
	return map[string]func(*pgx.ConnConfig){
		"a tracer":          func(c *pgx.ConnConfig) { c.Tracer = tracer{} },
		"a simple protocol": mode(pgx.QueryExecModeSimpleProtocol),
		"unnamed":           mode(pgx.QueryExecModeExec),
		"described":         mode(pgx.QueryExecModeCacheDescribe),
	}
}

type tracer struct{}

func (tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
