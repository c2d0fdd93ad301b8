package testenv

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

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
