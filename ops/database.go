package ops

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/sealing"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
)

// access is how this package reaches the tables: by bounded statements on a few connections, with redacted texts, and
// with an audit row of each action.
type access struct {
	opts     Options // with the defaults filled in
	redactor redaction.Redactor
	sealer   sealing.Sealer
	store    store.Store
	singles  store.Singles
	// inUse has room for as many connections as are used at once.
	inUse    chan struct{}
	auditIDs *auditIDs
	denials  *denials
	// copied means that singles read the option Replica. Transactions use the primary all the same.
	copied bool
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

// Now returns the time by the clock that judges ages: the database's, or on SQLite and in tests the option Clock. End a
// filter with it to count and then act on what there is now (contract 3.5).
func (o *access) Now(ctx context.Context) (time.Time, error) {
	return o.store.ClockIn(ctx, o.pool(ctx), o.opts.Clock.Now())
}

// pool returns a pool that runs each statement by itself, as connected does, outside of any transaction. The
// application's logger and plugins are bypassed, and every statement reaches the primary (contract 3.7), unless this
// reads the option Replica.
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

// A bulk action goes on after the database was away: each of its statements waits for outageLimit at most, and each of
// its transactions is tried bulkTries times at most, in case it causes the loss of the connection.
const (
	outageLimit = time.Minute
	bulkTries   = 3
)

// lost reports whether the same may succeed once the database is back: it could not be reached, ended the connection or
// refused a statement that it would run at other times. That a statement was slow is no such reason.
func lost(err error) bool {
	return store.IsTransient(err) && (store.IsBusy(err) || !store.TimedOut(err)) && !errors.Is(err, pgxtx.ErrUnconfirmed)
}

// untilDatabaseAnswers repeats do, which changes nothing, until the database has answered.
func untilDatabaseAnswers(ctx context.Context, do func() error) error {
	until := time.Now().Add(outageLimit)
	retry := routine.Backoff{First: 100 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := do()
		if err == nil || !lost(err) || time.Now().After(until) || !retry.Wait(ctx) {
			return err
		}
	}
}

// committed reports whether the transaction that adds this audit row was committed, although it has failed with why. It
// waits until the database answers.
func (o *access) committed(ctx context.Context, auditID string, why error) (found bool, err error) {
	err = untilDatabaseAnswers(ctx, func() error {
		details, err := o.store.AuditDetails(ctx, o.pool(ctx), []string{auditID})
		found = len(details) > 0
		return err
	})
	if err != nil {
		return false, fmt.Errorf("%w; then %w", why, err)
	}
	return found, nil
}

// auditedThrough is audited for a part of a bulk action, which a lost connection does not end.
func (o *access) auditedThrough(ctx context.Context, actor Actor, action Action, target string,
	work func(ctx context.Context, tx *gorm.DB) (detail any, err error),
) error {
	for try := 1; ; try++ {
		id, err := o.auditedAs(ctx, actor, action, target, work)
		if errors.Is(err, errNothing) {
			return nil
		}
		if err == nil || !lost(err) || try == bulkTries || ctx.Err() != nil {
			return err
		}
		if found, err := o.committed(ctx, id, err); found || err != nil {
			return err
		}
	}
}
