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
