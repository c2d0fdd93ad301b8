package ops

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
)

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
