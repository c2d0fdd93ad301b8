package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

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
var errTableReplaced = errors.New("the statuses' table was dropped and created again")

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
