// Package pooler proves that an inbox works through PgBouncer in transaction mode, where each
// transaction may use another connection to the server.
package pooler

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// pooled makes a new database and a pooler of its own. It returns the DSN of the database and the
// DSN through the pooler.
func pooled(t *testing.T, options servers.PgBouncerOptions) (direct, through string) {
	t.Helper()
	direct = testenv.PostgresDSN(t)
	options.Server = direct
	pooler, err := servers.StartPgBouncer(options)
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, pooler.Close()) })
	return direct, pooler.DSN(direct)
}
