package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/redact"
)

// Retry makes a poisoned or failing status due now. Its error count and its abandoned count are 0, its requeued count
// is raised by one, and its last error and attempts stay readable. In its lane the status keeps its place; one that
// waits there for another is not retried. ErrNotFound, ErrStale, ErrProcessing and ErrNotPoisoned say why nothing was
// done; of two concurrent operators one gets such an error (contract 11.1).
func (o statusActions) Retry(ctx context.Context, actor Actor, ref Ref) error {
	return o.actOn(ctx, actor, ActionRetry, ref, change{})
}

// Reschedule changes when a pending status is due: at a time at most ten years ahead, or now if that is past or zero.
// It changes nothing else: what has failed keeps its counts, and in its lane the status keeps its place, so that one
// that waits there still waits. The worker finds an earlier time within PollingInterval. ErrNotFound, ErrStale,
// ErrProcessing and ErrNotPending, for a poisoned status, say why nothing was done (contract 11.1).
func (o statusActions) Reschedule(ctx context.Context, actor Actor, ref Ref, at time.Time) error {
	return o.actOn(ctx, actor, ActionReschedule, ref, change{at: at})
}

// Discard permanently ends an open status without running its handler (again): one that is poisoned, pending, failing
// or waiting in its lane. The row is kept, so that a redelivery is still a duplicate, and is cleaned up like a
// completed one. The next row of its lane may run. The reason, which may be empty and has at most 500 characters, goes
// into the audit. It returns ErrNotFound, ErrStale or ErrProcessing if nothing was done.
func (o statusActions) Discard(ctx context.Context, actor Actor, ref Ref, reason string) error {
	return o.actOn(ctx, actor, ActionDiscard, ref, change{reason: reason})
}

// change is what an operator gives with an action on a status.
type change struct {
	reason string
	at     time.Time // of a reschedule; zero for now
}

