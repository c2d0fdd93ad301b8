// Package endtoend proves the guarantees with real processes and real servers that are killed,
// frozen, cut off and stopped under load. The verdict comes from a ledger that is compared with the
// database.
package endtoend

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// The servers of this package are its own, even if the environment names servers. They start on
// first use. Tests that stop or kill a server have another one.
var (
	ownPostgres = sync.OnceValues(func() (*servers.Postgres, error) {
		postgres, err := servers.StartPostgres(servers.PostgresOptions{})
		if err == nil {
			closeAtEnd(postgres.Close)
		}
		return postgres, err
	})
	ownKafka = sync.OnceValues(func() (*servers.Kafka, error) {
		kafka, err := servers.StartKafka(servers.KafkaOptions{})
		if err == nil {
			closeAtEnd(kafka.Close)
		}
		return kafka, err
	})
	closers struct {
		sync.Mutex
		all []func() error
	}
)

func closeAtEnd(f func() error) {
	closers.Lock()
	defer closers.Unlock()
	closers.all = append(closers.all, f)
}

func TestMain(m *testing.M) {
	workload.MainIfWorker()
	// Each test runs several processes, some with servers of their own. More parallel tests would
	// compete for processors, and their deadlines would pass.
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.(flag.Getter).Get().(int) > 2 {
		_ = parallel.Value.Set("2")
	}
	status := m.Run()
	for _, closer := range closers.all {
		if err := closer(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	if status == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	os.Exit(status)
}

// requireStarted leaves a test out if its server is not installed. One that is, and does not start, is a failure.
func requireStarted(t *testing.T, err error) {
	t.Helper()
	if errors.As(err, new(*servers.Missing)) {
		testenv.LeaveOutIf(t, err)
	}
	require.NoError(t, err)
}

func postgresServer(t *testing.T) *servers.Postgres {
	t.Helper()
	server, err := ownPostgres()
	testenv.LeaveOutIf(t, err)
	return server
}

// disturbedPostgres is a server of the test's own, which it may stop while other tests run.
func disturbedPostgres(t *testing.T) *servers.Postgres {
	t.Helper()
	server, err := servers.StartPostgres(servers.PostgresOptions{})
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return server
}

// disturbedMariaDB is a server of MySQL's kind for one test.
func disturbedMariaDB(t *testing.T) *servers.MySQL {
	t.Helper()
	server, err := servers.StartMariaDB(servers.MySQLOptions{})
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return server
}

// disturbedKafka is a broker of the test's own, for the same reason.
func disturbedKafka(t *testing.T) *servers.Kafka {
	t.Helper()
	server, err := servers.StartKafka(servers.KafkaOptions{})
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return server
}

func kafkaServer(t *testing.T) *servers.Kafka {
	t.Helper()
	server, err := ownKafka()
	testenv.LeaveOutIf(t, err)
	return server
}
