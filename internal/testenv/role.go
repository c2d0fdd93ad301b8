package testenv

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

// Role makes a role that may log in to dsn's database but has no rights on its tables. It returns
// the role's name and a DSN with this role. The role is dropped when the test ends.
func Role(t testing.TB, dsn string) (role, as string) {
	t.Helper()
	return newRole(t, dsn, "")
}

// Grant grants a role these rights.
func Grant(t testing.TB, dsn, what, role string) {
	t.Helper()
	Run(t, dsn, fmt.Sprintf("GRANT %s TO %s", what, role))
}

// Run runs a SQL script.
func Run(t testing.TB, dsn, script string) {
	t.Helper()
	require.NoError(t, administer(dsn, script))
}

// RoleIsolation returns a DSN of dsn's database with a role of its own. Transactions of that role
// have this isolation level unless they state theirs. The role and what it owns in the database are
// dropped when the test ends.
func RoleIsolation(t testing.TB, dsn, level string) string {
	t.Helper()
	role, as := newRole(t, dsn, "SUPERUSER")
	require.NoError(t, administer(dsn, fmt.Sprintf("ALTER ROLE %s SET default_transaction_isolation = '%s'", role, level)))
	return as
}

// DatabaseIsolation sets this isolation level in dsn's database for all transactions that do not
// state theirs. It applies to sessions that begin from now on.
func DatabaseIsolation(t testing.TB, dsn, level string) string {
	t.Helper()
	address, err := url.Parse(dsn)
	require.NoError(t, err)
	require.NoError(t, administer(dsn, fmt.Sprintf("ALTER DATABASE %s SET default_transaction_isolation = '%s'",
		address.Path[1:], level)))
	return dsn
}

// newRole makes a role. The role and what it owns in the database are dropped when the test ends.
func newRole(t testing.TB, dsn, attributes string) (role, as string) {
	t.Helper()
	role = "inbox_test_" + randomHex(t)
	require.NoError(t, administer(dsn, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD 'secret' %s", role, attributes)))
	t.Cleanup(func() {
		require.NoError(t, administer(dsn, "DROP OWNED BY "+role))
		require.NoError(t, administer(dsn, "DROP ROLE "+role))
	})
	address, err := url.Parse(dsn)
	require.NoError(t, err)
	address.User = url.UserPassword(role, "secret")
	return role, address.String()
}
