// Package servers starts the real servers that tests use: PostgreSQL, Apache Kafka and Redis. They
// run on this machine for this process only. They listen on 127.0.0.1 only, and none outlives the
// process that started it. Each can be stopped, killed, frozen and started again on the same port
// and data, so that a test can check what happens to its clients.
//
// Every method is safe for concurrent use, in any order and more than once.
package servers

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// The environment variables that name running servers (see cmd/withservers): a DSN, a host:port and
// a URL.
const (
	PostgresEnv = "INBOX_TEST_POSTGRES"
	KafkaEnv    = "INBOX_TEST_KAFKA"
	RedisEnv    = "INBOX_TEST_REDIS"
)

const (
	loopback     = "127.0.0.1"
	startTimeout = 90 * time.Second
	stopTimeout  = 30 * time.Second
	pollInterval = 25 * time.Millisecond
)

// givenPorts are the ports that this process has used or found taken.
var givenPorts sync.Map

// freePort finds a port on which no process listens. It searches below the range of ports for
// outgoing connections (32768 upwards on Linux). Otherwise, while a server is down, any client on
// the machine could be given the port that the server must come back to. It returns no port twice,
// because a previous caller may not listen yet or be down.
func freePort() (int, error) {
	const low, high, tries = 20000, 32000, 200
	for range tries {
		port := low + rand.IntN(high-low)
		if _, given := givenPorts.LoadOrStore(port, true); given {
			continue
		}
		listener, err := net.Listen("tcp", address(port))
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			return 0, fmt.Errorf("free port %d: %w", port, err)
		}
		return port, nil
	}
	return 0, fmt.Errorf("no free port between %d and %d on %s in %d tries", low, high, loopback, tries)
}

func address(port int) string { return fmt.Sprintf("%s:%d", loopback, port) }

// portTaken reports whether a server's log says that another process took its port first.
func portTaken(err error) bool {
	return err != nil && strings.Contains(strings.ToLower(err.Error()), "address already in use")
}

// logTail returns the end of a log as one line, for an error message.
func logTail(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	const limit = 1500
	text := strings.Join(strings.FieldsFunc(string(content), func(r rune) bool { return r == '\n' || r == '\r' }), " | ")
	if len(text) > limit {
		text = "…" + text[len(text)-limit:]
	}
	if text == "" {
		return "its log is empty"
	}
	return text
}
