package inboxtest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store/mysql"
	"github.com/gorm-inbox/inbox/internal/store/postgres"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// environment is how tests start databases of one dialect.
type environment struct {
	dialect string
	dsn     func(t testing.TB) string // of a new database
	open    func(t testing.TB, dsn string) *gorm.DB
	// application and operator make a role with the rights of an application or an operator, and return a DSN with it;
	// nil where there are no roles.
	application, operator func(t testing.TB, dsn string) string
	// identity is the type of a primary key that the database assigns.
	identity string
}

// environments are those on which OnEach runs a test.
var environments = []*environment{
	{dialect: "sqlite", dsn: testenv.SQLiteDSN, open: testenv.OpenSQLite,
		identity: "integer PRIMARY KEY AUTOINCREMENT"},
	onPostgres,
	onMySQL,
}

// onMySQL is MySQL or MariaDB.
var onMySQL = &environment{dialect: "mysql", dsn: testenv.AnyMySQLDSN, open: testenv.OpenMySQL,
	application: func(t testing.TB, dsn string) string {
		account, as := testenv.MySQLAccount(t, dsn)
		grantOnMySQL(t, dsn, mysql.Accounts{Application: account})
		return as
	},
	operator: func(t testing.TB, dsn string) string {
		account, as := testenv.MySQLAccount(t, dsn)
		grantOnMySQL(t, dsn, mysql.Accounts{Operator: account})
		return as
	},
	identity: "bigint AUTO_INCREMENT PRIMARY KEY",
}

func grantOnMySQL(t testing.TB, dsn string, accounts mysql.Accounts) {
	t.Helper()
	script, err := mysql.Grants(models.Naming{}, accounts)
	require.NoError(t, err)
	require.NoError(t, testenv.RunMySQL(dsn, (models.Migration{SQL: script}).Statements()...))
}

var onPostgres = &environment{dialect: "postgres", dsn: testenv.PostgresDSN, open: testenv.OpenPostgres,
	application: func(t testing.TB, dsn string) string {
		_, as := ApplicationRole(t, dsn)
		return as
	},
	operator: func(t testing.TB, dsn string) string {
		role, as := testenv.Role(t, dsn)
		grant(t, dsn, postgres.Roles{Operator: role})
		return as
	},
	identity: "bigserial PRIMARY KEY",
}

// of returns the environment of a dialect.
func of(t testing.TB, dialect string) *environment {
	t.Helper()
	for _, e := range environments {
		if e.dialect == dialect {
			return e
		}
	}
	require.FailNow(t, "no test starts a database of this dialect", dialect)
	return nil
}

// database opens a new database.
func (e *environment) database(t testing.TB) *Database {
	t.Helper()
	dsn := e.dsn(t)
	return &Database{Dialect: e.dialect, DB: e.open(t, dsn), dsn: dsn}
}

// as opens a database with a role, after the tables are made. Without roles it returns the DSN as it is.
func (d *Database) as(t testing.TB, role func(t testing.TB, dsn string) string) (dsn string) {
	t.Helper()
	if role == nil || d.dsn == "" {
		return d.dsn
	}
	require.NoError(t, models.Migrate(t.Context(), d.DB, models.Naming{}, "test"))
	return role(t, d.dsn)
}
