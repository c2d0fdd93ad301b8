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

// within limits one statement or transaction to the statement timeout.
func (o *access) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, o.opts.StatementTimeout)
}

// connect waits for one of the connections that this Ops may use. A caller that has one must not wait for a second: all
// callers might wait for each other.
func (o *access) connect(ctx context.Context) (release func(), err error) {
	select {
	case o.inUse <- struct{}{}:
		return func() { <-o.inUse }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a connection (option Connections is %d): %w", o.opts.Connections, ctx.Err())
	}
}

// fewTimeouts is how many statement timeouts a whole call may take.
const fewTimeouts = 3

// bounded limits a whole call, however many statements it takes. If the database is slow, but no single statement times
// out, the call fails instead of keeping the database busy for minutes.
func (o *access) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, fewTimeouts*o.opts.StatementTimeout)
}

// read runs a query outside of any transaction. The application's logger and plugins are bypassed, and every statement
// reaches the primary (contract 3.7).
func read[T any](ctx context.Context, o *access, query func(context.Context, gorm.ConnPool) (T, error)) (T, error) {
	return readFrom(ctx, o, o.singles, query)
}

// readMany is read for a query that may read thousands of rows (see store.Singles.WithoutJIT).
func readMany[T any](ctx context.Context, o *access, query func(context.Context, gorm.ConnPool) (T, error)) (T, error) {
	return readFrom(ctx, o, o.singles.WithoutJIT(), query)
}

func readFrom[T any](ctx context.Context, o *access, from store.Singles,
	query func(context.Context, gorm.ConnPool) (T, error)) (found T, err error) {
	release, err := o.connect(ctx)
	if err != nil {
		return found, err
	}
	defer release()
	ctx, cancel := o.within(ctx)
	defer cancel()
	return query(ctx, from.Pool(ctx))
}

// act runs work in a transaction of at most the statement timeout, and commits unless work fails.
func (o *access) act(ctx context.Context, work func(ctx context.Context, tx *gorm.DB) error) error {
	release, err := o.connect(ctx)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := o.within(ctx)
	defer cancel()
	return o.store.Act(ctx, func(tx *gorm.DB) error { return work(ctx, tx) })
}
