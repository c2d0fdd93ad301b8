// Package inboxtest is what the behaviour tests of several packages share: an
// inbox on each real database, and ways to look at what is stored. Only tests
// import it.
package inboxtest

import (
	"testing"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

// Database is a fresh database of one test.
type Database struct {
	// Dialect is "sqlite" or "postgres".
	Dialect string
	// DB is the first pool on it.
	DB *gorm.DB

	dsn string
}

// OnEach runs a test on a fresh SQLite file and, where a server is named, on a
// fresh PostgreSQL database, both in parallel with other tests.
func OnEach(t *testing.T, test func(t *testing.T, d *Database)) {
	t.Helper()
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		dsn := testenv.SQLiteDSN(t)
		test(t, &Database{Dialect: "sqlite", DB: testenv.OpenSQLite(t, dsn), dsn: dsn})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, openPostgres(t))
	})
}

// OnPostgres is OnEach for what cannot happen on SQLite, so that no test passes
// there without having tested anything. Say why.
func OnPostgres(t *testing.T, test func(t *testing.T, d *Database)) {
	t.Helper()
	t.Parallel()
	test(t, openPostgres(t))
}

// OnStrictPostgres runs a test on databases whose transactions are serializable, or
// repeatable read, unless they state their isolation: because the role's setting says so,
// and because the database's does.
func OnStrictPostgres(t *testing.T, test func(t *testing.T, d *Database, level string)) {
	t.Helper()
	t.Parallel()
	for _, level := range []string{"serializable", "repeatable read"} {
		for name, set := range map[string]func(t testing.TB, dsn, level string) string{
			"role": testenv.RoleIsolation, "database": testenv.DatabaseIsolation,
		} {
			t.Run(level+" by "+name, func(t *testing.T) {
				t.Parallel()
				dsn := set(t, testenv.PostgresDSN(t), level)
				test(t, &Database{Dialect: "postgres", DB: testenv.OpenPostgres(t, dsn), dsn: dsn}, level)
			})
		}
	}
}

func openPostgres(t *testing.T) *Database {
	t.Helper()
	dsn := testenv.PostgresDSN(t)
	return &Database{Dialect: "postgres", DB: testenv.OpenPostgres(t, dsn), dsn: dsn}
}

// Another opens one more pool, as another process of the same inbox would.
func (d *Database) Another(t testing.TB) *gorm.DB {
	t.Helper()
	if d.Dialect == "sqlite" {
		return testenv.OpenSQLite(t, d.dsn)
	}
	return testenv.OpenPostgres(t, d.dsn)
}

// DSN leads to the database, for a way of the test's own.
func (d *Database) DSN() string { return d.dsn }
