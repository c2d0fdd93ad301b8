package ops

import (
	"context"
	"database/sql"
	"fmt"

	"gorm.io/gorm"
)

// Retry makes a poisoned status pending again, due now: its error count and
// abandoned count are 0, its requeued count one more, its last error stays to
// be read. ErrNotFound, ErrStale and ErrNotPoisoned say why nothing was done; of
// two operators at once one gets such an error. In its lane it is where it was
// accepted (contract 11.1).
func (o *Ops) Retry(ctx context.Context, actor Actor, ref Ref) error {
	return o.actOn(ctx, actor, ActionRetry, ref)
}

// Discard ends a poisoned status for good without running its handler. It is
// kept as memory, so that a redelivery is still a duplicate, and cleaned like a
// completed one. Its lane is free. Errors as Retry's.
func (o *Ops) Discard(ctx context.Context, actor Actor, ref Ref) error {
	return o.actOn(ctx, actor, ActionDiscard, ref)
}

// By the primary key. The machine of an operator may be ahead of the database,
// whose clock is the latest that is taken (see at): else nothing would run until then.
// It is due now, not since it was accepted: thousands that
// are retried must not go before all that has come since. Nobody else changes a
// poisoned row but cleanup's deletion of its message, by hand: what another
// operator has retried or discarded is not poisoned any more, and has another
// version if it is again.
const retry = `
UPDATE {statuses} AS s SET error_count = 0, abandoned_count = 0, requeued_count = s.requeued_count + 1, is_poisoned = false, next_attempt_at = {at}, ` + unclaimed + `
FROM {refs} AS c
WHERE ` + isRef + `
RETURNING {changed}`

// Likewise.
const discard = `
UPDATE {statuses} AS s SET completed_at = {at}, outcome = 'discarded', abandoned_count = 0, is_poisoned = false, next_attempt_at = NULL, ` + unclaimed + `
FROM {refs} AS c
WHERE ` + isRef + `
RETURNING {changed}`

const (
	unclaimed = `processing_started_at = NULL, worker_id = NULL, is_waiting = false, holds_lane = false, version = s.version + 1`
	isRef     = `{by id} s.id = c.id AND (c.version = 0 OR s.version = c.version) AND s.is_poisoned AND s.completed_at IS NULL`
)

// By the primary key.
const stateNow = `SELECT version, is_poisoned AND completed_at IS NULL FROM {statuses} WHERE id = $1`

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
			return nil, o.whyNot(ctx, tx, id, ref.Version)
		}
		return map[string]string{"message_id": done[0].messageID, "handler_key": done[0].handlerKey}, nil
	})
	if err != nil {
		return err
	}
	o.announce(ctx, action == ActionRetry, done)
	return nil
}

// change retries or discards those of these IDs that are poisoned and at their
// version, 0 being any, and returns them.
func (o *Ops) change(ctx context.Context, tx *gorm.DB, action Action, refs [][2]any) ([]changed, error) {
	list, err := jsonOf(refs)
	if err != nil {
		return nil, err
	}
	statement := discard
	if action == ActionRetry {
		statement = retry
	}
	return query(ctx, o, tx.Statement.ConnPool, statement, scanChanged, list, o.stamp(o.clock.Now()))
}

// whyNot says why a status was left alone.
func (o *Ops) whyNot(ctx context.Context, tx *gorm.DB, id string, version int64) error {
	type state struct {
		version  int64
		poisoned bool
	}
	states, err := query(ctx, o, tx.Statement.ConnPool, stateNow, func(rows *sql.Rows, s *state) error {
		return rows.Scan(&s.version, &s.poisoned)
	}, id)
	switch {
	case err != nil:
		return err
	case len(states) == 0:
		return ErrNotFound
	case version != 0 && states[0].version != version:
		return fmt.Errorf("%w: it is at version %d, not %d", ErrStale, states[0].version, version)
	case states[0].poisoned: // again, since we tried
		return ErrStale
	default:
		return ErrNotPoisoned
	}
}
