// Command withservers runs a command with real servers: it starts PostgreSQL,
// Kafka and Redis on this machine, tells the command where they are, and ends them
// when the command ends.
//
//	go run ./cmd/withservers -- go test ./...
//
// A server that INBOX_TEST_POSTGRES, INBOX_TEST_KAFKA or INBOX_TEST_REDIS names
// already is used as it is, if it answers. The exit status is the command's; 1, with one line
// that says what is missing, when a server cannot be had; 128 and the signal's
// number when the command was killed by one, as a shell has it.
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
)

func main() {
	// The command is tied to the life of the thread that starts it: let it be
	// the first, which ends with the process.
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
	case received := <-signals: // while they started
		return 128 + int(received.(syscall.Signal))
	default:
	}
	return runCommand(arguments, environment, parent, signals)
}

// startServers starts what the environment does not name, all at a time, and
// returns the variables for the command. end is never nil.
func startServers() (environment []string, end func() error, err error) {
	var (
		wait                            sync.WaitGroup
		postgres                        *servers.Postgres
		kafka                           *servers.Kafka
		redis                           *servers.Redis
		dsn, broker, url                string
		postgresErr, kafkaErr, redisErr error
	)
	wait.Go(func() {
		if dsn = os.Getenv(servers.PostgresEnv); dsn != "" {
			postgresErr = answers(servers.PostgresEnv, dsn, func(ctx context.Context) error { return servers.PingPostgres(ctx, dsn) })
		} else if postgres, postgresErr = servers.StartPostgres(servers.PostgresOptions{}); postgresErr == nil {
			dsn = postgres.DSN()
		}
	})
	wait.Go(func() {
		if broker = os.Getenv(servers.KafkaEnv); broker != "" {
			admin := servers.NewAdmin(strings.Split(broker, ",")...)
			defer admin.Close()
			kafkaErr = answers(servers.KafkaEnv, broker, admin.Ping)
		} else if kafka, kafkaErr = servers.StartKafka(servers.KafkaOptions{}); kafkaErr == nil {
			broker = strings.Join(kafka.Brokers(), ",")
		}
	})
	wait.Go(func() {
		if url = os.Getenv(servers.RedisEnv); url != "" {
			redisErr = answers(servers.RedisEnv, url, func(ctx context.Context) error { return servers.PingRedis(ctx, url) })
		} else if redis, redisErr = servers.StartRedis(servers.RedisOptions{}); redisErr == nil {
			url = redis.URL()
		}
	})
	wait.Wait()
	end = func() error {
		var ended []error
		if postgres != nil {
			ended = append(ended, postgres.Close())
		}
		if kafka != nil {
			ended = append(ended, kafka.Close())
		}
		if redis != nil {
			ended = append(ended, redis.Close())
		}
		return errors.Join(ended...)
	}
	environment = []string{servers.PostgresEnv + "=" + dsn, servers.KafkaEnv + "=" + broker, servers.RedisEnv + "=" + url}
	return environment, end, errors.Join(postgresErr, kafkaErr, redisErr)
}

func answers(variable, value string, ping func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := ping(ctx); err != nil {
		return fmt.Errorf("%s=%s does not answer: %w", variable, value, err)
	}
	return nil
}

// killAfter is how long the command has to end once it was told to.
const killAfter = 20 * time.Second

// runCommand runs the command in a process group of its own and passes signals
// on to all of it: go test would leave its test binaries behind. After the
// first one the group has killAfter to end, a second one kills it.
func runCommand(arguments, environment []string, parent int, signals <-chan os.Signal) int {
	command := exec.Command(arguments[0], arguments[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.Env = append(os.Environ(), environment...)
	command.SysProcAttr = attributes()
	if err := command.Start(); err != nil {
		return fail(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()

	orphaned := time.NewTicker(time.Second)
	defer orphaned.Stop()
	var overdue <-chan time.Time
	tell := func(sig syscall.Signal) {
		if overdue != nil {
			sig = syscall.SIGKILL
		} else {
			overdue = time.After(killAfter)
		}
		_ = syscall.Kill(-command.Process.Pid, sig) // fails when the group has ended: then ended tells
	}
	for {
		select {
		case received := <-signals:
			tell(received.(syscall.Signal))
		case <-overdue:
			tell(syscall.SIGKILL)
		case <-orphaned.C:
			// `go run` and make cannot pass on that they were killed.
			if os.Getppid() != parent && overdue == nil {
				tell(syscall.SIGTERM)
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

// fail prints one line for each of the joined errors, whatever lines they have.
func fail(err error) int {
	failures := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		failures = joined.Unwrap()
	}
	for _, failure := range failures {
		fmt.Fprintln(os.Stderr, "withservers:", strings.Join(strings.Fields(failure.Error()), " "))
	}
	return 1
}
