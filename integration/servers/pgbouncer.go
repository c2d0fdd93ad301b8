package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"strings"
)

// PgBouncerOptions configures StartPgBouncer.
type PgBouncerOptions struct {
	// Server is the DSN of the PostgreSQL server. It is required.
	Server string
	// Settings are added to the settings of pgbouncer.ini, or replace them. The default pool_mode is
	// transaction. Don't set listen_addr or listen_port.
	Settings map[string]string
}

// PgBouncer is a PgBouncer in front of one PostgreSQL server.
type PgBouncer struct {
	*server
	port int
}

// StartPgBouncer starts the pgbouncer found on the PATH, or in an sbin beside it, and waits until
// it answers. It serves every database of the server without passwords. For root, it runs as the
// account "postgres", or else "nobody". If pgbouncer is missing, the error is one line that says
// where it was looked for and how to install it.
func StartPgBouncer(options PgBouncerOptions) (*PgBouncer, error) {
	binary, err := lookPath("pgbouncer")
	if err != nil {
		return nil, &Missing{Server: "PgBouncer", Why: err.Error(), Install: "pgbouncer"}
	}
	target, targetErr := url.Parse(options.Server)
	account, accountErr := unprivileged()
	if err := errors.Join(targetErr, accountErr); err != nil {
		return nil, fmt.Errorf("PgBouncer: %w", err)
	}
	server, err := newServer("PgBouncer", account)
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{server: server}
	configured := server.directory.join("pgbouncer.ini")
	b.command = func() *exec.Cmd {
		command := exec.Command(binary, configured)
		command.Env = environmentWithout("PG")
		return command
	}
	b.ready = func(ctx context.Context) error { return PingPostgres(ctx, b.DSN(options.Server)) }
	err = b.startNew(func() (err error) {
		if b.port, err = freePort(); err != nil {
			return err
		}
		return os.WriteFile(configured, b.configuration(target, options.Settings), 0o644)
	})
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// configuration returns settings as in production, except that any user on this machine may
// connect. extra_float_digits is what drivers set when they connect.
func (b *PgBouncer) configuration(target *url.URL, added map[string]string) []byte {
	settings := map[string]string{
		"listen_addr": loopback, "listen_port": fmt.Sprint(b.port), "unix_socket_dir": "", "auth_type": "any",
		"pool_mode": "transaction", "max_client_conn": "500", "ignore_startup_parameters": "extra_float_digits",
	}
	maps.Copy(settings, added)
	connection := fmt.Sprintf("host=%s port=%s user=%s", target.Hostname(), target.Port(), target.User.Username())
	if password, ok := target.User.Password(); ok {
		connection += " password='" + strings.ReplaceAll(password, "'", "''") + "'"
	}
	return append([]byte("[databases]\n* = "+connection+"\n[pgbouncer]\n"), configuration(settings, " = ")...)
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
