package ops

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/store"
)

// access is how this package reaches the tables: by bounded statements on a few connections, with redacted texts, and
// with an audit row of each action.
type access struct {
	opts     Options // with the defaults filled in
	redactor redaction.Redactor
	store    store.Store
	singles  store.Singles
	// inUse has room for as many connections as are used at once.
	inUse    chan struct{}
	auditIDs auditIDs
	denials  denials
}

// connected runs one statement or transaction, limited to the statement timeout, on one of the connections that this
// Ops may use. One that runs must not wait for a second connection: all callers might wait for each other.
func (o *access) connected(ctx context.Context, run func(context.Context) error) error {
	select {
	case o.inUse <- struct{}{}:
		defer func() { <-o.inUse }()
	case <-ctx.Done():
		return fmt.Errorf("wait for a connection (option Connections is %d): %w", o.opts.Connections, ctx.Err())
	}
	ctx, cancel := context.WithTimeout(ctx, o.opts.StatementTimeout)
	defer cancel()
	return run(ctx)
}

// fewTimeouts is how many statement timeouts a whole call may take.
const fewTimeouts = 3

// bounded limits a whole call, however many statements it takes. If the database is slow, but no single statement times
// out, the call fails instead of keeping the database busy for minutes.
func (o *access) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, fewTimeouts*o.opts.StatementTimeout)
}

// pool returns a pool that runs each statement by itself, as connected does, outside of any transaction. The
// application's logger and plugins are bypassed, and every statement reaches the primary (contract 3.7).
func (o *access) pool(ctx context.Context) gorm.ConnPool { return o.singles.Pool(ctx) }

// largePool is pool for statements that may read thousands of rows (see store.Singles.WithoutJIT).
func (o *access) largePool(ctx context.Context) gorm.ConnPool {
	return o.singles.WithoutJIT().Pool(ctx)
}

// act runs work in a transaction of at most the statement timeout, and commits unless work fails.
func (o *access) act(ctx context.Context, work func(ctx context.Context, tx *gorm.DB) error) error {
	return o.connected(ctx, func(ctx context.Context) error {
		return o.store.Act(ctx, func(tx *gorm.DB) error { return work(ctx, tx) })
	})
}
