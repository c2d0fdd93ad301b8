// Package servers starts the real servers that tests use: PostgreSQL, also under Patroni, MariaDB,
// MySQL, Vitess, Apache Kafka, Redis, PgBouncer and HAProxy. They run on this machine for this process
// only. They listen on 127.0.0.1 only, and none outlives the process that started it. Each can be
// stopped, killed, frozen and started again on the same port and data, so that a test can check what
// happens to its clients.
//
// If a server is not installed, the function that starts it returns a *Missing: one line that says
// where the server was looked for and how to install it. For root, servers that refuse to run as
// root run as the account "postgres", or else "nobody".
//
// Every method is safe for concurrent use, in any order and more than once.
package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The environment variables that name running servers (see cmd/withservers): DSNs, a host:port and
// a URL.
const (
	PostgresEnv = "INBOX_TEST_POSTGRES"
	MariaDBEnv  = "INBOX_TEST_MARIADB"
	MySQLEnv    = "INBOX_TEST_MYSQL"
	KafkaEnv    = "INBOX_TEST_KAFKA"
	RedisEnv    = "INBOX_TEST_REDIS"
)

const (
	startTimeout = 90 * time.Second
	stopTimeout  = 30 * time.Second
	pollInterval = 25 * time.Millisecond
)

// server is what all servers share: a program that runs in a directory of its own.
type server struct {
	name      string // for errors
	port      int
	account   *syscall.Credential // nil for that of this process
	directory *directory
	command   func() *exec.Cmd            // starts the program
	ready     func(context.Context) error // fails until the server answers
	quit      syscall.Signal              // asks the program for an orderly end

	mu      sync.Mutex
	process *process // nil when not running
	frozen  *family  // what Freeze stopped; nil otherwise
	closed  bool
}

func newServer(name string, account *syscall.Credential) (*server, error) {
	return newServerIn("", name, account)
}

// newServerIn returns a server whose directory is made in another one.
func newServerIn(parent, name string, account *syscall.Credential) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	directory, err := newDirectory(parent, strings.ToLower(name), account)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &server{name: name, port: port, account: account, directory: directory, quit: syscall.SIGTERM}, nil
}

// startConfigured starts a program whose last argument is its configuration file, or closes the
// server.
func (s *server) startConfigured(program string, content []byte, flags ...string) error {
	file := s.directory.join("server.conf")
	s.command = func() *exec.Cmd { return exec.Command(program, append(slices.Clone(flags), file)...) }
	err := os.WriteFile(file, content, 0o644)
	if err == nil {
		err = s.Start()
	}
	if err != nil {
		err = errors.Join(err, s.Close())
	}
	return err
}

// Start starts the server again on the same port and data, and waits until it answers. It does
// nothing if the server runs.
func (s *server) Start() error { return s.locked("start", s.start) }

// Stop shuts the server down gracefully, and kills it if that takes too long. A frozen server is
// thawed first.
func (s *server) Stop() error { return s.locked("stop", s.stop) }

// Kill kills every process of the server with SIGKILL, like a crash.
func (s *server) Kill() error { return s.locked("kill", s.kill) }

// Freeze stops every process of the server with SIGSTOP. Connections stay open and get no response,
// as in a network partition. The kernel accepts new connections, which hang as well.
func (s *server) Freeze() error { return s.locked("freeze", s.freeze) }

// Thaw continues a frozen server.
func (s *server) Thaw() error { return s.locked("thaw", s.thaw) }

// Close kills the server and removes its data.
func (s *server) Close() error { return s.locked("close", s.close) }

func (s *server) locked(what string, do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return wrap(s.name+": "+what, do())
}

// PID returns the process ID of the server's main process, or 0 while it does not run.
func (s *server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running() {
		return 0
	}
	return s.process.pid()
}

func (s *server) start() error {
	if s.closed {
		return errors.New("closed")
	}
	if s.running() {
		return nil
	}
	process, err := startProcess(s.command(), s.account, s.log())
	if err != nil {
		return err
	}
	s.process = process
	if err := process.await(s.ready); err != nil {
		return errors.Join(fmt.Errorf("%w; its log: %s", err, logTail(s.log())), s.kill())
	}
	return nil
}

func (s *server) stop() error {
	if s.process == nil {
		return nil
	}
	thawed := s.thaw()
	ended := s.process.end(s.quit, stopTimeout)
	s.process = nil
	return errors.Join(thawed, ended)
}

func (s *server) freeze() (err error) {
	if s.frozen != nil {
		return nil
	}
	if !s.running() {
		return errors.New("not running")
	}
	s.frozen, err = freezeFamily(s.process.pid())
	return err
}

func (s *server) thaw() error {
	frozen := s.frozen
	s.frozen = nil
	return frozen.thaw()
}

func (s *server) kill() error {
	if s.process == nil {
		return nil
	}
	// Freeze first: a child that is started between the listing and the signals would survive.
	// PostgreSQL's would keep the shared memory that the next start needs.
	var frozen error
	if s.running() {
		frozen = s.freeze()
	}
	if s.frozen == nil && s.running() {
		s.frozen = &family{pids: []int{s.process.pid()}} // a server that cannot be frozen must not stay
	}
	killed := s.frozen.kill()
	<-s.process.done
	s.process, s.frozen = nil, nil
	return errors.Join(frozen, killed)
}

func (s *server) close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	return errors.Join(s.kill(), s.directory.remove())
}

func (s *server) running() bool { return s.process != nil && s.process.running() }
func (s *server) log() string   { return s.directory.join("server.log") }

// configuration returns settings as the lines of a file, in a fixed order.
func configuration(settings map[string]string, separator string) []byte {
	var file bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&file, "%s%s%s\n", name, separator, settings[name])
	}
	return file.Bytes()
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
