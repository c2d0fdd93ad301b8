package ops

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// ReleaseClaim takes the claim of a status that is being processed away from its worker, and makes the status due now.
// Use it for a handler that hangs and ignores its context, or for a worker that is known to be dead before others have
// found that out. Nothing stops the old call: a handler that is not transactional may run twice at once, also in a
// lane. A transactional one loses its transaction, so that only one of the two calls commits.
//
// What the old call returns changes nothing in the status (contract 5.10). The claim counts as abandoned, as those of
// dead workers do: the status has its next call alone, and an entry in its attempts. It is not delayed (contract 5.9).
//
// The ref needs a version, so that no later claim is released. ErrStale means that the status has another one or has
// ended, ErrNotClaimed that it is not being processed. ErrProcessing means that a transaction of its handler locks the
// status and cannot be ended, because it runs a statement or the database's role may not end it.
func (o statusActions) ReleaseClaim(ctx context.Context, actor Actor, ref Ref) error {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	id, err := checkID("status ID", ref.StatusID)
	if err == nil && ref.Version < 1 {
		err = badInput("version", "%d: must be that of the claim to release", ref.Version)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", actionReleaseClaim, err)
	}
	r := &claimRelease{statusActions: o, actor: actor, id: id, version: ref.Version}
	// A worker that stores a result, or another operator, locks the status for a moment. End only what lasts.
	if err = r.tryFor(ctx, momentaryLock); r.locked != nil {
		err = r.endTransaction(ctx, err)
	}
	if err != nil {
		return err
	}
	o.wakeAfter(ctx, true, []store.ChangedStatus{*r.released})
	return nil
}

// claimRelease is one call of ReleaseClaim.
type claimRelease struct {
	statusActions
	actor   Actor
	id      string
	version int64

	released *store.ChangedStatus
	// locked is the status if a transaction of its handler held its lock at the last try.
	locked *models.HandlerStatus
}

func (r *claimRelease) target() string { return "status " + r.id }

// momentaryLock is how long a transaction other than a handler's may lock a status.
const momentaryLock = time.Second

// tryFor tries for so long.
func (r *claimRelease) tryFor(ctx context.Context, most time.Duration) error {
	within, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	retry := routine.Backoff{First: 10 * time.Millisecond, Max: 250 * time.Millisecond}
	for {
		if err := r.try(ctx); r.locked == nil || !retry.Wait(within) {
			return err
		}
	}
}

// try releases the claim unless its row is locked.
func (r *claimRelease) try(ctx context.Context) error {
	r.locked = nil
	return r.audited(ctx, r.actor, actionReleaseClaim, r.target(), func(ctx context.Context, tx *gorm.DB) (any, error) {
		pool := tx.Statement.ConnPool
		released, err := r.store.ReleaseClaim(ctx, pool, store.VersionedID{ID: r.id, Version: r.version}, r.opts.Clock.Now())
		if err != nil {
			return nil, err
		}
		if r.released = released; released != nil {
			return map[string]string{"message_id": released.MessageID, "handler_key": released.HandlerKey}, nil
		}
		s, err := r.store.OpenState(ctx, pool, r.id)
		if err == nil && s != nil && int64(s.Version) == r.version && s.ProcessingStartedAt != nil {
			r.locked = s
			return nil, fmt.Errorf("%w: the transaction of its handler locks the status", ErrProcessing)
		}
		if err == nil {
			err = r.whyNot(ctx, tx, actionReleaseClaim, r.id, r.version)
		}
		return nil, err
	})
}

// endTransaction ends the transaction that locks the status, and then releases the claim. Why is the error of the try
// before. The server ends a session a moment after it was told to.
func (r *claimRelease) endTransaction(ctx context.Context, why error) error {
	err := r.note(ctx, r.actor, actionReleaseClaim, r.target(), map[string]string{"event": "ending the handler's transaction"})
	if err != nil {
		return err
	}
	var ended int
	err = r.connected(ctx, func(ctx context.Context) (err error) {
		of := store.Ref{MessageNumber: r.locked.MessageNumber, HandlerKey: r.locked.HandlerKey}
		ended, err = r.store.EvictHolders(ctx, []store.Ref{of}, nil)
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("%w, and it cannot be ended: %w", why, err)
	case ended == 0:
		return fmt.Errorf("%w, and cannot be ended: it runs a statement, or this database role may not end it", why)
	}
	return r.tryFor(ctx, fewTimeouts*r.opts.StatementTimeout)
}
