package sqlite

import (
	"context"
	"database/sql"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// completeSQL uses the index on open statuses.
const completeSQL = `
UPDATE {statuses} SET ` + completedSQL + `
FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS version, json_extract(value, '$[2]') AS outcome FROM json_each(?2)) AS c
WHERE {statuses}.id = c.id AND {statuses}.version = c.version AND ` + base.OpenSQL + `
RETURNING id, version - 1`

// currentSQL uses the index on open statuses. It changes nothing, but takes the file's write lock.
const currentSQL = `
UPDATE {statuses} SET version = {statuses}.version
FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS version FROM json_each(?1)) AS c
WHERE ` + base.OpenSQL + ` AND {statuses}.id = c.id AND {statuses}.version = c.version
RETURNING id, version`

const completedSQL = `completed_at = ?1, outcome = c.outcome, processing_started_at = NULL, worker_id = NULL,
	next_attempt_at = NULL, abandoned_count = 0, interrupted_count = 0, is_poisoned = false, is_waiting = false, holds_lane = false, version = {statuses}.version + 1`

func (s *Store) Complete(
	ctx context.Context, completions []store.Completion, at time.Time, _ store.Locked,
) ([]bool, error) {
	applied, err := s.change(ctx, s.Pool(ctx), completeSQL, completions, store.SQLiteTime(at))
	return applied, base.Doing("complete", err)
}

// change runs a statement for the completions and reports which of them it applied to.
func (s *Store) change(
	ctx context.Context, pool gorm.ConnPool, statement string, completions []store.Completion, before ...any,
) ([]bool, error) {
	applied := make([]bool, len(completions))
	if len(completions) == 0 {
		return applied, nil
	}
	rows, index := make([][3]any, len(completions)), make(map[versioned]int, len(completions))
	for i, c := range completions {
		rows[i], index[versioned{c.StatusID, c.Version}] = [3]any{c.StatusID, c.Version, c.Outcome}, i
	}
	changed, err := store.Query(ctx, pool, s.Text(statement), scanVersioned, append(before, base.JSONList(rows))...)
	if err != nil {
		return nil, err
	}
	for _, row := range changed {
		applied[index[row]] = true
	}
	return applied, nil
}

// versioned identifies a row as it was before a transition.
type versioned struct {
	id      string
	version int64
}

func scanVersioned(rows *sql.Rows, v *versioned) error { return rows.Scan(&v.id, &v.version) }

func (s *Store) CompleteTx(
	ctx context.Context, tx *gorm.DB, completions []store.Completion, at time.Time,
) ([]bool, error) {
	pool, err := base.Joined(tx)
	if err != nil {
		return nil, base.Doing("complete", err)
	}
	applied, err := s.change(ctx, pool, completeSQL, completions, store.SQLiteTime(at))
	return applied, base.Doing("complete", err)
}

func (s *Store) CurrentTx(ctx context.Context, tx *gorm.DB, completions []store.Completion) ([]bool, error) {
	pool, err := base.Joined(tx)
	if err != nil {
		return nil, base.Doing("check claims", err)
	}
	current, err := s.change(ctx, pool, currentSQL, completions)
	return current, base.Doing("check claims", err)
}
