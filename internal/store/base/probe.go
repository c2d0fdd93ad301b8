package base

import (
	"context"
	"errors"
	"time"

	"gorm.io/gorm"
)

// probeTimeout bounds a probe, which needs two connections at once.
const probeTimeout = 2 * time.Second

// errBothLocked is what no version of a server says of itself.
var errBothLocked = errors.New("the database gives a row that one transaction has locked to another one as well, so that several workers would claim one message")

// Probe runs a check of the server that needs two connections at once. It finds out nothing, and returns nil, where the
// pool does not have them in time.
func Probe(ctx context.Context, db *gorm.DB, check func(context.Context) error) error {
	if pool, err := db.DB(); err != nil || pool.Stats().MaxOpenConnections == 1 {
		return nil
	}
	short, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := check(short)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil
	}
	return err
}

// ProbeLocks returns an error if the server gives one row to two claims. lock locks a row with FOR UPDATE SKIP LOCKED
// and reports whether it got it. If another session has the row, nothing is found out.
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
