package postgres

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// These read no table; the channel is looked up in the catalogue's cache.
const (
	channelSQL = `SELECT {channel}`
	sessionSQL = `SELECT pg_backend_pid()`
	notifySQL  = `SELECT pg_notify({channel}, $1::text) WHERE pg_notification_queue_usage() < 0.5`
)

// told announces the unclaimed ones among the rows in added, all
// together, when the transaction commits; NULL as the origin's parameter
// announces nothing. A payload has less than 8,000 bytes: without keys it means
// all handlers. When a session elsewhere does not read the server's queue of
// notifications, and it runs full, commits with a notification fail: long before
// that there are none. The result is one row for the statement to join, because
// PostgreSQL leaves out what is not read.
func told(origin string) string {
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
	From string   `json:"from"` // the origin that ignores it; empty if none does
	Keys []string `json:"keys"` // none means all
}

func (p *Store) Notify(ctx context.Context, handlerKeys ...string) error {
	if !p.origin.Valid {
		return nil
	}
	return base.Doing("notify", p.notify(ctx, announcement{From: p.origin.String, Keys: handlerKeys}))
}

func (p *Store) notify(ctx context.Context, a announcement) error {
	payload, err := json.Marshal(a)
	if err == nil && len(payload) > maxPayload {
		payload, err = json.Marshal(announcement{From: a.From})
	}
	if err != nil {
		return err
	}
	_, err = store.Exec(ctx, p.Pool(ctx), p.Text(notifySQL), string(payload))
	return err
}

func (p *Store) CanListen(ctx context.Context) error {
	_, err := p.settings(ctx)
	return base.Doing("listen", err)
}

// Listen connects beside the pool: a connection that waits for hours would be
// missing there, and with a pool of one nothing else would ever run. It has the
// settings of one of the pool's connections, made just as that.
func (p *Store) Listen(ctx context.Context) (store.Listener, error) {
	channels, err := store.Query(ctx, p.Pool(ctx), p.Text(channelSQL), store.Value[string])
	if err != nil {
		return nil, base.Doing("listen", err)
	}
	config, err := p.settings(ctx)
	if err != nil {
		return nil, base.Doing("listen", err)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		p.renew(ctx, err)
		return nil, base.Doing("listen", store.WithContextError(ctx, err))
	}
	channel := pgx.Identifier{channels[0]}.Sanitize()
	l := &listener{conn: conn, listen: "LISTEN " + channel, unlisten: "UNLISTEN " + channel, origin: p.origin.String}
	if err = p.alone(ctx, conn); err == nil {
		err = l.begin(ctx)
	}
	if err == nil {
		err = p.verify(ctx, l)
	}
	if err != nil {
		l.Close()
		return nil, base.Doing("listen", store.WithContextError(ctx, err))
	}
	return l, nil
}

// rounds is how often alone looks. A pooler gives out the session that was last
// given back, so that the first round shows it unless there is much traffic,
// and then the connection's own session changes from round to round.
const rounds = 8

// alone finds out, before there is anything to leave behind, whether the
// connection has a session of the server to itself. A pooler in transaction mode
// gives it now this one, now that, and the pool's connections the same ones:
// LISTEN would stay in sessions of the application's, to which PostgreSQL would
// send every notification from then on.
func (p *Store) alone(ctx context.Context, conn *pgx.Conn) error {
	pool, err := p.DB.DB()
	if err != nil {
		return err
	}
	other, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer other.Close()
	var first, own, others int64
	for i := range rounds {
		if err := conn.QueryRow(ctx, sessionSQL).Scan(&own); err != nil {
			return err
		}
		if err := other.QueryRowContext(ctx, sessionSQL).Scan(&others); err != nil {
			return err
		}
		if i == 0 {
			first = own
		}
		if own != first || own == others {
			return store.ErrSharedSession
		}
	}
	return nil
}

// verify proves that what is announced through the pool is heard: through a
// pooler that gives the connection's server to others between transactions,
// LISTEN succeeds and nothing ever comes.
func (p *Store) verify(ctx context.Context, l *listener) error {
	probe := uuid.NewString()
	if err := p.notify(ctx, announcement{Keys: []string{probe}}); err != nil {
		return fmt.Errorf("send a notification to oneself: %w", err)
	}
	for {
		heard, err := l.conn.WaitForNotification(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return store.ErrNotHeard
		case err != nil:
			return err
		case strings.Contains(heard.Payload, probe):
			return nil
		}
	}
}

// settings are those that a connection of the pool was made with.
func (p *Store) settings(ctx context.Context) (config *pgx.ConnConfig, err error) {
	err = p.withConn(ctx, func(driverConn any) (err error) {
		config, err = settingsOf(driverConn)
		return err
	})
	return config, err
}

// renew makes the pool replace a connection if the server does not let one in
// any more that has its settings: where passwords expire, the new one has a new
// password.
func (p *Store) renew(ctx context.Context, err error) {
	var refused *pgconn.PgError
	if errors.As(err, &refused) && strings.HasPrefix(refused.Code, "28") {
		_ = p.withConn(ctx, func(any) error { return driver.ErrBadConn })
	}
}

func (p *Store) withConn(ctx context.Context, look func(driverConn any) error) error {
	pool, err := p.DB.DB()
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrCannotListen, err)
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
			return nil, fmt.Errorf("%w: its connections are %T", store.ErrCannotListen, driverConn)
		}
	}
}
