package ops

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/redact"
)

// Retry makes a poisoned or failing status due now. Its error count and its abandoned count are 0,
// its requeued count is raised by one, and its last error and attempts stay readable. In its lane
// the status keeps its place; one that waits there for another is not retried. ErrNotFound,
// ErrStale, ErrProcessing and ErrNotPoisoned say why nothing was done; of two concurrent operators
// one gets such an error (contract 11.1).
func (o *Ops) Retry(ctx context.Context, actor Actor, ref Ref) error {
	return o.actOn(ctx, actor, ActionRetry, ref)
}

// Discard ends an open status for good without running its handler (again): one that is poisoned, pending, failing or
// waiting in its lane. The row is kept, so that a redelivery is still a duplicate, and is cleaned up like a completed
// one. The next row of its lane may run. It returns ErrNotFound, ErrStale or ErrProcessing if nothing was done.
func (o *Ops) Discard(ctx context.Context, actor Actor, ref Ref) error {
	return o.actOn(ctx, actor, ActionDiscard, ref)
}

// retry uses the index on open statuses. An operator's machine may be ahead of the database's clock, which
// limits the time (see at): otherwise nothing would run until then. The status is due from now on
// and not since it was accepted, so that thousands of retried ones do not come before everything
// newer. Only a manual deletion of the message, and the mark that a copy is published, change a
// poisoned row meanwhile. A row that another operator has retried or discarded is no longer
// poisoned, and has another version if it is poisoned again. A failing row may be claimed
// meanwhile, and then is not changed.
const retry = `
UPDATE {statuses} AS s SET error_count = 0, abandoned_count = 0, interrupted_count = 0, requeued_count = s.requeued_count + 1, is_poisoned = false, published_at = NULL, next_attempt_at = {at},
	poisoned_at = NULL, attempts = {attempts with a retry}, ` + unclaimed + `
FROM {refs} AS c
WHERE ` + isRef + ` AND (s.is_poisoned OR NOT s.is_waiting AND s.processing_started_at IS NULL AND s.last_error IS NOT NULL AND s.error_count + s.abandoned_count + s.interrupted_count > 0)
RETURNING {changed}`

// discard uses the index on open statuses, see retry. A row that is claimed meanwhile is not changed: its handler runs,
// and its lane must not go on beside it.
const discard = `
UPDATE {statuses} AS s SET completed_at = {at}, outcome = 'discarded', abandoned_count = 0, interrupted_count = 0, is_poisoned = false, next_attempt_at = NULL, ` + unclaimed + `
FROM {refs} AS c
WHERE ` + isRef + ` AND (s.is_poisoned OR s.processing_started_at IS NULL)
RETURNING {changed}`

const (
	unclaimed = `processing_started_at = NULL, worker_id = NULL, is_waiting = false, holds_lane = false, version = s.version + 1`
	isRef     = `{by id} s.id = c.id AND (c.version = 0 OR s.version = c.version) AND ` + base.OpenSQL
)

// stateNow uses the index on open statuses.
const stateNow = `
SELECT version, is_poisoned, processing_started_at, is_waiting FROM {statuses} WHERE id = $1 AND ` + base.OpenSQL

