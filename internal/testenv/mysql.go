package testenv

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
)

// The names of the environment variables with the DSNs, as gorm.io/driver/mysql takes them, of servers on which tests
// may create databases.
const (
	MariaDBVariable = "INBOX_TEST_MARIADB"
	MySQLVariable   = "INBOX_TEST_MYSQL"
)

// HasMySQL reports whether tests have a MariaDB or MySQL server.
func HasMySQL() bool {
	return !sqliteAlone() && (os.Getenv(MariaDBVariable) != "" || os.Getenv(MySQLVariable) != "")
}

// AnyMySQLDSN is MySQLDSN for MySQL, which refuses more than MariaDB does, or for MariaDB if only that is there.
func AnyMySQLDSN(t testing.TB) string {
	t.Helper()
	variable := MySQLVariable
	if os.Getenv(variable) == "" {
		variable = MariaDBVariable
	}
	dsn := MySQLDSN(t, variable) + sqlMode
	if variable == MariaDBVariable {
		return dsn + "&max_recursive_iterations" + recursion
	}
	return dsn + "&cte_max_recursion_depth" + recursion
}

// The statements of tests are those of standard SQL, and some make thousands of rows. The inbox's own run in any mode,
// which package storetest shows in the default one.
const (
	sqlMode   = "&sql_mode=%27ANSI_QUOTES,PIPES_AS_CONCAT,STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION%27"
	recursion = "=100000"
)

// OpenMySQL opens one more pool on a database that MySQLDSN made, like a second process of the same inbox. The pool is
// closed when the test ends.
func OpenMySQL(t testing.TB, dsn string) *gorm.DB {
	t.Helper()
	return Open(t, mysql.Open(dsn), gorm.Config{})
}

// MySQLDSN returns the DSN of a new database on the server that one of these variables names. The database is dropped
// when the test ends. Without a server it ends the test, see LeaveOut.
func MySQLDSN(t testing.TB, variable string) string {
	t.Helper()
	title := "MySQL"
	if variable == MariaDBVariable {
		title = "MariaDB"
	}
	leaveOutOnSQLiteAlone(t, title)
	server := os.Getenv(variable)
	if server == "" {
		LeaveOut(t, title, variable)
	}
	name := "inbox_test_" + randomHex(t)
	dsn, err := OnMySQLDatabase(server, name)
	require.NoError(t, err)
	require.NoError(t, RunMySQL(server, "CREATE DATABASE "+name))
	t.Cleanup(func() { require.NoError(t, RunMySQL(server, "DROP DATABASE "+name)) })
	return dsn
}

// MySQLAccount makes an account that may log in from anywhere but has no rights on any table. It returns its name, and
// a DSN with it. The account is dropped when the test ends.
func MySQLAccount(t testing.TB, dsn string) (account, as string) {
	t.Helper()
	account = "inbox_test_" + randomHex(t)
	require.NoError(t, RunMySQL(dsn, "CREATE USER '"+account+"'@'%' IDENTIFIED BY 'secret'"))
	t.Cleanup(func() { require.NoError(t, RunMySQL(dsn, "DROP USER '"+account+"'@'%'")) })
	return account, account + ":secret@" + dsn[strings.LastIndex(dsn[:strings.LastIndex(dsn, "/")], "@")+1:]
}

// OnMySQLDatabase returns a DSN with another database, whose name is between the last slash and the parameters.
func OnMySQLDatabase(dsn, name string) (string, error) {
	slash := strings.LastIndex(dsn, "/")
	if slash < 0 {
		return "", errors.New("the DSN must be user:password@tcp(host:port)/database")
	}
	if _, parameters, found := strings.Cut(dsn[slash:], "?"); found {
		name += "?" + parameters
	}
	return dsn[:slash+1] + name, nil
}

// RunMySQL runs statements on a server, each by itself.
func RunMySQL(dsn string, statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, statement := range statements {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}
