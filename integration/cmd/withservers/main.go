// Command withservers runs a command with real servers. It starts PostgreSQL, MariaDB, MySQL, Kafka
// and Redis on this machine, tells the command their addresses, and stops them when the command ends.
//
//	go run ./cmd/withservers -- go test ./...
//
// A server that INBOX_TEST_POSTGRES, INBOX_TEST_MARIADB, INBOX_TEST_MYSQL, INBOX_TEST_KAFKA or
// INBOX_TEST_REDIS already names is used as it is, and must answer. A server that this machine does
// not have is named in a line and left out: its variable stays empty, and the variable with the suffix
// _MISSING says why. Under INBOX_TEST_REQUIRE=1 or CI=true, withservers fails instead.
//
// The exit status is the command's. It is 1 when a required server is missing or a server does not
// start. It is 128 plus the signal's number when a signal killed the command, as in a shell.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func main() {
	// The kernel kills the command when the thread that started it ends. Use the first thread,
	// which ends with the process.
	runtime.LockOSThread()
	os.Exit(run(os.Args[1:]))
}

func run(arguments []string) (status int) {
	if len(arguments) > 0 && arguments[0] == "--" {
		arguments = arguments[1:]
	}
	if len(arguments) == 0 {
		return fail(errors.New("usage: withservers -- command [arguments…]"))
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)

	parent := os.Getppid()
	environment, end, err := startServers()
	defer func() {
		if err := end(); err != nil {
			status = fail(err)
		}
	}()
	if err != nil {
		return fail(err)
	}
	select {
	case received := <-signals: // during the start
		return 128 + int(received.(syscall.Signal))
	default:
	}
	return runCommand(arguments, environment, parent, signals)
}

// startServers starts all servers that the environment does not name, concurrently, and returns the
// variables for the command. end is never nil.
func startServers() (environment []string, end func() error, err error) {
	all := []*server{
		{variable: servers.PostgresEnv, ping: servers.PingPostgres, start: func() (string, func() error, error) {
			// Without fsync a commit survives a killed server, but not a power cut, which no test
			// makes. Tests that measure or kill a server start their own.
			p, err := servers.StartPostgres(servers.PostgresOptions{Settings: map[string]string{"fsync": "off"}})
			if err != nil {
				return "", nil, err
			}
			return p.DSN(), p.Close, nil
		}},
		{variable: servers.MariaDBEnv, ping: servers.PingMySQL, start: startMySQL(servers.StartMariaDB)},
		{variable: servers.MySQLEnv, ping: servers.PingMySQL, start: startMySQL(servers.StartMySQL)},
		{variable: servers.KafkaEnv, ping: pingKafka, start: func() (string, func() error, error) {
			k, err := servers.StartKafka(servers.KafkaOptions{})
			if err != nil {
				return "", nil, err
			}
			return strings.Join(k.Brokers(), ","), k.Close, nil
		}},
		{variable: servers.RedisEnv, ping: servers.PingRedis, start: func() (string, func() error, error) {
			r, err := servers.StartRedis(servers.RedisOptions{})
			if err != nil {
				return "", nil, err
			}
			return r.URL(), r.Close, nil
		}},
	}
	var wait sync.WaitGroup
	for _, s := range all {
		wait.Go(s.have)
	}
	wait.Wait()
	var failed, ended []error
	for _, s := range all {
		environment = append(environment, s.variable+"="+s.address, s.variable+servers.MissingSuffix+"="+s.missing)
		failed = append(failed, s.err)
	}
	end = func() error {
		for _, s := range all {
			if s.close != nil {
				ended = append(ended, s.close())
			}
		}
		return errors.Join(ended...)
	}
	return environment, end, errors.Join(failed...)
}

// startMySQL starts a server whose commits survive its death, but no power cut, as those of PostgreSQL.
func startMySQL(start func(servers.MySQLOptions) (*servers.MySQL, error)) func() (string, func() error, error) {
	return func() (string, func() error, error) {
		m, err := start(servers.MySQLOptions{Settings: map[string]string{
			"innodb_flush_log_at_trx_commit": "0", "innodb_doublewrite": "0",
		}})
		if err != nil {
			return "", nil, err
		}
		return m.DSN(), m.Close, nil
	}
}

// server is a server that the command may need.
type server struct {
	variable string
	ping     func(ctx context.Context, address string) error
	start    func() (address string, end func() error, err error)

	address string
	close   func() error // nil unless withservers started it
	missing string       // why it is missing
	err     error
}

// have uses the server that the environment names, or starts one. If this machine does not have the
// server, it is named and left out, unless it is required.
func (s *server) have() {
	if s.address = os.Getenv(s.variable); s.address != "" {
		s.err = s.answers()
		return
	}
	s.address, s.close, s.err = s.start()
	var missing *servers.Missing
	if !errors.As(s.err, &missing) || testenv.Required() {
		return
	}
	s.missing, s.err = missing.Why, nil
	printError(fmt.Errorf("left out: %w", missing))
}

func pingKafka(ctx context.Context, brokers string) error {
	admin := servers.NewAdmin(strings.Split(brokers, ",")...)
	defer admin.Close()
	return admin.Ping(ctx)
}

func (s *server) answers() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.ping(ctx, s.address); err != nil {
		return fmt.Errorf("%s=%s does not answer: %w", s.variable, s.address, err)
	}
	return nil
}

// killAfter is how long the command may take to end after a signal.
const killAfter = 20 * time.Second

// runCommand runs the command in a process group of its own and forwards signals to the whole
// group, because go test would leave its test binaries running. After the first signal the group
// has killAfter to end. A second signal kills it.
func runCommand(arguments, environment []string, parent int, signals <-chan os.Signal) int {
	command := exec.Command(arguments[0], arguments[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.Env = append(os.Environ(), environment...)
	command.SysProcAttr = servers.ChildAttributes()
	if err := command.Start(); err != nil {
		return fail(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()

	orphaned := time.NewTicker(time.Second)
	defer orphaned.Stop()
	var overdue <-chan time.Time
	signalGroup := func(sig syscall.Signal) {
		if overdue != nil {
			sig = syscall.SIGKILL
		} else {
			overdue = time.After(killAfter)
		}
		_ = syscall.Kill(-command.Process.Pid, sig) // fails if the group has ended, which ended reports
	}
	for {
		select {
		case received := <-signals:
			signalGroup(received.(syscall.Signal))
		case <-overdue:
			signalGroup(syscall.SIGKILL)
		case <-orphaned.C:
			// `go run` and make do not forward the signal that killed them.
			if os.Getppid() != parent && overdue == nil {
				signalGroup(syscall.SIGTERM)
			}
		case err := <-ended:
			return exitStatus(err)
		}
	}
}

func exitStatus(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		return fail(err)
	}
	if state, ok := exit.Sys().(syscall.WaitStatus); ok && state.Signaled() {
		return 128 + int(state.Signal())
	}
	return exit.ExitCode()
}

// fail prints one line for each of the joined errors, even if an error has several lines.
func fail(err error) int {
	failures := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		failures = joined.Unwrap()
	}
	for _, failure := range failures {
		printError(failure)
	}
	return 1
}

func printError(err error) {
	fmt.Fprintln(os.Stderr, "withservers:", strings.Join(strings.Fields(err.Error()), " "))
}
