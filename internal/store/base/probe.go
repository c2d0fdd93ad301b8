package base

import (
	"context"
	"errors"
	"time"

	"gorm.io/gorm"
)

// probeTimeout bounds a probe, which needs two connections at once, where its context has no deadline. Otherwise a
// probe may take half of what is left: a slow server must not pass unasked.
const probeTimeout = 5 * time.Second

// Refusal is what a probe has found out of a server that must not be used.
type Refusal string

func (r Refusal) Error() string { return string(r) }

// errBothLocked is what no version of a server says of itself.
const errBothLocked = Refusal("the database gives a row that one transaction has locked to another one as well, so that several workers would claim one message")

// Probe runs a check of the server that needs two connections at once. It reports whether it has found out anything,
// which it has not where the pool does not have them in time. A Refusal counts, also if the time ends before its
// transactions do.
func Probe(ctx context.Context, db *gorm.DB, check func(context.Context) error) (asked bool, err error) {
	if pool, err := db.DB(); err != nil || pool.Stats().MaxOpenConnections == 1 {
		return false, nil
	}
	most := probeTimeout
	if deadline, ok := ctx.Deadline(); ok {
		most = time.Until(deadline) / 2
	}
	short, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err = check(short)
	_, refused := errors.AsType[Refusal](err)
	if !refused && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return false, nil
	}
	return true, err
}

// ProbeLocks returns an error if the server gives one row to two claims. lock locks a row as claims do, with SKIP
// LOCKED, and reports whether it got it. If another session has the row, nothing is found out.
func ProbeLocks(
	ctx context.Context, transaction func(context.Context, func(gorm.ConnPool) error) error,
	lock func(context.Context, gorm.ConnPool) (bool, error),
) error {
	return Doing("check that a locked row is not claimed", transaction(ctx, func(first gorm.ConnPool) error {
		if locked, err := lock(ctx, first); err != nil || !locked {
			return err
		}
		return transaction(ctx, func(second gorm.ConnPool) error {
			locked, err := lock(ctx, second)
			if locked {
				return errBothLocked
			}
			return err
		})
	}))
}
