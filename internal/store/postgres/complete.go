package postgres

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// completeSQL uses handler_statuses_open. To find a row by its place would seem cheaper, but reading a page by an index
// also removes the row's versions from before its claim: only then has the page room for the new version. Completing
// also ends being poisoned, so that a completed row has no other state.
const completeSQL = `
WITH completed AS (
	UPDATE {statuses} s SET ` + completedSQL + completionsSQL + `
	WHERE s.id = c.id AND s.version = c.version AND ` + base.OpenSQL + `
	RETURNING c.position - 1 AS position
)` + positionsSQL

// positionsSQL returns the positions in one row, because a client allocates for each row.
const positionsSQL = `
SELECT string_agg(position::text, ' ') FROM completed`

// completeOneSQL uses handler_statuses_open.
const completeOneSQL = `
UPDATE {statuses} s SET ` + completedSQL + `
FROM (VALUES ($4::text)) AS c(outcome)
WHERE s.id = $2::text::uuid AND s.version = $3::bigint AND ` + base.OpenSQL

// completeUnlockedSQL is completeSQL for rows that are not locked, see settleUnlockedSQL. Without the second cast, ANY
// would take the sub-select for one of rows.
const completeUnlockedSQL = `
WITH free AS MATERIALIZED (
	SELECT id FROM {statuses} WHERE id = ANY ((SELECT $2::uuid[])::uuid[]) AND ` + base.OpenSQL + ` FOR NO KEY UPDATE SKIP LOCKED
), completed AS (
	UPDATE {statuses} s SET ` + completedSQL + completionsSQL + `
	WHERE s.id = c.id AND c.id IN (SELECT id FROM free) AND s.version = c.version AND ` + base.OpenSQL + `
	RETURNING c.position - 1 AS position
)` + positionsSQL

// completionsSQL is the batch of a completion. Its arrays are sub-selects, which hide their lengths from the planner. A
// prepared statement is planned for its arguments the first five times on each connection, and a thousand index scans
// seem more expensive than to scan a table of a hundred thousand rows, or expensive enough for PostgreSQL to compile
// the statement (jit).
const completionsSQL = `
FROM unnest((SELECT $2::uuid[]), (SELECT $3::bigint[]), (SELECT $4::text[])) WITH ORDINALITY AS c(id, version, outcome, position)`

// completedSQL takes the time of completion from the database's clock, because cleanup judges age by that clock. A
// test's clock counts instead of it.
const completedSQL = `completed_at = COALESCE({latest}, $1::timestamptz), outcome = c.outcome, processing_started_at = NULL, worker_id = NULL,
	next_attempt_at = NULL, abandoned_count = 0, interrupted_count = 0, is_poisoned = false, is_waiting = false,
	holds_lane = false, version = s.version + 1`

// currentSQL uses handler_statuses_open. For the sub-selects, see completionsSQL.
const currentSQL = `
SELECT c.position - 1
FROM unnest((SELECT $1::text[]::uuid[]), (SELECT $2::bigint[])) WITH ORDINALITY AS c(id, version, position)
JOIN {statuses} s ON s.id = c.id AND s.version = c.version AND ` + base.OpenSQL

func (p *Store) Complete(
	ctx context.Context, completions []store.Completion, at time.Time, locked store.Locked,
) ([]bool, error) {
	statement := completeSQL
	if locked == store.SkipLocked {
		statement = completeUnlockedSQL
	}
	return p.complete(ctx, p.Pool(ctx), completions, at, statement)
}

func (p *Store) complete(
	ctx context.Context, pool gorm.ConnPool, completions []store.Completion, at time.Time, statement string,
) ([]bool, error) {
	n := len(completions)
	applied := make([]bool, n)
	if n == 0 {
		return applied, nil
	}
	// All callers update rows in the same order, so that none of them deadlock.
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(completions[a].StatusID, completions[b].StatusID) })
	statusIDs, versions, outcomes := make([]string, n), make([]int64, n), make([]string, n)
	for k, i := range order {
		c := &completions[i]
		statusIDs[k], versions[k], outcomes[k] = c.StatusID, c.Version, string(c.Outcome)
	}
	ids, err := uuids(statusIDs)
	if err != nil {
		return nil, base.Doing("complete", err)
	}
	rows, err := store.Query(ctx, pool, p.Text(statement), store.Value[sql.NullString], at.UTC(), ids, versions,
		texts(outcomes))
	for _, row := range rows {
		for position := range strings.FieldsSeq(row.String) {
			k, err := strconv.Atoi(position)
			if err != nil {
				return nil, base.Doing("complete", err)
			}
			applied[order[k]] = true
		}
	}
	return applied, base.Doing("complete", err)
}

func (p *Store) CompleteTx(
	ctx context.Context, tx *gorm.DB, completions []store.Completion, at time.Time,
) ([]bool, error) {
	if len(completions) != 1 {
		var applied []bool
		err := p.joined(ctx, tx, func(pool gorm.ConnPool) (err error) {
			applied, err = p.complete(ctx, pool, completions, at, completeSQL)
			return err
		})
		return applied, err
	}
	c, changed := completions[0], int64(0)
	err := p.joined(ctx, tx, func(pool gorm.ConnPool) (err error) {
		changed, err = store.Exec(ctx, pool, p.Text(completeOneSQL), at.UTC(), c.StatusID, c.Version, string(c.Outcome))
		return err
	})
	return []bool{changed == 1}, base.Doing("complete", err)
}

func (p *Store) CurrentTx(ctx context.Context, tx *gorm.DB, completions []store.Completion) ([]bool, error) {
	ids, versions := make([]string, len(completions)), make([]int64, len(completions))
	for i, c := range completions {
		ids[i], versions[i] = c.StatusID, c.Version
	}
	var positions []int
	err := p.joined(ctx, tx, func(pool gorm.ConnPool) (err error) {
		positions, err = store.Query(ctx, pool, p.Text(currentSQL), store.Value[int], ids, versions)
		return err
	})
	if err != nil {
		return nil, base.Doing("check claims", err)
	}
	current := make([]bool, len(completions))
	for _, position := range positions {
		current[position] = true
	}
	return current, nil
}
