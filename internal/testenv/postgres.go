// Package testenv gives tests real databases: a fresh one for every call,
// removed when the test ends.
package testenv

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"net/url"
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

// adminTimeout bounds creating and dropping one database.
const adminTimeout = time.Minute

// Postgres returns a session on a new, empty database of the server named by
// PostgresVariable. The pool is closed and the database dropped when the test
// ends. Without a server see LeaveOut.
func Postgres(t testing.TB) *gorm.DB {
	t.Helper()
	return OpenPostgres(t, PostgresDSN(t))
}

// OpenPostgres opens one more pool on a database that PostgresDSN made, and
// closes it when the test ends: a second process of the same inbox.
func OpenPostgres(t testing.TB, dsn string) *gorm.DB {
	t.Helper()
	return open(t, postgres.Open(dsn))
}

// PostgresDSN makes a new, empty database and returns its DSN. The database is
// dropped when the test ends, together with connections still open on it.
// Without a server see LeaveOut.
func PostgresDSN(t testing.TB) string {
	t.Helper()
	server := os.Getenv(PostgresVariable)
	if server == "" {
		LeaveOut(t, "PostgreSQL", PostgresVariable)
	}
	address, err := url.Parse(server)
	require.NoError(t, err, "%s must be a postgres:// URL", PostgresVariable)

	name := "inbox_test_" + randomHex(t)
	// template0 takes no connections, so nobody can keep it busy.
	administer(t, server, "CREATE DATABASE "+name+" TEMPLATE template0")
	t.Cleanup(func() { administer(t, server, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })

	address.Path = "/" + name
	return address.String()
}

func administer(t testing.TB, dsn, statement string) {
	t.Helper()
	// Not t.Context(): it has ended when cleanups run.
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	defer db.Close()
	_, err = db.ExecContext(ctx, statement)
	require.NoError(t, err, statement)
}

func randomHex(t testing.TB) string {
	t.Helper()
	raw := make([]byte, 8)
	_, err := rand.Read(raw)
	require.NoError(t, err)
	return hex.EncodeToString(raw)
}
