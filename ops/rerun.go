package ops

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
)

// HandlerRef identifies the status of one handler of a message, in any state. HandlerKey is the status's own, which
// after a rename may be a legacy key. Version is the one that the operator saw; 0 matches any version.
type HandlerRef struct {
	Message    MessageRef
	HandlerKey string
	Version    int64
}

// Handler returns the status by its message and handler key, at the version seen.
func (s Status) Handler() HandlerRef {
	return HandlerRef{Message: s.Message(), HandlerKey: s.HandlerKey, Version: s.Version}
}

// maxReason is how long the reason of an action may be.
const maxReason = 500

// Rerun makes a completed or discarded status due now, so that its handler runs again for the message: with all counts
// of attempts 0 and the requeued count raised by one, as after Retry. What the handler did before is done again. The
// reason, 1 to 500 characters, goes into the audit. The status is found by message and handler, because statuses are
// not found by their IDs once they have ended.
//
// In its lane the status is the next one, since it was accepted before those that have not ended; one that runs is
// waited for. A paused handler runs it once it is resumed. While it is open, cleanup leaves it and its message alone,
// and its retention begins anew when it ends (contract 5.12, 5.13, 6.1).
//
// ErrNotCompleted means that the status is open, or superseded: then another row of the handler, under a newer or older
// key, counts, and can be run again. ErrNotFound means that there is no such status, for example because it was cleaned
// up or the message's channel is Inline or Direct, or that no program has the handler, so that it would wait without
// end. ErrStale means that it has another version (contract 11.1).
func (o messageViews) Rerun(ctx context.Context, actor Actor, ref HandlerRef, reason string) error {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	err := ref.check()
	if err == nil && strings.TrimSpace(reason) == "" {
		err = badInput("reason", "it is empty: the audit says why a handler ran again")
	}
	if err == nil {
		err = checkText("reason", reason, 1, maxReason)
	}
	if err == nil {
		err = actor.check()
	}
	if err == nil {
		err = o.checkRunnable(ctx, ref.HandlerKey)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", actionRerun, err)
	}
	var opened *store.ChangedStatus
	target := fmt.Sprintf("handler %s of message %s", ref.HandlerKey, ref.Message.ID)
	err = o.audited(ctx, actor, actionRerun, target, func(ctx context.Context, tx *gorm.DB) (any, error) {
		pool := tx.Statement.ConnPool
		number, err := o.numberOf(ctx, pool, ref.Message)
		if err != nil {
			return nil, o.handledInline(ctx, pool, ref, err)
		}
		// Cleanup and deletions lock the message first, too. What they have deleted until now is not found.
		if locked, err := o.store.LockMessages(ctx, pool, []int64{number}); err != nil || len(locked) == 0 {
			return nil, orNotFound(err)
		}
		s, err := o.ended(ctx, pool, number, ref)
		if err != nil {
			return nil, err
		}
		opened, err = o.store.RerunStatus(ctx, pool, number, ref.HandlerKey, int64(s.Version), o.opts.Clock.Now())
		if err == nil && opened == nil {
			err = ErrStale
		}
		return map[string]any{"status_id": s.ID, "namespace": s.Namespace, "state": stateOf(&s.HandlerStatus),
			"completed_at": s.CompletedAt, "reason": reason}, err
	})
	if err != nil {
		return err
	}
	o.wakeAfter(ctx, true, []store.ChangedStatus{*opened})
	return nil
}

func (r HandlerRef) check() error {
	if err := r.Message.check(); err != nil {
		return err
	}
	if r.Version < 0 {
		return badInput("version", "%d: must be 0 or more", r.Version)
	}
	return checkText("handler key", r.HandlerKey, 1, columns.MaxHandlerKey)
}

func orNotFound(err error) error {
	if err == nil {
		return ErrNotFound
	}
	return err
}

// ended returns the status if it may run again.
func (o messageViews) ended(ctx context.Context, pool gorm.ConnPool, number int64, ref HandlerRef) (
	*store.StatusRow, error,
) {
	rows, err := o.store.StatusesOf(ctx, pool, number, maxListed)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(rows, func(s store.StatusRow) bool { return s.HandlerKey == ref.HandlerKey })
	if i < 0 {
		return nil, fmt.Errorf("%w: the message has no status of this handler", ErrNotFound)
	}
	s := &rows[i]
	switch state := stateOf(&s.HandlerStatus); {
	case ref.Version != 0 && int64(s.Version) != ref.Version:
		return nil, fmt.Errorf("%w: it is %s at version %d, not %d", ErrStale, state, s.Version, ref.Version)
	case state == StateSuperseded:
		return nil, fmt.Errorf("%w but superseded: the handler was renamed, and its status under its other key counts: run that one again",
			ErrNotCompleted)
	case s.CompletedAt == nil:
		return nil, fmt.Errorf("%w but %s", ErrNotCompleted, state)
	case state == StateDiscarded:
		return s, o.checkRenamed(ctx, pool, rows, ref.HandlerKey)
	}
	return s, nil
}

// checkRenamed returns an error if the handler has another status of the message, under another key, that it has
// completed or is running. A claim would then end the discarded one as superseded.
func (o messageViews) checkRenamed(ctx context.Context, pool gorm.ConnPool, rows []store.StatusRow, key string) error {
	for _, s := range rows {
		if state := stateOf(&s.HandlerStatus); s.HandlerKey == key || state != StateCompleted && state != StateProcessing {
			continue
		}
		for _, keys := range [][2]string{{key, s.HandlerKey}, {s.HandlerKey, key}} {
			same, err := o.store.SameHandler(ctx, pool, keys[:1])
			if err != nil {
				return err
			}
			if slices.Contains(same, keys[1]) {
				return fmt.Errorf("%w in effect: the handler was renamed, and its status under the key %q counts: run that one again",
					ErrNotCompleted, s.HandlerKey)
			}
		}
	}
	return nil
}

// handledInline explains why a message is not found of which a handler has a marker.
func (o messageViews) handledInline(ctx context.Context, pool gorm.ConnPool, ref HandlerRef, err error) error {
	found, other := o.store.MarkersOf(ctx, pool, ref.Message.ID, ref.HandlerKey, ref.Message.Namespace, 1)
	if other == nil && len(found) > 0 {
		return fmt.Errorf("%w: it was handled inline, which stores no message to run again", err)
	}
	return err
}

// checkRunnable returns an error if no program would run an open status of a handler key. A removed handler's status
// was out of the way. Opened, it would wait, and never be cleaned up.
func (o messageViews) checkRunnable(ctx context.Context, key string) error {
	if o.opts.Live != nil {
		if of, err := o.opts.Live.Subscription(key); err == nil {
			if !of.Stored {
				return badInput("handler key", "channel %q is Inline or Direct and stores no statuses", of.Channel)
			}
			return nil
		}
	}
	var workers []store.WorkerState
	err := o.connected(ctx, func(ctx context.Context) (err error) {
		workers, err = o.store.Workers(ctx, o.opts.Clock.Now())
		return err
	})
	if err != nil {
		return err
	}
	// The row of a ProcessPending says which keys it runs when it is called again.
	if !slices.ContainsFunc(workers, func(w store.WorkerState) bool {
		alive := !w.Stopped && !w.Released && w.SilentFor < aliveFor
		return (alive || w.Drains) && slices.Contains(w.HandlerKeys, key)
	}) {
		return fmt.Errorf("handler key %q: %w: no living worker lists it, so it would wait and not run", key, ErrNotFound)
	}
	return nil
}
