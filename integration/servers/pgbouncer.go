package servers

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

// PgBouncerOptions configures StartPgBouncer.
type PgBouncerOptions struct {
	// Server is the DSN of the PostgreSQL server. It is required.
	Server string
	// Mode is "transaction", "session" or "statement". The default is "transaction".
	Mode string
	// PoolSize is how many connections to the server the pooler has for each database. The default
	// is 20.
	PoolSize int
	// Unreset leaves a client's session state in place for the next client, in session mode too. By
	// default PgBouncer runs DISCARD ALL there.
	Unreset bool
}

// PgBouncer is a PgBouncer in front of one PostgreSQL server.
type PgBouncer struct {
	port      int
	server    *url.URL
	directory *directory
	process   *process

	mu     sync.Mutex
	closed bool
}

// StartPgBouncer starts the pgbouncer found on the PATH, or in an sbin beside it, and waits until
// it answers. It serves every database of the server without passwords. For root, it runs as the
// account "postgres", or else "nobody". If pgbouncer is missing, the error is one line that says
// where it was looked for and how to install it.
func StartPgBouncer(options PgBouncerOptions) (*PgBouncer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	binary, err := lookPath("pgbouncer")
	if err != nil {
		return nil, &Missing{Server: "PgBouncer", Why: err.Error(), Install: "pgbouncer"}
	}
	b, err := newPgBouncer(options)
	if err != nil {
		return nil, fmt.Errorf("PgBouncer: %w", err)
	}
	for range 3 {
		if err = b.start(ctx, binary, options); !portTaken(err) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("PgBouncer: %w", err), b.Close())
	}
	return b, nil
}

func newPgBouncer(options PgBouncerOptions) (*PgBouncer, error) {
	server, err := url.Parse(options.Server)
	if err != nil {
		return nil, fmt.Errorf("server %q: %w", options.Server, err)
	}
	account, err := unprivilegedAccount()
	if err != nil {
		return nil, err
	}
	directory, err := newDirectory("pgbouncer", account)
	if err != nil {
		return nil, err
	}
	return &PgBouncer{server: server, directory: directory}, nil
}

func (b *PgBouncer) start(ctx context.Context, binary string, options PgBouncerOptions) (err error) {
	if b.port, err = freePort(); err != nil {
		return err
	}
	account, err := unprivilegedAccount()
	if err != nil {
		return err
	}
	if err := os.WriteFile(b.directory.join("pgbouncer.ini"), []byte(b.settings(options)), 0o644); err != nil {
		return err
	}
	command := exec.Command(binary, b.directory.join("pgbouncer.ini"))
	command.Dir = b.directory.path
	command.Env = environmentWithout([]string{"PG"})
	if b.process, err = startProcess(command, account, b.log()); err != nil {
		return err
	}
	if err := b.process.waitUntil(ctx, func(ctx context.Context) error {
		return PingPostgres(ctx, b.DSN(options.Server))
	}); err != nil {
		b.process.signal(syscall.SIGKILL)
		return errors.Join(fmt.Errorf("%w: %s", err, logTail(b.log())), b.process.waitEnd())
	}
	return nil
}

// settings returns settings as in production, except that any user on this machine may connect.
// extra_float_digits is what drivers set when they connect.
func (b *PgBouncer) settings(options PgBouncerOptions) string {
	mode, size := options.Mode, options.PoolSize
	if mode == "" {
		mode = "transaction"
	}
	if size == 0 {
		size = 20
	}
	target := fmt.Sprintf("* = host=%s port=%s user=%s", b.server.Hostname(), b.server.Port(), b.server.User.Username())
	if password, ok := b.server.User.Password(); ok {
		target += " password='" + strings.ReplaceAll(password, "'", "''") + "'"
	}
	reset := "DISCARD ALL"
	if options.Unreset {
		reset = ""
	}
	return strings.Join([]string{
		"[databases]",
		target,
		"[pgbouncer]",
		"listen_addr = " + loopback,
		fmt.Sprintf("listen_port = %d", b.port),
		"unix_socket_dir =",
		"auth_type = any",
		"pool_mode = " + mode,
		fmt.Sprintf("default_pool_size = %d", size),
		"server_reset_query = " + reset, // in session mode only
		"max_client_conn = 500",
		"ignore_startup_parameters = extra_float_digits",
		"",
	}, "\n")
}

// DSN returns a DSN that leads through the pooler to the database that dsn names.
func (b *PgBouncer) DSN(dsn string) string {
	through, err := url.Parse(dsn)
	if err != nil {
		return dsn // connecting will report the error
	}
	through.Host = address(b.port)
	return through.String()
}

// Close kills the pooler and removes its files.
func (b *PgBouncer) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	var ended error
	if b.process != nil {
		b.process.signal(syscall.SIGKILL)
		ended = b.process.waitEnd()
	}
	return wrap("PgBouncer: close", errors.Join(ended, b.directory.remove()))
}

func (b *PgBouncer) log() string { return b.directory.join("server.log") }
