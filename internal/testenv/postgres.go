// Package testenv gives tests real databases: an empty one for every call, whose
// contents are gone when the test ends.
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

	_ "github.com/jackc/pgx/v5/stdlib" // the "pgx" driver of database/sql
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
)

// PostgresVariable names the environment variable with the DSN (a
// postgres:// URL) of a server on which tests may create databases.
const PostgresVariable = "INBOX_TEST_POSTGRES"

// adminTimeout bounds creating and dropping one database, which writes a checkpoint.
const adminTimeout = 5 * time.Minute

// Postgres returns a session on an empty database of the server named by
// PostgresVariable, see PostgresDSN. The pool is closed when the test ends.
// Without a server see LeaveOut.
func Postgres(t testing.TB) *gorm.DB {
	t.Helper()
	return OpenPostgres(t, PostgresDSN(t))
}

// OpenPostgres opens one more pool on a database that PostgresDSN made, and
// closes it when the test ends: a second process of the same inbox.
func OpenPostgres(t testing.TB, dsn string) *gorm.DB {
	t.Helper()
	return Open(t, postgres.Open(dsn), gorm.Config{})
}

// PostgresDSN returns the DSN of an empty database, which nobody else uses until
// the test ends. Then connections still open on it are ended, and it is emptied
// and used again, or dropped (see Main).
// Without a server see LeaveOut.
func PostgresDSN(t testing.TB) string {
	t.Helper()
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
		if err != nil { // dropping it is more thorough
			t.Logf("database %s cannot be emptied, it is dropped: %v", name, err)
		}
		require.NoError(t, databases.giveBack(server, name, empty))
	})
	if !found {
		// template0 takes no connections, so nobody can keep it busy.
		require.NoError(t, administer(server, "CREATE DATABASE "+name+" TEMPLATE template0"))
	}
	return dsn
}

func administer(dsn, statement string) error {
	// Not a test's: it has ended when cleanups run.
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
