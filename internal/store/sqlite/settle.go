package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// settleSQL uses the index on open statuses. A poisoned row has no next attempt.
var settleSQL = `
UPDATE {statuses} SET error_count = c.error_count, abandoned_count = c.abandoned_count, interrupted_count = c.interrupted_count,
	last_error = COALESCE(c.last_error, {statuses}.last_error),
	fingerprint = COALESCE(c.fingerprint, {statuses}.fingerprint), is_poisoned = c.poisoned,
	next_attempt_at = CASE WHEN c.poisoned THEN NULL ELSE c.next_attempt_at END,
	processing_started_at = NULL, worker_id = NULL, is_waiting = false, holds_lane = false, version = {statuses}.version + 1,
	poisoned_at = CASE WHEN c.poisoned THEN c.failed_at ELSE {statuses}.poisoned_at END,
	attempts = CASE WHEN c.failed_at IS NULL THEN {statuses}.attempts ELSE ` + base.SQLiteAttemptsSQL("{statuses}", failedAttemptSQL) + ` END
FROM (
	SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS version, json_extract(value, '$[2]') AS error_count,
		json_extract(value, '$[3]') AS abandoned_count, json_extract(value, '$[4]') AS last_error,
		json_extract(value, '$[5]') AS next_attempt_at, json_extract(value, '$[6]') AS poisoned,
		json_extract(value, '$[7]') AS fingerprint, json_extract(value, '$[8]') AS failed_at,
		json_extract(value, '$[9]') AS interrupted_count
	FROM json_each(?1)
) AS c
WHERE {statuses}.id = c.id AND {statuses}.version = c.version AND ` + base.OpenSQL + `
RETURNING id, version - 1`

// failedAttemptSQL is the entry of an attempt that failed. Its claim is the row's until now. It has no error if its
// worker vanished.
var failedAttemptSQL = fmt.Sprintf(`json_object('at', c.failed_at, 'claimed_at', {statuses}.processing_started_at,
	'worker_id', {statuses}.worker_id, 'error', substr(c.last_error, 1, %d),
	'poisoned', json(CASE WHEN c.poisoned THEN 'true' ELSE 'false' END))`, columns.MaxAttemptError)

func (s *Store) Settle(ctx context.Context, settlements []store.Settlement, _ store.Locked) ([]bool, error) {
	applied := make([]bool, len(settlements))
	if len(settlements) == 0 {
		return applied, nil
	}
	rows, index := make([][10]any, len(settlements)), make(map[versioned]int, len(settlements))
	for i, each := range settlements {
		text, named := base.Failure(each)
		rows[i] = [10]any{each.StatusID, each.Version, each.ErrorCount, each.AbandonedCount, text,
			storedTime(each.NextAttemptAt), each.Poisoned, named, nil, each.InterruptedCount}
		if !each.FailedAt.IsZero() {
			rows[i][8] = storedTime(&each.FailedAt)
		}
		index[versioned{each.StatusID, each.Version}] = i
	}
	changed, err := store.Query(ctx, s.Pool(ctx), s.Text(settleSQL), scanVersioned, base.JSONList(rows))
	if err != nil {
		return nil, base.Doing("settle", err)
	}
	for _, row := range changed {
		applied[index[row]] = true
	}
	return applied, nil
}

func storedTime(t *time.Time) *string {
	if t == nil {
		return nil
	}
	return new(store.SQLiteTime(*t))
}
