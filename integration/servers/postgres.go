package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// PostgresOptions configures StartPostgres. The zero value is right for most tests.
type PostgresOptions struct {
	// Settings are added to the server's own settings, or replace them: fsync on,
	// synchronous_commit on, max_connections 300. Don't set listen_addresses, port or
	// unix_socket_directories.
	Settings map[string]string
	// Directory is where the server makes the directory of its data. Empty means that of temporary files. The account
	// "postgres" must be able to write there. Standbys are made in the same place.
	Directory string
}

// Postgres is a PostgreSQL server with a cluster of its own. After Kill, the next Start recovers
// from the write-ahead log.
type Postgres struct {
	*server
	binaries string // the directory of initdb and postgres
	settings map[string]string
	parent   string // of its directory
}

// StartPostgres makes a new cluster and waits until it answers. It takes the programs from the
// PATH, from /usr/lib/postgresql (the newest version) or from Maven Central. The superuser is
// "postgres", without a password.
func StartPostgres(options PostgresOptions) (*Postgres, error) {
	if err := missingPostgres.known(PostgresEnv); err != nil {
		return nil, err
	}
	binaries, err := usualPostgres.find()
	if err != nil {
		return nil, err
	}
	return startPostgresOf(binaries, options)
}

func startPostgresOf(binaries string, options PostgresOptions) (*Postgres, error) {
	p, err := newPostgres(binaries, options.Directory, map[string]string{
		"fsync": "on", "synchronous_commit": "on", "max_connections": "300",
	})
	if err != nil {
		return nil, err
	}
	maps.Copy(p.settings, options.Settings)
	initdb := p.program("initdb", "--pgdata", p.data(), "--username", "postgres", "--auth", "trust",
		"--encoding", "UTF8", "--locale", "C", "--no-sync")
	if err = wrap("PostgreSQL: make a cluster", run(startTimeout, initdb, p.account, p.log())); err == nil {
		err = p.Start()
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// newPostgres returns a server without data that does not run.
func newPostgres(binaries, parent string, settings map[string]string) (*Postgres, error) {
	account, err := unprivileged()
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	server, err := newServerIn(parent, "PostgreSQL", account)
	if err != nil {
		return nil, err
	}
	p := &Postgres{server: server, binaries: binaries, settings: settings, parent: parent}
	p.command, p.ready = p.postgres, func(ctx context.Context) error { return PingPostgres(ctx, p.DSN()) }
	p.quit = syscall.SIGINT // closes sessions, where SIGTERM would wait for them
	return p, nil
}

func (p *Postgres) postgres() *exec.Cmd {
	command := p.program("postgres", "-D", p.data(), "-p", fmt.Sprint(p.port),
		"-c", "listen_addresses="+loopback, "-c", "unix_socket_directories="+p.data())
	for name, value := range p.settings {
		command.Args = append(command.Args, "-c", name+"="+value)
	}
	return command
}

// program returns a command that the environment of this process does not influence, but for where
// its libraries are.
func (p *Postgres) program(name string, arguments ...string) *exec.Cmd {
	command := exec.Command(filepath.Join(p.binaries, name), arguments...)
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC",
		"LD_LIBRARY_PATH=" + os.Getenv("LD_LIBRARY_PATH")}
	return command
}

func (p *Postgres) data() string { return p.directory.join("data") }

// DSN returns the URL of the database "postgres". It stays the same across restarts.
func (p *Postgres) DSN() string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", address(p.port))
}

// PingPostgres returns an error unless the server at dsn answers a query.
func PingPostgres(ctx context.Context, dsn string) error {
	return RunStatements(ctx, dsn, "SELECT 1")
}

// RunStatements runs statements one after the other, on a connection of their own.
func RunStatements(ctx context.Context, dsn string, statements ...string) (err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// StartStandby starts a copy of p that follows it by streaming replication, and makes p wait for it
// at each commit. Once StartStandby returns, no commit is answered before the standby has it.
// Connections to p are lost. Freeze the standby to make it unresponsive. Close it like p.
func (p *Postgres) StartStandby() (*Postgres, error) {
	standby, err := newPostgres(p.binaries, p.parent, maps.Clone(p.settings))
	if err != nil {
		return nil, err
	}
	standby.settings["primary_conninfo"] = fmt.Sprintf("host=%s port=%d user=postgres", loopback, p.port)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err = p.copyTo(standby); err == nil {
		err = standby.Start()
	}
	if err == nil {
		err = RunStatements(ctx, p.DSN(), "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
	}
	if err == nil {
		err = poll(ctx, func(ctx context.Context) error {
			return RunStatements(ctx, p.DSN(),
				"SELECT 1 / count(*) FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'")
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("standby: %w", err), standby.Close())
	}
	return standby, nil
}

// copyTo copies the cluster's files while the server is stopped, because not every distribution of
// PostgreSQL has pg_basebackup.
func (p *Postgres) copyTo(standby *Postgres) error {
	if err := p.Stop(); err != nil {
		return err
	}
	copies := exec.Command("sh", "-c", `cp -Rp "$1" "$2" && touch "$2/standby.signal"`, "sh", p.data(), standby.data())
	return errors.Join(run(startTimeout, copies, p.account, standby.log()), p.Start())
}

// Promote makes a standby an independent server, as after the loss of its primary, and waits until
// it accepts writes.
func (p *Postgres) Promote() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	// The copy has the primary's configuration, and would wait for a standby.
	return wrap("PostgreSQL: promote", RunStatements(ctx, p.DSN(), "ALTER SYSTEM RESET synchronous_standby_names",
		"SELECT pg_reload_conf()", "SELECT pg_promote()"))
}
