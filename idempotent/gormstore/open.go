package gormstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/store"
)

// open begins a transaction and adds the marker to it. On SQLite both wait for the one writer, for as long as the
// connection's busy_timeout. That may be shorter than LockTimeout, so open tries again. It waits for the only
// connection of a pool in the same way.
func (s *Store) open(ctx context.Context, w work) (tx *handlertx.Tx, added bool, err error) {
	began := time.Now()
	for retry := newBackoff(); ; {
		tx, added, err = s.tryOpen(ctx, w, s.opts.LockTimeout-time.Since(began))
		if err == nil || !s.markers.SingleWriter() || !timedOut(err) {
			return tx, added, err
		}
		if time.Since(began) >= s.opts.LockTimeout || !retry.Wait(ctx) {
			return nil, false, inProgress(ctx, err)
		}
	}
}

// inProgress returns an error which says that the key may be another run's. It adds ctx's error, because the driver may
// not have noticed that ctx ended.
func inProgress(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return fmt.Errorf("%w: %w", idempotent.ErrInProgress, err)
}

func (s *Store) tryOpen(ctx context.Context, w work, left time.Duration) (*handlertx.Tx, bool, error) {
	begin, cancel := ctx, context.CancelFunc(func() {})
	if s.markers.SingleWriter() {
		begin, cancel = context.WithTimeout(ctx, left)
	}
	defer cancel()
	tx, err := handlertx.BeginUntil(begin, s.db, s.opts.StatementTimeout, s.opts.Isolation)
	if err != nil {
		if ctx.Err() == nil && errors.Is(err, context.Canceled) { // the begin was given up, but not by the caller
			limit := "StatementTimeout of " + s.opts.StatementTimeout.String()
			if begin.Err() != nil {
				limit = "LockTimeout of " + s.opts.LockTimeout.String()
			}
			err = fmt.Errorf("no transaction within %s: %w: %w", limit, context.DeadlineExceeded, err)
		}
		return nil, false, err
	}
	added, err := s.add(ctx, tx.DB, w, left)
	if err != nil {
		tx.Rollback()
		store.RenewSessions(s.db, err)
		return nil, false, err
	}
	return tx, added, nil
}

// timedOut reports whether the file's one writer, or the pool's connection, was not free in time.
func timedOut(err error) bool { return store.IsWaiting(err) || errors.Is(err, context.Canceled) }

// add adds the markers of the run, and waits for others for at most wait. It gives up before ctx ends, because
// cancelling a statement costs the connection.
//
// While a rename is rolled out, the programs have some keys in common. The second program waits for the first one at
// such a key, and then finds its marker. The keys are sorted, because programs list them in different orders, which
// would deadlock.
func (s *Store) add(ctx context.Context, tx *gorm.DB, w work, wait time.Duration) (added bool, err error) {
	if w.unmarked {
		return true, nil
	}
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/10*9) // divide first, so that it cannot overflow
	}
	until := time.Now().Add(wait)
	ctx, cancel := context.WithDeadline(ctx, until.Add(s.opts.StatementTimeout))
	defer cancel()
	marker := s.marker(w.Run)
	keys := w.Run.Keys()
	slices.SortFunc(keys, func(a, b idempotent.Key) int { return strings.Compare(a.HandlerKey, b.HandlerKey) })
	for _, key := range keys {
		marker.HandlerKey = key.HandlerKey
		added, err = s.markers.AddMarkerTx(ctx, tx, marker, time.Until(until))
		if errors.Is(err, store.ErrMarkerBusy) {
			err = inProgress(ctx, err)
		}
		if err != nil || !added {
			return false, err
		}
	}
	return true, nil
}
