package postgres

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
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// These statements read no table. The channel is looked up in the catalogue's cache.
const (
	channelSQL = `SELECT {channel}`
	sessionSQL = `SELECT pg_backend_pid()`
	// notifyTxSQL sends nothing once the server's notification queue is half full: some session does not read it, and
	// if it runs full, commits that notify fail.
	notifyTxSQL = `SELECT pg_notify({channel}, $1::text) WHERE pg_notification_queue_usage() < 0.5`
	// probeSQL is sent even if the queue is full. Its transaction need not be durable: its commit does not wait for the
	// disk, and so other commits that notify do not wait for it.
	probeSQL  = `SELECT set_config('synchronous_commit', 'off', true), pg_notify({channel}, $1::text)`
	notifySQL = probeSQL + ` WHERE pg_notification_queue_usage() < 0.5`
)

// maxPayload keeps a notification, including the JSON around its keys, below PostgreSQL's limit of 8,000 bytes.
const maxPayload = 7900

// payload is a notification's content, in JSON.
type payload struct {
	From string   `json:"from"` // the origin that ignores it; empty if none does
	Keys []string `json:"keys"` // none means all
}

func (p *Store) Notify(ctx context.Context, handlerKeys ...string) error {
	if err := p.choose(ctx, p.Pool(ctx)); err != nil || p.isPortable() {
		return base.Doing("notify", err)
	}
	return base.Doing("notify", p.notify(ctx, p.Pool(ctx), notifySQL, payload{From: p.origin, Keys: handlerKeys}))
}

// NotifyTx notifies this process, too: it does not learn of the caller's commit.
func (p *Store) NotifyTx(ctx context.Context, tx *gorm.DB, handlerKeys ...string) error {
	pool, err := base.Joined(tx)
	if err == nil {
		err = p.choose(ctx, pool)
	}
	if err == nil && !p.isPortable() {
		err = p.notify(ctx, pool, notifyTxSQL, payload{Keys: handlerKeys})
	}
	return base.Doing("notify", err)
}

func (p *Store) notify(ctx context.Context, pool gorm.ConnPool, statement string, says payload) error {
	text, err := json.Marshal(says)
	if err == nil && len(text) > maxPayload {
		text, err = json.Marshal(payload{From: says.From})
	}
	if err != nil {
		return err
	}
	_, err = store.Exec(ctx, pool, p.Text(statement), string(text))
	return err
}

// Listen opens a connection outside of the pool. A connection that waits for hours would be missing in the pool, and in
// a pool of one nothing else would ever run. The new connection has the settings of a connection that was just taken
// from the pool.
func (p *Store) Listen(ctx context.Context) (store.Listener, error) {
	if p.isPortable() {
		return p.Common.Listen(ctx)
	}
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
	l := &listener{conn: conn, channel: channels[0], check: p.Text(channelSQL), listen: "LISTEN " + channel, unlisten: "UNLISTEN " + channel, origin: p.origin}
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

// rounds is how often alone compares sessions. A pooler hands out the session that was returned last. So the first
// round detects sharing unless there is much traffic, and with much traffic the connection's session changes from round
// to round.
const rounds = 8

// alone checks that the connection has a server session to itself, before any statement that would change the session.
// A pooler in transaction mode gives it changing sessions, and gives the same ones to the pool's connections. LISTEN
// would remain in sessions of the application, to which PostgreSQL would then send every notification.
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

// verify checks that a notification sent through the pool is received. Behind a pooler that gives the connection's
// server session to others between transactions, LISTEN succeeds and nothing ever arrives.
func (p *Store) verify(ctx context.Context, l *listener) error {
	probe := uuid.NewString()
	if err := p.notify(ctx, p.Pool(ctx), probeSQL, payload{Keys: []string{probe}}); err != nil {
		return fmt.Errorf("send a notification to oneself: %w", err)
	}
	for {
		notification, err := l.conn.WaitForNotification(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return store.ErrNotReceived
		case err != nil:
			return err
		case strings.Contains(notification.Payload, probe):
			return nil
		}
	}
}

// settings returns the settings of a connection of the pool.
func (p *Store) settings(ctx context.Context) (config *pgx.ConnConfig, err error) {
	err = p.withConn(ctx, func(driverConn any) (err error) {
		config, err = settingsOf(driverConn)
		return err
	})
	return config, err
}

// renew makes the pool replace a connection if the server no longer accepts logins with its settings: where passwords
// expire, the replacement has a new password.
func (p *Store) renew(ctx context.Context, err error) {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(refused.Code, "28") {
		_ = p.withConn(ctx, func(any) error { return driver.ErrBadConn })
	}
}

func (p *Store) withConn(ctx context.Context, use func(driverConn any) error) error {
	pool, err := p.DB.DB()
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrCannotListen, err)
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Raw(use)
}

