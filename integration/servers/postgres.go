package servers

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// PostgresOptions configures StartPostgres. The zero value is right for most tests.
type PostgresOptions struct {
	// Binaries is the directory of initdb and postgres. By default they are looked up on the PATH,
	// then in /usr/lib/postgresql (the newest version), then downloaded from Maven Central. Don't
	// set it in tests that must run on other machines.
	Binaries string
	// Settings are added to the server's own settings, or replace them: fsync on,
	// synchronous_commit on, max_connections 300. Don't set listen_addresses, port or
	// unix_socket_directories.
	Settings map[string]string

	finder *postgresFinder // newPostgresFinder by default
}

// Postgres is a PostgreSQL server with a cluster of its own.
type Postgres struct {
	binaries  string
	account   *account
	port      int
	settings  map[string]string
	directory *directory

	mu      sync.Mutex
	process *process // nil when not running
	frozen  []int    // processes that Freeze stopped, the server's main process first
	guard   *guard   // set while frozen
	closed  bool
}

// StartPostgres makes a new cluster and waits until it answers. The superuser is "postgres",
// without a password. For root, the server runs as the account "postgres", or else "nobody". If
// PostgreSQL is missing, the error is one line that says where it was looked for and how to install
// it.
func StartPostgres(options PostgresOptions) (*Postgres, error) {
	binaries, err := options.find()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout) // does not limit a download
	defer cancel()
	p, err := newPostgres(ctx, binaries, options)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	for range 3 {
		if p.port, err = freePort(); err != nil {
			break
		}
		if err = p.Start(); !portTaken(err) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func newPostgres(ctx context.Context, binaries string, options PostgresOptions) (*Postgres, error) {
	account, err := unprivilegedAccount()
	if err != nil {
		return nil, err
	}
	directory, err := newDirectory("postgres", account)
	if err != nil {
		return nil, err
	}
	p := &Postgres{binaries: binaries, account: account, directory: directory, settings: map[string]string{
		"fsync": "on", "synchronous_commit": "on", "max_connections": "300",
	}}
	for name, value := range options.Settings {
		p.settings[name] = value
	}
	initdb := p.command("initdb", "--pgdata", p.data(), "--username", "postgres", "--auth", "trust",
		"--encoding", "UTF8", "--locale", "C", "--no-sync")
	if err := run(ctx, initdb, account, p.log()); err != nil {
		return nil, errors.Join(fmt.Errorf("make a cluster: %w", err), directory.remove())
	}
	return p, nil
}

func (o PostgresOptions) find() (string, error) {
	if o.Binaries != "" {
		return o.Binaries, nil
	}
	if o.finder != nil {
		return o.finder.find()
	}
	if err := knownMissing(PostgresEnv, Missing{Server: "PostgreSQL", Install: "postgresql or set " +
		PostgresEnv}); err != nil {
		return "", err
	}
	finder, err := newPostgresFinder()
	if err != nil {
		return "", fmt.Errorf("PostgreSQL: %w", err)
	}
	return finder.find()
}

// DSN returns the URL of the database "postgres". It stays the same across restarts.
func (p *Postgres) DSN() string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", address(p.port))
}

// PID returns the process ID of the server's main process, or 0 while it does not run.
func (p *Postgres) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil || !p.process.running() {
		return 0
	}
	return p.process.cmd.Process.Pid
}

// Start starts the server again on the same port and data, and waits until it answers. It does
// nothing if the server runs.
func (p *Postgres) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errors.New("PostgreSQL: start: closed")
	}
	if p.process != nil && p.process.running() {
		return nil
	}
	arguments := []string{"-D", p.data(), "-p", fmt.Sprint(p.port),
		"-c", "listen_addresses=" + loopback, "-c", "unix_socket_directories=" + p.data()}
	for name, value := range p.settings {
		arguments = append(arguments, "-c", name+"="+value)
	}
	process, err := startProcess(p.command("postgres", arguments...), p.account, p.log())
	if err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	p.process = process
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	err = process.waitUntil(ctx, func(ctx context.Context) error { return PingPostgres(ctx, p.DSN()) })
	if err != nil {
		err = fmt.Errorf("PostgreSQL: start: %w; its log: %s", err, logTail(p.log()))
		return errors.Join(err, p.kill())
	}
	return nil
}

// Stop shuts down fast, like pg_ctl: sessions are closed and all data is written. A frozen server
// is thawed first.
func (p *Postgres) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil {
		return nil
	}
	thawed := p.thaw()
	ended := p.process.end(syscall.SIGINT, stopTimeout)
	p.process = nil
	return wrap("PostgreSQL: stop", errors.Join(thawed, ended))
}

// Kill kills every process of the server with SIGKILL, like a crash. The next Start recovers from
// the write-ahead log.
func (p *Postgres) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return wrap("PostgreSQL: kill", p.kill())
}

// Freeze stops every process of the server with SIGSTOP. Connections stay open and get no response,
// as in a network partition. The kernel accepts new connections, which hang as well.
func (p *Postgres) Freeze() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil {
		return nil
	}
	if p.process == nil || !p.process.running() {
		return errors.New("PostgreSQL: freeze: not running")
	}
	return wrap("PostgreSQL: freeze", p.freeze())
}

// Thaw continues a frozen server.
func (p *Postgres) Thaw() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return wrap("PostgreSQL: thaw", p.thaw())
}

// Close kills the server and removes its data.
func (p *Postgres) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	return wrap("PostgreSQL: close", errors.Join(p.kill(), p.directory.remove()))
}

// command returns a command of the server, in an environment without PGPORT, PGDATA and the like.
func (p *Postgres) command(name string, arguments ...string) *exec.Cmd {
	command := exec.Command(filepath.Join(p.binaries, name), arguments...)
	command.Dir = p.directory.path
	command.Env = environmentWithout([]string{"PG", "LC_", "LANG"}, "LC_ALL=C", "TZ=UTC")
	return command
}

func (p *Postgres) data() string { return p.directory.join("data") }
func (p *Postgres) log() string  { return p.directory.join("server.log") }

// PingPostgres returns an error unless the server at dsn answers a query.
func PingPostgres(ctx context.Context, dsn string) (err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	_, err = conn.Exec(ctx, "SELECT 1")
	return err
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
