package testenv

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

// Role makes a role that may do what an application does with the tables that there are
// in dsn's database, and nothing else. It returns its name and a DSN that leads there as
// this role. The role goes when the test ends.
func Role(t testing.TB, dsn string) (role, as string) {
	t.Helper()
	role, as = newRole(t, dsn, "")
	for _, on := range []string{"SCHEMA public", "ALL TABLES IN SCHEMA public", "ALL SEQUENCES IN SCHEMA public"} {
		require.NoError(t, administer(dsn, fmt.Sprintf("GRANT ALL ON %s TO %s", on, role)))
	}
	return role, as
}

// Grant grants a role what is said.
func Grant(t testing.TB, dsn, what, role string) {
	t.Helper()
	require.NoError(t, administer(dsn, fmt.Sprintf("GRANT %s TO %s", what, role)))
}

// newRole makes a role. It, and what it owns in the database, goes when the test ends.
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
