package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"
)

// PgBouncerOptions configures StartPgBouncer.
type PgBouncerOptions struct {
	// Server is the DSN of a database of the PostgreSQL server. It is required.
	Server string
	// Settings are added to the settings of pgbouncer.ini, or replace them. The default pool_mode is
	// transaction. Don't set listen_addr or listen_port.
	Settings map[string]string
}

// PgBouncer is a PgBouncer in front of one PostgreSQL server.
type PgBouncer struct {
	*server
	dsn string
}

// StartPgBouncer starts the pgbouncer found on the PATH, or in an sbin beside it, and waits until
// it answers. It serves every database of the server. Any user on this machine may connect without
// a password.
func StartPgBouncer(options PgBouncerOptions) (*PgBouncer, error) {
	binary, err := lookPath("pgbouncer")
	if err != nil {
		return nil, Missing{Server: "PgBouncer", Install: "pgbouncer"}.because(err.Error(), nil)
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
	connection := fmt.Sprintf("host=%s port=%s user=%s", target.Hostname(), target.Port(), target.User.Username())
	if password, ok := target.User.Password(); ok {
		connection += " password='" + strings.ReplaceAll(password, "'", "''") + "'"
	}
	target.Host = address(server.port)
	b := &PgBouncer{server: server, dsn: target.String()}
	settings := map[string]string{
		"listen_addr": loopback, "listen_port": fmt.Sprint(b.port), "unix_socket_dir": "", "auth_type": "any",
		"pool_mode": "transaction", "max_client_conn": "500",
		"ignore_startup_parameters": "extra_float_digits", // which drivers set when they connect
	}
	maps.Copy(settings, options.Settings)
	content := "[databases]\n* = " + connection + "\n[pgbouncer]\n" + string(configuration(settings, " = "))
	b.ready = func(ctx context.Context) error { return PingPostgres(ctx, b.dsn) }
	if err := b.startConfigured(binary, []byte(content)); err != nil {
		return nil, err
	}
	return b, nil
}

// DSN returns a DSN that leads through the pooler to the database of PgBouncerOptions.Server.
func (b *PgBouncer) DSN() string { return b.dsn }
