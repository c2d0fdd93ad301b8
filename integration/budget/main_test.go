// Package budget keeps the hot paths as cheap as they are, without a clock:
// statements and round trips per batch, rows written, heap-only updates, bytes
// of write-ahead log and allocations per message. What it allows is what was
// seen when it was written, and a little more.
package budget

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quietServer is a server of the test's own on which nothing else writes: no
// other test, no autovacuum, and no checkpoint while it is measured.
func quietServer(t *testing.T) *servers.Postgres {
	t.Helper()
	server, err := servers.StartPostgres(servers.PostgresOptions{Settings: map[string]string{
		"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "4GB", "bgwriter_lru_maxpages": "0",
	}})
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return server
}