func (o statusActions) actOn(ctx context.Context, actor Actor, action Action, ref Ref, with change) error {
	id, err := checkID("status ID", ref.StatusID)
	if err == nil && ref.Version < 0 {
		err = badInput("version", "%d: must be 0 or more", ref.Version)
	}
	if err == nil {
		err = checkText("reason", with.reason, 0, maxReason)
	}
	if err == nil {
		with.at, err = o.checkDue(with.at)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	var done []store.ChangedStatus
	err = o.audited(ctx, actor, action, "status "+id, func(ctx context.Context, tx *gorm.DB) (any, error) {
		var err error
		if done, err = o.change(ctx, tx, action, []store.VersionedID{{ID: id, Version: ref.Version}}, with.at); err != nil {
			return nil, err
		}
		if len(done) == 0 {
			return nil, o.whyNot(ctx, tx, action, id, ref.Version)
		}
		return changeDetail{MessageID: done[0].MessageID, HandlerKey: done[0].HandlerKey, Reason: with.reason,
			NotBefore: dueText(action, with.at)}, nil
	})
	if err != nil {
		return err
	}
	o.wakeAfter(ctx, o.makesDue(action, with.at), done)
	return nil
}

// changeDetail is the audit's detail of a change of one status.
type changeDetail struct {
	HandlerKey string `json:"handler_key"`
	MessageID  string `json:"message_id"`
	Reason     string `json:"reason,omitempty"`
	NotBefore  string `json:"not_before,omitempty"`
}

// checkDue returns a time at which statuses are due as it is stored. The zero time is now.
func (o *access) checkDue(at time.Time) (time.Time, error) {
	at, err := store.ChosenDue(at, o.opts.Clock.Now())
	if err != nil {
		err = badInput("time", "%s", err)
	}
	return at, err
}

// dueText returns what the audit has of the time of a reschedule.
func dueText(action Action, at time.Time) string {
	switch {
	case action != ActionReschedule:
		return ""
	case at.IsZero():
		return "now"
	}
	return at.Format(time.RFC3339Nano)
}

// makesDue reports whether an action makes statuses due now.
func (o *access) makesDue(action Action, at time.Time) bool {
	return action == ActionRetry || action == ActionReschedule && !at.After(o.opts.Clock.Now())
}

// change retries, discards or reschedules the given statuses that allow it and are at their version, where 0 means any
// version. It returns the changed ones.
func (o statusActions) change(ctx context.Context, tx *gorm.DB, action Action, refs []store.VersionedID,
	at time.Time,
) ([]store.ChangedStatus, error) {
	pool, now := tx.Statement.ConnPool, o.opts.Clock.Now()
	switch action {
	case ActionRetry:
		return o.store.RetryStatuses(ctx, pool, refs, now)
	case ActionReschedule:
		return o.store.RescheduleStatuses(ctx, pool, refs, at, now)
	default:
		return o.store.DiscardStatuses(ctx, pool, refs, now)
	}
}

// whyNot returns the error for a status that was not changed.
func (o statusActions) whyNot(ctx context.Context, tx *gorm.DB, action Action, id string, version int64) error {
	s, err := o.store.OpenState(ctx, tx.Statement.ConnPool, id)
	if err != nil {
		return err
	}
	switch {
	case s == nil && version != 0:
		return fmt.Errorf("%w: it is completed, discarded, superseded or deleted", ErrStale)
	case s == nil:
		return fmt.Errorf("%w: no open status has this ID: it is unknown, or completed, discarded, superseded or deleted", ErrNotFound)
	case version != 0 && int64(s.Version) != version:
		return fmt.Errorf("%w: it is at version %d, not %d", ErrStale, s.Version, version)
	case action == actionReleaseClaim:
		return fmt.Errorf("%w but %s", ErrNotClaimed, stateOf(s))
	case stateOf(s) == StateProcessing:
		return fmt.Errorf("%w: its attempt is running", ErrProcessing)
	case action == ActionReschedule && s.IsPoisoned:
		return fmt.Errorf("%w but poisoned: retry it", ErrNotPending)
	case action != ActionRetry || s.IsPoisoned: // again, since we tried
		return ErrStale
	case s.IsWaiting:
		return fmt.Errorf("%w: it waits in its lane and runs after the status before it", ErrNotPoisoned)
	default:
		return fmt.Errorf("%w and not failing: it is pending and has not failed", ErrNotPoisoned)
	}
}

// Pause stops claiming for a handler key on every worker, within a heartbeat of each. Running handlers continue. On an
// Inline or Direct channel each partition waits at the next message for the handler. With a Live it pauses all keys of
// the handler, so that workers of a program from before a rename are paused too; without one it pauses only this key.
// It returns ErrNotFound unless a worker lists the key or statuses are open under it. Pausing a paused handler succeeds
// (contract 5.13).
func (o processes) Pause(ctx context.Context, actor Actor, handlerKey string) error {
	return o.setPaused(ctx, actor, ActionPause, handlerKey)
}

// Resume undoes Pause. If the handler is not paused, it returns ErrNotPaused, does nothing and leaves no audit row.
func (o processes) Resume(ctx context.Context, actor Actor, handlerKey string) error {
	return o.setPaused(ctx, actor, actionResume, handlerKey)
}

func (o processes) setPaused(ctx context.Context, actor Actor, action Action, handlerKey string) error {
	keys, err := o.keysOf(ctx, handlerKey)
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	// Use all of its keys: a pause of any key pauses the handler, and workers of a program from before a rename know
	// only the legacy keys.
	change := o.store.ResumeKey
	if action == ActionPause {
		change = o.store.PauseKey
	}
	err = o.audited(ctx, actor, action, "handler "+keys[0], func(ctx context.Context, tx *gorm.DB) (any, error) {
		changed := false
		for _, key := range keys {
			its, err := change(ctx, tx.Statement.ConnPool, key, o.opts.Clock.Now())
			if err != nil {
				return nil, err
			}
			changed = changed || its
		}
		if !changed {
			return nil, ErrNotPaused
		}
		return map[string]any{"keys": keys}, nil
	})
	if err == nil && o.opts.Live != nil {
		// This only saves time: the next heartbeat applies it, too.
		_ = o.opts.Live.TakePaused(context.WithoutCancel(ctx))
	}
	return err
}

// keysOf returns the keys of a handler that is known in some way.
func (o processes) keysOf(ctx context.Context, key string) ([]string, error) {
	if err := checkText("handler key", key, 1, columns.MaxHandlerKey); err != nil {
		return nil, err
	}
	if o.opts.Live != nil {
		switch of, err := o.opts.Live.Subscription(key); {
		case err == nil:
			return of.Handler.Keys(), nil
		case !errors.Is(err, ErrNotFound):
			return nil, err
		}
	}
	handlers, err := o.Handlers(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(handlers, func(h Handler) bool { return h.HandlerKey == key }) {
		return nil, fmt.Errorf("handler key %q: %w: no worker lists it and nothing is open under it", key, ErrNotFound)
	}
	return []string{key}, nil
}

// Delete deletes a message and all of its statuses in any state, or returns ErrProcessing while one is being processed.
// Nothing is remembered: a redelivery is a new message. confirmation must repeat the message ID, otherwise it returns
// ErrBadInput. To end a status, use Discard.
func (o messageViews) Delete(ctx context.Context, actor Actor, ref MessageRef, confirmation string) error {
	err := ref.check()
	if err == nil && confirmation != ref.ID {
		err = badInput("confirmation", "it is not the message ID")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", actionDelete, err)
	}
	var gone []store.ChangedStatus
	err = o.audited(ctx, actor, actionDelete, "message "+ref.ID, func(ctx context.Context, tx *gorm.DB) (any, error) {
		number, err := o.numberOf(ctx, tx.Statement.ConnPool, ref)
		if err != nil {
			return nil, err
		}
		m, statuses, left, err := o.store.DeleteMessage(ctx, tx.Statement.ConnPool, number)
		switch {
		case err != nil:
			return nil, err
		case m == nil:
			return nil, ErrNotFound
		case left > 0:
			return nil, fmt.Errorf("%w by %d of its handlers: wait, or stop the worker", ErrProcessing, left)
		}
		gone = statuses
		return map[string]any{"namespace": m.Namespace, "type": m.Type, "received_at": m.ReceivedAt,
			"handlers": handlerKeys(gone)}, nil
	})
	if err != nil {
		return err
	}
	o.wakeAfter(ctx, false, gone)
	return nil
}

func handlerKeys(rows []store.ChangedStatus) []string {
	keys := make([]string, len(rows))
	for i, c := range rows {
		keys[i] = c.HandlerKey
	}
	return distinct(keys)
}

// Cleanup deletes expired rows now, see Inbox.Cleanup. It runs many transactions. One audit row is written before the
// first and one, with the counts, after the last. It needs a Live, which knows the retentions, or the option Cleanup.
// It may take long; ctx ends it.
func (o statusActions) Cleanup(ctx context.Context, actor Actor) (handler.Deleted, error) {
	if err := o.Can(ActionCleanup); err != nil {
		return handler.Deleted{}, err
	}
	if err := o.note(ctx, actor, ActionCleanup, "inbox", map[string]string{"event": "begun"}); err != nil {
		return handler.Deleted{}, err
	}
	deleted, err := o.opts.Cleanup(ctx)
	end := map[string]any{"event": "ended", "deleted": deleted}
	if err != nil {
		end["error"] = o.redactor.Error(redact.Value{}, err.Error()) // an archive function may quote data
		err = fmt.Errorf("%s: %w", ActionCleanup, err)
	}
	return deleted, errors.Join(err, o.noteAnyway(ctx, actor, ActionCleanup, "inbox", end))
}
