// Package pooler proves that an inbox works through PgBouncer in transaction mode, where each
// transaction may use another connection to the server.
package pooler

import (
	"maps"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// pooled makes a new database and a pooler of its own, with this many connections to the database
// and further settings. It returns the DSN of the database and the DSN through the pooler.
func pooled(t *testing.T, connections int, further map[string]string) (direct, through string) {
	t.Helper()
	direct = testenv.PostgresDSN(t)
	return direct, poolerOf(t, direct, connections, further)
}

// poolerOf starts a pooler in front of a server, and returns the DSN through it.
func poolerOf(t *testing.T, server string, connections int, further map[string]string) (through string) {
	t.Helper()
	settings := map[string]string{"default_pool_size": strconv.Itoa(connections)}
	maps.Copy(settings, further)
	pooler, err := servers.StartPgBouncer(servers.PgBouncerOptions{Server: server, Settings: settings})
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, pooler.Close()) })
	return pooler.DSN()
}