// settingsOf returns a connection's settings. It unwraps drivers that wrap another one, such as those for tracing.
func settingsOf(driverConn any) (*pgx.ConnConfig, error) {
	for inner := driverConn; ; {
		switch c := inner.(type) {
		case *stdlib.Conn:
			config := c.Conn().Config()
			config.Tracer = nil         // the user's tracer is not for our statements
			config.OnNotification = nil // pgx has set the copied connection's handler
			// Our connection waits with deadlines. A handler of the user's might cancel or close the connection at each
			// of them.
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

// listener implements store.Listener on its own connection.
type listener struct {
	conn     *pgx.Conn
	channel  string
	check    string // the statement that returns the channel's name
	listen   string // the statement
	unlisten string
	session  string // the session that listens; empty if none does
	origin   string
}

// begin starts to listen and stores in which session.
func (l *listener) begin(ctx context.Context) (err error) {
	// One transaction: a pooler does not split it between sessions.
	l.session, err = l.inSession(ctx, l.listen)
	return err
}

// inSession runs a statement and returns the session in which it ran.
func (l *listener) inSession(ctx context.Context, statement string) (session string, err error) {
	results, err := l.conn.PgConn().Exec(ctx, statement+"; "+sessionSQL).ReadAll()
	if err != nil {
		return "", err
	}
	return string(results[len(results)-1].Rows[0][0]), nil
}

func (l *listener) Next(ctx context.Context, quiet time.Duration) ([]string, error) {
	for {
		wait, cancel := context.WithTimeout(ctx, quiet)
		notification, err := l.conn.WaitForNotification(wait)
		if err != nil && ctx.Err() == nil && wait.Err() != nil && !l.conn.IsClosed() {
			notification, err = nil, l.ping(ctx, quiet)
		}
		cancel()
		if err != nil {
			return nil, base.Doing("listen", store.WithContextError(ctx, err))
		}
		if notification == nil {
			continue
		}
		var says payload
		if err := json.Unmarshal([]byte(notification.Payload), &says); err != nil {
			return nil, nil // of another version or another sender: poll every handler
		}
		if says.From == "" || says.From != l.origin {
			return says.Keys, nil
		}
	}
}

// ping fails if the connection is dead, or if the statuses' table was dropped and created again: others notify on the
// channel of the table there is now.
func (l *listener) ping(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var channel string
	err := l.conn.QueryRow(ctx, l.check, pgx.QueryExecModeExec).Scan(&channel)
	if err == nil && channel != l.channel {
		err = errTableReplaced
	}
	return err
}

// errTableReplaced ends a listener, so that the next one listens for the table there is now.
var errTableReplaced = errors.New("the statuses' table was replaced")

// end stops listening. Closing the connection does that too, except for a session that a pooler keeps, in case alone
// has not detected the pooler. end then runs UNLISTEN repeatedly, a bounded number of times, until it reaches that
// session.
func (l *listener) end(ctx context.Context) {
	for range 10 * rounds {
		if session, err := l.inSession(ctx, l.unlisten); err != nil || session == l.session {
			return // the connection is unusable, or the session was found
		}
	}
}

// closeTimeout bounds UNLISTEN and closing the connection.
const closeTimeout = time.Second

func (l *listener) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if l.session != "" && !l.conn.IsClosed() {
		l.end(ctx)
	}
	_ = l.conn.Close(ctx) // the connection is gone either way
}
