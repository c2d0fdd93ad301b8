package store

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/stdlib"
)

// These read no table; the channel is looked up in the catalogue's cache.
const (
	postgresChannel = `SELECT {channel}`
	postgresNotify  = `SELECT pg_notify({channel}, $1::text) WHERE pg_notification_queue_usage() < 0.5`
)

// postgresTold announces the unclaimed ones among the rows in added, all
// together, when the transaction commits; NULL as the origin's parameter
// announces nothing. A payload has less than 8,000 bytes: without keys it means
// all handlers. When a session elsewhere does not read the server's queue of
// notifications, and it runs full, commits with a notification fail: long before
// that there are none. The result is one row for the statement to join, because
// PostgreSQL leaves out what nobody reads.
func postgresTold(origin string) string {
	return `, unclaimed AS (
	SELECT json_agg(DISTINCT handler_key) AS keys FROM added WHERE worker_id IS NULL AND ` + origin + `::text IS NOT NULL
), told AS (
	SELECT count(pg_notify({channel}, json_build_object('from', ` + origin + `::text, 'keys',
		CASE WHEN octet_length(keys::text) < 7900 THEN keys END)::text))
	FROM unclaimed WHERE keys IS NOT NULL AND pg_notification_queue_usage() < 0.5
)`
}

// maxPayload keeps a notification, with what stands around its keys, below
// PostgreSQL's limit of 8,000 bytes.
const maxPayload = 7900

// announcement is the payload of a notification.
type announcement struct {
	From string   `json:"from"` // the origin that need not hear it; empty for nobody
	Keys []string `json:"keys"` // none means all
}

func (p *postgres) Notify(ctx context.Context, handlerKeys ...string) error {
	if !p.origin.Valid {
		return nil
	}
	return doing("notify", p.notify(ctx, announcement{From: p.origin.String, Keys: handlerKeys}))
}

func (p *postgres) notify(ctx context.Context, a announcement) error {
	payload, err := json.Marshal(a)
	if err == nil && len(payload) > maxPayload {
		payload, err = json.Marshal(announcement{From: a.From})
	}
	if err != nil {
		return err
	}
	_, err = exec(ctx, p.pool(ctx), p.text(postgresNotify), string(payload))
	return err
}

// Listener hears the announcements of other processes, on a connection of its
// own. It is not safe for concurrent use.
type Listener struct {
	conn   *pgx.Conn
	listen string // the statement
	origin string
}

func (p *postgres) CanListen(ctx context.Context) error {
	_, err := p.settings(ctx)
	return doing("listen", err)
}

// Listen connects beside the pool: a connection that waits for hours would be
// missing there, and with a pool of one nothing else would ever run. It has the
// settings of one of the pool's connections, made just as that.
func (p *postgres) Listen(ctx context.Context) (*Listener, error) {
	channels, err := query(ctx, p.pool(ctx), p.text(postgresChannel), value[string])
	if err != nil {
		return nil, doing("listen", err)
	}
	config, err := p.settings(ctx)
	if err != nil {
		return nil, doing("listen", err)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		p.renew(ctx, err)
		return nil, doing("listen", withContextError(ctx, err))
	}
	l := &Listener{conn: conn, listen: "LISTEN " + pgx.Identifier{channels[0]}.Sanitize(), origin: p.origin.String}
	if _, err = conn.Exec(ctx, l.listen); err == nil {
		err = p.verify(ctx, l)
	}
	if err != nil {
		l.Close()
		return nil, doing("listen", withContextError(ctx, err))
	}
	return l, nil
}

// verify proves that what is announced through the pool is heard: through a
// pooler that gives the connection's server to others between transactions,
// LISTEN succeeds and nothing ever comes.
func (p *postgres) verify(ctx context.Context, l *Listener) error {
	probe := uuid.NewString()
	if err := p.notify(ctx, announcement{Keys: []string{probe}}); err != nil {
		return fmt.Errorf("send a notification to oneself: %w", err)
	}
	for {
		heard, err := l.conn.WaitForNotification(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return ErrNotHeard
		case err != nil:
			return err
		case strings.Contains(heard.Payload, probe):
			return nil
		}
	}
}

// settings are those that a connection of the pool was made with.
func (p *postgres) settings(ctx context.Context) (config *pgx.ConnConfig, err error) {
	err = p.withConn(ctx, func(driverConn any) (err error) {
		config, err = settingsOf(driverConn)
		return err
	})
	return config, err
}

// renew makes the pool replace a connection if the server does not let one in
// any more that has its settings: where passwords expire, the new one has a new
// password.
func (p *postgres) renew(ctx context.Context, err error) {
	var refused *pgconn.PgError
	if errors.As(err, &refused) && strings.HasPrefix(refused.Code, "28") {
		_ = p.withConn(ctx, func(any) error { return driver.ErrBadConn })
	}
}

func (p *postgres) withConn(ctx context.Context, look func(driverConn any) error) error {
	pool, err := p.db.DB()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCannotListen, err)
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Raw(look)
}

// settingsOf looks below drivers that wrap another, as those for tracing do.
func settingsOf(driverConn any) (*pgx.ConnConfig, error) {
	for inner := driverConn; ; {
		switch c := inner.(type) {
		case *stdlib.Conn:
			config := c.Conn().Config()
			config.Tracer = nil         // the user's (contract 3.7)
			config.OnNotification = nil // pgx has filled in that connection's own
			// Ours waits with deadlines; a handler of the user's might cancel
			// or close the connection at each of them.
			config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
				return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()}
			}
			return config, nil
		case interface{ Raw() driver.Conn }:
			inner = c.Raw()
		default:
			return nil, fmt.Errorf("%w: its connections are %T", ErrCannotListen, driverConn)
		}
	}
}

// Next waits until other processes announce statuses, and returns the handler
// keys; none means any. When nothing is heard for as long as quiet, it looks
// whether the connection lives, for quiet at most. After an error the Listener
// is of no use: close it.
func (l *Listener) Next(ctx context.Context, quiet time.Duration) ([]string, error) {
	for {
		wait, cancel := context.WithTimeout(ctx, quiet)
		heard, err := l.conn.WaitForNotification(wait)
		if err != nil && ctx.Err() == nil && wait.Err() != nil && !l.conn.IsClosed() {
			heard, err = nil, l.ping(ctx, quiet)
		}
		cancel()
		if err != nil {
			return nil, doing("listen", withContextError(ctx, err))
		}
		if heard == nil {
			continue
		}
		var a announcement
		if err := json.Unmarshal([]byte(heard.Payload), &a); err != nil {
			return nil, nil // somebody else's, or of another version: whoever sent it means something
		}
		if a.From == "" || a.From != l.origin {
			return a.Keys, nil
		}
	}
}

// ping listens once more, which changes nothing.
func (l *Listener) ping(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := l.conn.Exec(ctx, l.listen)
	return err
}

// closeTimeout bounds the farewell to the server.
const closeTimeout = time.Second

// Close ends the connection.
func (l *Listener) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = l.conn.Close(ctx) // the connection is gone either way
}
