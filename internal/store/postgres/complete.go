package postgres

import (
	"context"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// completeSQL finds rows by their places (a TID scan): the cheapest way to rows that were read a
// moment ago. ID and version verify that a place still holds the same row. Completing also ends
// being poisoned, so that a completed row has no other state.
const completeSQL = `
UPDATE {statuses} s SET ` + completedSQL + `
FROM unnest($2::text::uuid[], $3::bigint[], $4::text::text[], $5::text::tid[]) WITH ORDINALITY AS c(id, version, outcome, place, position)
WHERE s.ctid = c.place AND s.id = c.id AND s.version = c.version AND s.completed_at IS NULL
RETURNING c.position - 1`

// completeMovedSQL uses handler_statuses_pkey. It is for rows that VACUUM FULL or pg_repack has
// moved, and for rows without a known place.
const completeMovedSQL = `
UPDATE {statuses} s SET ` + completedSQL + `
FROM unnest($2::text::uuid[], $3::bigint[], $4::text::text[]) WITH ORDINALITY AS c(id, version, outcome, position)
WHERE s.id = c.id AND s.version = c.version AND s.completed_at IS NULL
RETURNING c.position - 1`

// completeOneSQL uses handler_statuses_pkey.
const completeOneSQL = `
UPDATE {statuses} s SET ` + completedSQL + `
FROM (VALUES ($4::text)) AS c(outcome)
WHERE s.id = $2::text::uuid AND s.version = $3::bigint AND s.completed_at IS NULL`

// completeUnlockedSQL is completeMovedSQL for rows that are not locked, see settleUnlockedSQL.
const completeUnlockedSQL = `
WITH free AS MATERIALIZED (
	SELECT id FROM {statuses} WHERE id = ANY ($2::text::uuid[]) AND completed_at IS NULL FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {statuses} s SET ` + completedSQL + `
FROM unnest($2::text::uuid[], $3::bigint[], $4::text::text[]) WITH ORDINALITY AS c(id, version, outcome, position)
WHERE s.id = c.id AND c.id IN (SELECT id FROM free) AND s.version = c.version AND s.completed_at IS NULL
RETURNING c.position - 1`

const completedSQL = `completed_at = $1::timestamptz, outcome = c.outcome, processing_started_at = NULL, worker_id = NULL,
	next_attempt_at = NULL, abandoned_count = 0, is_poisoned = false, is_waiting = false, holds_lane = false, version = s.version + 1`

// currentSQL uses handler_statuses_pkey.
const currentSQL = `
SELECT c.position - 1
FROM unnest($1::text[]::uuid[], $2::bigint[]) WITH ORDINALITY AS c(id, version, position)
JOIN {statuses} s ON s.id = c.id AND s.version = c.version AND s.completed_at IS NULL`

func (p *Store) Complete(
	ctx context.Context, completions []store.Completion, at time.Time, locked store.Locked,
) ([]bool, error) {
	if locked == store.SkipLocked {
		return p.complete(ctx, p.Pool(ctx), completions, at, completeUnlockedSQL)
	}
	return p.complete(ctx, p.Pool(ctx), completions, at, completeSQL, completeMovedSQL)
}

// complete runs the statements one after the other, each for what is not applied yet.
func (p *Store) complete(
	ctx context.Context, pool gorm.ConnPool, completions []store.Completion, at time.Time, statements ...string,
) ([]bool, error) {
	applied := make([]bool, len(completions))
	if len(completions) == 0 {
		return applied, nil
	}
	// All callers update rows in the same order, so that none of them deadlock.
	order := make([]int, len(completions))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(completions[a].StatusID, completions[b].StatusID) })

	for _, statement := range statements {
		ids, versions, outcomes, places := completionColumns(completions, order)
		args := []any{at.UTC(), listed(ids), versions, listed(outcomes)}
		if statement == completeSQL {
			args = append(args, listedOrNull(places))
		}
		positions, err := store.Query(ctx, pool, p.Text(statement), store.Value[int], args...)
		if err != nil {
			return nil, base.Doing("complete", err)
		}
		for _, position := range positions {
			applied[order[position]] = true
		}
		if order = slices.DeleteFunc(order, func(i int) bool { return applied[i] }); len(order) == 0 {
			break
		}
	}
	return applied, nil
}

func completionColumns(
	completions []store.Completion, order []int,
) (ids []string, versions []int64, outcomes, places []string) {
	n := len(order)
	ids, versions, outcomes, places = make([]string, n), make([]int64, n), make([]string, n), make([]string, n)
	for k, i := range order {
		c := &completions[i]
		// An unknown place becomes NULL, which matches nothing.
		ids[k], versions[k], outcomes[k], places[k] = c.StatusID, c.Version, string(c.Outcome), c.Locator
	}
	return ids, versions, outcomes, places
}

func (p *Store) CompleteTx(
	ctx context.Context, tx *gorm.DB, completions []store.Completion, at time.Time,
) ([]bool, error) {
	pool, err := base.Joined(tx)
	if err != nil {
		return nil, base.Doing("complete", err)
	}
	if len(completions) != 1 {
		return p.complete(ctx, pool, completions, at, completeSQL, completeMovedSQL)
	}
	c := completions[0]
	changed, err := store.Exec(ctx, pool, p.Text(completeOneSQL), at.UTC(), c.StatusID, c.Version, string(c.Outcome))
	return []bool{changed == 1}, base.Doing("complete", err)
}

func (p *Store) CurrentTx(ctx context.Context, tx *gorm.DB, completions []store.Completion) ([]bool, error) {
	pool, err := base.Joined(tx)
	if err != nil {
		return nil, base.Doing("check claims", err)
	}
	ids, versions := make([]string, len(completions)), make([]int64, len(completions))
	for i, c := range completions {
		ids[i], versions[i] = c.StatusID, c.Version
	}
	positions, err := store.Query(ctx, pool, p.Text(currentSQL), store.Value[int], ids, versions)
	if err != nil {
		return nil, base.Doing("check claims", err)
	}
	current := make([]bool, len(completions))
	for _, position := range positions {
		current[position] = true
	}
	return current, nil
}
