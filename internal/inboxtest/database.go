// Package inboxtest is shared by the behaviour tests of several packages. It makes an inbox on each
// real database and reads what is stored. Only tests import it.
package inboxtest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store/postgres"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// Database is a new database for one test.
type Database struct {
	// Dialect is "sqlite", "postgres" or "mysql".
	Dialect string
	// DB is the first pool on the database.
	DB *gorm.DB

	dsn string
}

// OnEach runs a test on a new database of each dialect: a SQLite file and, if servers are configured, PostgreSQL, and
// MariaDB or MySQL. All run in parallel with other tests.
func OnEach(t *testing.T, test func(t *testing.T, d *Database)) {
	t.Helper()
	t.Parallel()
	for _, e := range environments {
		t.Run(e.dialect, func(t *testing.T) {
			t.Parallel()
			test(t, e.database(t))
		})
	}
}

// OnAny runs a test on one new database: of PostgreSQL if a server is configured, else of MariaDB or MySQL if there is
// one, else of SQLite. Use it for behaviour
// that does not depend on the dialect: package storetest proves the dialects alike. `make
// test-more` runs it on SQLite.
func OnAny(t *testing.T, test func(t *testing.T, d *Database)) {
	t.Helper()
	t.Parallel()
	e := environments[0]
	switch {
	case testenv.HasPostgres():
		e = onPostgres
	case testenv.HasMySQL():
		e = onMySQL
	}
	test(t, e.database(t))
}

// OnEachAlone is like OnEach while no other test of the package runs, for measurements of memory
// that other tests would disturb.
func OnEachAlone(t *testing.T, test func(t *testing.T, d *Database)) {
	t.Helper()
	for _, e := range environments {
		t.Run(e.dialect, func(t *testing.T) { test(t, e.database(t)) })
	}
}

// OnPostgres is like OnEach, but on PostgreSQL only. Use it for what cannot happen on SQLite, so
// that no test passes there without testing anything, and say why.
func OnPostgres(t *testing.T, test func(t *testing.T, d *Database)) {
	t.Helper()
	t.Parallel()
	test(t, onPostgres.database(t))
}

// OnStrictPostgres runs a test on databases whose default isolation is serializable or repeatable
// read. Each level is set once for the role and once for the database.
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

// Another opens one more pool, like another process of the same inbox.
func (d *Database) Another(t testing.TB) *gorm.DB {
	t.Helper()
	return of(t, d.Dialect).open(t, d.dsn)
}

// DSN returns the database's DSN, for connections of the test's own.
func (d *Database) DSN() string { return d.dsn }

// AsApplication makes the tables and opens a pool with an application's role, which has the rights
// of ApplicationRole. Where there are no roles, it returns DB.
func (d *Database) AsApplication(t testing.TB) *gorm.DB {
	t.Helper()
	e := of(t, d.Dialect)
	if e.application == nil {
		return d.DB
	}
	return e.open(t, d.as(t, e.application))
}

// OperatorDSN makes the tables and returns a DSN with an operator's role. Where there are no roles, it returns DSN.
func (d *Database) OperatorDSN(t testing.TB) string {
	t.Helper()
	return d.as(t, of(t, d.Dialect).operator)
}

// ApplicationRole makes a role with only the rights that an application needs on the existing
// tables under their default names. See testenv.Role.
func ApplicationRole(t testing.TB, dsn string) (role, as string) {
	t.Helper()
	role, as = testenv.Role(t, dsn)
	grant(t, dsn, postgres.Roles{Application: role})
	return role, as
}

func grant(t testing.TB, dsn string, roles postgres.Roles) {
	t.Helper()
	script, err := postgres.Grants(models.Naming{}, roles)
	require.NoError(t, err)
	testenv.Run(t, dsn, script)
}

// RequirePrivate writes to a SQLite database and requires that only the user may access its files,
// including the WAL.
func RequirePrivate(t testing.TB, db *gorm.DB) {
	t.Helper()
	Exec(t, db, "CREATE TABLE private (id INTEGER)")
	var file string
	require.NoError(t, db.Raw("SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&file).Error)
	for _, each := range []string{file, file + "-wal", file + "-shm"} {
		info, err := os.Stat(each)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), each)
	}
}
