package ops

import (
	"context"
	"database/sql"
	"fmt"

	"gorm.io/gorm"
)

// Retry makes a poisoned status pending again. It is due now, its error count and its abandoned
// count are 0, its requeued count is raised by one, and its last error stays readable. ErrNotFound,
// ErrStale and ErrNotPoisoned say why nothing was done; of two concurrent operators one gets such
// an error. In its lane the status keeps its place (contract 11.1).
func (o *Ops) Retry(ctx context.Context, actor Actor, ref Ref) error {
	return o.actOn(ctx, actor, ActionRetry, ref)
}

// Discard ends a poisoned status for good without running its handler. The row is kept, so that a
// redelivery is still a duplicate, and is cleaned up like a completed one. The next row of its lane
// may run. It returns the same errors as Retry.
func (o *Ops) Discard(ctx context.Context, actor Actor, ref Ref) error {
	return o.actOn(ctx, actor, ActionDiscard, ref)
}

// retry uses the primary key. An operator's machine may be ahead of the database's clock, which
// limits the time (see at): otherwise nothing would run until then. The status is due from now on
// and not since it was accepted, so that thousands of retried ones do not come before everything
// newer. Only a manual deletion of the message changes a poisoned row meanwhile. A row that another
// operator has retried or discarded is no longer poisoned, and has another version if it is
// poisoned again.
const retry = `
UPDATE {statuses} AS s SET error_count = 0, abandoned_count = 0, requeued_count = s.requeued_count + 1, is_poisoned = false, next_attempt_at = {at}, ` + unclaimed + `
FROM {refs} AS c
WHERE ` + isRef + `
RETURNING {changed}`

// discard uses the primary key, see retry.
const discard = `
UPDATE {statuses} AS s SET completed_at = {at}, outcome = 'discarded', abandoned_count = 0, is_poisoned = false, next_attempt_at = NULL, ` + unclaimed + `
FROM {refs} AS c
WHERE ` + isRef + `
RETURNING {changed}`

const (
	unclaimed = `processing_started_at = NULL, worker_id = NULL, is_waiting = false, holds_lane = false, version = s.version + 1`
	isRef     = `{by id} s.id = c.id AND (c.version = 0 OR s.version = c.version) AND s.is_poisoned AND s.completed_at IS NULL`
)

// stateNow uses the primary key.
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

// change retries or discards those of these statuses that are poisoned and at their version, where
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
	return query(ctx, o, tx.Statement.ConnPool, statement, scanChanged, list, o.stamp(o.clock.Now()))
}

// whyNot returns the error for a status that was not changed.
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