func (o *Ops) actOn(ctx context.Context, actor Actor, action Action, ref Ref) error {
	id, err := checkID("status ID", ref.StatusID)
	if err == nil && ref.Version < 0 {
		err = badInput("version", "%d: must be 0 or more", ref.Version)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	var done []changed
	err = o.audited(ctx, actor, action, "status "+id, func(ctx context.Context, tx *gorm.DB) (any, error) {
		var err error
		if done, err = o.change(ctx, tx, action, [][2]any{{id, ref.Version}}); err != nil {
			return nil, err
		}
		if len(done) == 0 {
			return nil, o.whyNot(ctx, tx, action, id, ref.Version)
		}
		return map[string]string{"message_id": done[0].messageID, "handler_key": done[0].handlerKey}, nil
	})
	if err != nil {
		return err
	}
	o.wakeAfter(ctx, action == ActionRetry, done)
	return nil
}

// change retries or discards those of these statuses that allow it and are at their version, where
// 0 means any version. It returns the changed ones.
func (o *Ops) change(ctx context.Context, tx *gorm.DB, action Action, refs [][2]any) ([]changed, error) {
	list, err := jsonOf(refs)
	if err != nil {
		return nil, err
	}
	statement := discard
	if action == ActionRetry {
		statement = retry
	}
	return query(ctx, o, tx.Statement.ConnPool, statement, scanChanged, list, o.stamp(o.opts.Clock.Now()))
}

// whyNot returns the error for a status that was not changed.
func (o *Ops) whyNot(ctx context.Context, tx *gorm.DB, action Action, id string, version int64) error {
	type state struct {
		version int64
		State
		waiting bool
	}
	states, err := query(ctx, o, tx.Statement.ConnPool, stateNow, func(rows *sql.Rows, s *state) error {
		var processing store.Stamp
		var poisoned bool
		err := rows.Scan(&s.version, &poisoned, &processing, &s.waiting)
		s.State = stateOf(time.Time{}, "", poisoned, processing.Time)
		return err
	}, id)
	if err != nil {
		return err
	}
	switch {
	case len(states) == 0 && version != 0:
		return fmt.Errorf("%w: it is completed, discarded, superseded or deleted", ErrStale)
	case len(states) == 0:
		return fmt.Errorf("%w: no open status has this ID: it is unknown, or completed, discarded, superseded or deleted", ErrNotFound)
	}
	s := states[0]
	switch {
	case version != 0 && s.version != version:
		return fmt.Errorf("%w: it is at version %d, not %d", ErrStale, s.version, version)
	case s.State == StateProcessing:
		return fmt.Errorf("%w: its attempt is running", ErrProcessing)
	case action == ActionDiscard || s.State == StatePoisoned: // again, since we tried
		return ErrStale
	case s.waiting:
		return fmt.Errorf("%w: it waits in its lane and runs after the status before it", ErrNotPoisoned)
	default:
		return fmt.Errorf("%w and not failing: it is pending and has not failed", ErrNotPoisoned)
	}
}

// Pause stops claiming for a handler key on every worker, within a heartbeat of each. Running
// handlers continue. On an Inline or Direct channel each partition waits at the next message for
// the handler. With a Live it pauses all keys of the handler, so that workers of a program from
// before a rename are paused too; without one it pauses only this key. It returns ErrNotFound
// unless a worker lists the key or statuses are open under it. Pausing a paused handler succeeds
// (contract 5.13).
func (o *Ops) Pause(ctx context.Context, actor Actor, handlerKey string) error {
	return o.setPaused(ctx, actor, ActionPause, handlerKey)
}

// Resume undoes Pause. If the handler is not paused, it returns ErrNotPaused, does nothing and
// leaves no audit row.
func (o *Ops) Resume(ctx context.Context, actor Actor, handlerKey string) error {
	return o.setPaused(ctx, actor, actionResume, handlerKey)
}

// These use the primary key.
const (
	pause = `
INSERT INTO {handlers} (handler_key, paused, updated_at) VALUES ($1, true, $2)
ON CONFLICT (handler_key) DO UPDATE SET paused = true, updated_at = excluded.updated_at`

	resume = `UPDATE {handlers} SET paused = false, updated_at = $2 WHERE handler_key = $1 AND paused`
)

func (o *Ops) setPaused(ctx context.Context, actor Actor, action Action, handlerKey string) error {
	keys, err := o.keysOf(ctx, handlerKey)
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	// Use all of its keys: a pause of any key pauses the handler, and workers of a program from
	// before a rename know only the legacy keys.
	statement := resume
	if action == ActionPause {
		statement = pause
	}
	err = o.audited(ctx, actor, action, "handler "+keys[0], func(ctx context.Context, tx *gorm.DB) (any, error) {
		var changed int64
		for _, key := range keys {
			rows, err := o.exec(ctx, tx.Statement.ConnPool, statement, key, o.stamp(o.opts.Clock.Now()))
			if err != nil {
				return nil, err
			}
			changed += rows
		}
		if changed == 0 {
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
func (o *Ops) keysOf(ctx context.Context, key string) ([]string, error) {
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

// Delete deletes a message and all of its statuses in any state, or returns ErrProcessing while one
// is being processed. Nothing is remembered: a redelivery is a new message. confirmation must
// repeat the message ID, otherwise it returns ErrBadInput. To end a status, use Discard.
func (o *Ops) Delete(ctx context.Context, actor Actor, ref MessageRef, confirmation string) error {
	err := ref.check()
	if err == nil && confirmation != ref.ID {
		err = badInput("confirmation", "it is not the message ID")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", actionDelete, err)
	}
	var gone []changed
	err = o.audited(ctx, actor, actionDelete, "message "+ref.ID, func(ctx context.Context, tx *gorm.DB) (any, error) {
		pool := tx.Statement.ConnPool
		// Lock the message first, as accepts and cleanup do. An accept that adds statuses waits,
		// and then finds no message.
		number, err := o.numberOf(ctx, pool, ref)
		if err != nil {
			return nil, err
		}
		messages, err := query(ctx, o, pool, lockMessage, scanMessage, number)
		if err != nil {
			return nil, err
		}
		if len(messages) == 0 {
			return nil, ErrNotFound
		}
		// This waits for a claim that is being committed, and then sees it.
		if gone, err = query(ctx, o, pool, deleteStatuses, scanChanged, number); err != nil {
			return nil, err
		}
		left, err := query(ctx, o, pool, statusesLeft, store.Value[int64], number)
		if err == nil && left[0] > 0 {
			err = fmt.Errorf("%w by %d of its handlers: wait, or stop the worker", ErrProcessing, left[0])
		}
		if err == nil {
			_, err = o.exec(ctx, pool, deleteMessage, number)
		}
		detail := map[string]any{"namespace": messages[0].namespace, "type": messages[0].typ,
			"received_at": messages[0].receivedAt, "handlers": handlerKeys(gone)}
		return detail, err
	})
	if err != nil {
		return err
	}
	o.wakeAfter(ctx, false, gone)
	return nil
}

// message is a message without its content.
type message struct {
	id, namespace, typ string
	receivedAt         time.Time
}

func scanMessage(rows *sql.Rows, m *message) error {
	var received store.Stamp
	err := rows.Scan(&m.id, &m.namespace, &m.typ, &received)
	m.receivedAt = received.Time
	return err
}

// These use the messages' number and the statuses' primary key.
const (
	lockMessage = `
SELECT id, namespace, type, received_at FROM {messages} WHERE number = $1 {for update}`

	deleteStatuses = `
DELETE FROM {statuses} AS s WHERE s.message_number = $1 AND s.processing_started_at IS NULL RETURNING {changed}`

	statusesLeft = `SELECT count(*) FROM {statuses} WHERE message_number = $1`

	deleteMessage = `DELETE FROM {messages} WHERE number = $1`
)

func handlerKeys(rows []changed) []string {
	keys := make([]string, len(rows))
	for i, c := range rows {
		keys[i] = c.handlerKey
	}
	return distinct(keys)
}

// Cleanup deletes now what the retentions allow, see Inbox.Cleanup. It runs many transactions. One audit row is written
// before the first and one, with the counts, after the last. It needs a Live, which knows the retentions, or the option
// Cleanup. It may take long; ctx ends it.
func (o *Ops) Cleanup(ctx context.Context, actor Actor) (handler.Deleted, error) {
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
