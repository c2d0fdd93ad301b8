// Package budget limits the cost of the hot paths without measuring time. It counts statements and
// round trips per batch, written rows, heap-only updates, and bytes of write-ahead log and
// allocations per message. Its limits are slightly above the values measured when they were
// written.
package budget

import (
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// quietServer is the package's own server, on which nothing else writes: no tests of other
// packages, no autovacuum, and no checkpoint during a measurement. It starts on first use. The
// tests here run one after the other.
var quietServer = sync.OnceValues(func() (*servers.Postgres, error) {
	return servers.StartPostgres(servers.PostgresOptions{Settings: map[string]string{
		"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "4GB", "bgwriter_lru_maxpages": "0",
	}})
})

func TestMain(m *testing.M) {
	status := m.Run()
	if server, err := quietServer(); err == nil {
		if err := server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	if err := goleak.Find(); status == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// quietDatabase makes a database on quietServer.
func quietDatabase(t *testing.T) (dsn string) {
	t.Helper()
	server, err := quietServer()
	testenv.LeaveOutIf(t, err)
	address, err := url.Parse(server.DSN())
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), server.DSN())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	address.Path = fmt.Sprintf("/budget_%d", os.Getpid())
	_, err = conn.Exec(t.Context(), "DROP DATABASE IF EXISTS "+address.Path[1:]+" WITH (FORCE)")
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "CREATE DATABASE "+address.Path[1:])
	require.NoError(t, err)
	return address.String()
}
