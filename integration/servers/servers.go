// Package servers starts the real servers that tests run against, PostgreSQL,
// Apache Kafka and Redis, on this machine and for this process alone: they listen on
// 127.0.0.1 only, and none outlives the process that started it. Each can be
// stopped, killed, frozen and started again on the same port and data, so that
// a test can prove what happens to those who depend on it.
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

// Environment variables that name servers which run already (see
// cmd/withservers): a DSN, a host:port and a URL.
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

// givenPorts are those that this process has used or found taken.
var givenPorts sync.Map

// freePort finds a port nobody listens on. It searches below the range that
// outgoing connections take their ports from (32768 upwards on Linux):
// otherwise, while a server is down, any client on the machine could be given
// the very port that the server must come back to. It gives none out twice: who
// has it may not listen yet, or be down.
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

// portTaken tells from a server's log that it lost the race for its port.
func portTaken(err error) bool {
	return err != nil && strings.Contains(strings.ToLower(err.Error()), "address already in use")
}

// logTail returns the end of a log on one line, for an error message.
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
