package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// settleSQL uses handler_statuses_open. A poisoned row has no next attempt. For the sub-selects, see completionsSQL.
var settleSQL = `
UPDATE {statuses} s SET ` + settledSQL + `
WHERE s.id = c.id AND s.version = c.version AND ` + base.OpenSQL + `
RETURNING c.position - 1`

// settleUnlockedSQL is settleSQL for rows that are not locked. A row that was locked in between and is free again has
// another version, which PostgreSQL checks after locking.
var settleUnlockedSQL = `
WITH free AS MATERIALIZED (
	SELECT id FROM {statuses} WHERE id = ANY ((SELECT $1::text[])::uuid[]) AND ` + base.OpenSQL + ` FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {statuses} s SET ` + settledSQL + `
WHERE s.id = c.id AND c.id IN (SELECT id FROM free) AND s.version = c.version AND ` + base.OpenSQL + `
RETURNING c.position - 1`

var settledSQL = `error_count = c.error_count, abandoned_count = c.abandoned_count, interrupted_count = c.interrupted_count,
	last_error = COALESCE(c.last_error, s.last_error), fingerprint = COALESCE(c.fingerprint, s.fingerprint), is_poisoned = c.poisoned,
	next_attempt_at = CASE WHEN c.poisoned THEN NULL ELSE c.next_attempt_at END,
	processing_started_at = NULL, worker_id = NULL, is_waiting = false, holds_lane = false, version = s.version + 1,
	poisoned_at = CASE WHEN c.poisoned THEN c.failed_at ELSE s.poisoned_at END,
	attempts = CASE WHEN c.failed_at IS NULL THEN s.attempts ELSE ` + base.PostgresAttemptsSQL("s", failedAttemptSQL) + ` END
FROM unnest((SELECT $1::text[]::uuid[]), (SELECT $2::bigint[]), (SELECT $3::integer[]), (SELECT $4::integer[]),
	(SELECT $5::text[]), (SELECT $6::timestamptz[]), (SELECT $7::boolean[]), (SELECT $8::text[]), (SELECT $9::timestamptz[]),
	(SELECT $10::integer[])) WITH ORDINALITY
	AS c(id, version, error_count, abandoned_count, last_error, next_attempt_at, poisoned, fingerprint, failed_at, interrupted_count, position)`

// failedAttemptSQL is the entry of an attempt that failed. Its claim is the row's until now. It has no error if its
// worker vanished.
var failedAttemptSQL = fmt.Sprintf(`jsonb_build_object('at', c.failed_at, 'claimed_at', s.processing_started_at,
	'worker_id', s.worker_id, 'error', left(c.last_error, %d), 'poisoned', c.poisoned)`, columns.MaxAttemptError)

func (p *Store) Settle(ctx context.Context, settlements []store.Settlement, locked store.Locked) ([]bool, error) {
	statement, doing := settleSQL, "settle"
	if locked == store.SkipLocked {
		statement, doing = settleUnlockedSQL, "settle unlocked"
	}
	n := len(settlements)
	applied := make([]bool, n)
	if n == 0 {
		return applied, nil
	}
	ids, versions := make([]string, n), make([]int64, n)
	errorCounts, abandonedCounts, interruptedCounts := make([]int32, n), make([]int32, n), make([]int32, n)
	lastErrors, fingerprints := make([]*string, n), make([]*string, n)
	next, failed, poisoned := make([]*time.Time, n), make([]*time.Time, n), make([]bool, n)
	for i, s := range settlements {
		ids[i], versions[i] = s.StatusID, s.Version
		errorCounts[i], abandonedCounts[i] = int32(s.ErrorCount), int32(s.AbandonedCount)
		interruptedCounts[i] = int32(s.InterruptedCount)
		lastErrors[i], fingerprints[i] = base.Failure(s)
		next[i], poisoned[i] = inUTC(s.NextAttemptAt), s.Poisoned
		if !s.FailedAt.IsZero() {
			failed[i] = inUTC(&s.FailedAt)
		}
	}
	positions, err := store.Query(ctx, p.Pool(ctx), p.Text(statement), store.Value[int],
		ids, versions, errorCounts, abandonedCounts, lastErrors, next, poisoned, fingerprints, failed,
		interruptedCounts)
	for _, position := range positions {
		applied[position] = true
	}
	return applied, base.Doing(doing, err)
}

func inUTC(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return new(t.UTC())
}
