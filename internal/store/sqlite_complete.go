package store

import (
	"context"
	"database/sql"
	"time"

	"gorm.io/gorm"
)

// Rows by their primary key.
const sqliteComplete = `
UPDATE {statuses} SET ` + sqliteCompleted + `
FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS version, json_extract(value, '$[2]') AS outcome FROM json_each(?2)) AS c
WHERE {statuses}.id = c.id AND {statuses}.version = c.version AND {statuses}.completed_at IS NULL
RETURNING id, version - 1`

// By the primary key.
const sqliteCompleteOne = `
UPDATE {statuses} SET ` + sqliteCompleted + `
FROM (SELECT ?2 AS outcome) AS c
WHERE {statuses}.id = ?3 AND {statuses}.version = ?4 AND {statuses}.completed_at IS NULL`

const sqliteCompleted = `completed_at = ?1, outcome = c.outcome, processing_started_at = NULL, worker_id = NULL,
	next_attempt_at = NULL, abandoned_count = 0, is_poisoned = false, is_waiting = false, holds_lane = false, version = {statuses}.version + 1`

func (s *sqlite) Complete(ctx context.Context, completions []Completion, at time.Time) ([]bool, error) {
	applied := make([]bool, len(completions))
	if len(completions) == 0 {
		return applied, nil
	}
	rows, index := make([][3]any, len(completions)), make(map[versioned]int, len(completions))
	for i, c := range completions {
		rows[i], index[versioned{c.StatusID, c.Version}] = [3]any{c.StatusID, c.Version, c.Outcome}, i
	}
	list, err := jsonList(rows)
	if err != nil {
		return nil, doing("complete", err)
	}
	changed, err := query(ctx, s.pool(ctx), s.text(sqliteComplete), scanVersioned, SQLiteTime(at), list)
	if err != nil {
		return nil, doing("complete", err)
	}
	for _, row := range changed {
		applied[index[row]] = true
	}
	return applied, nil
}

// versioned is a row as it was before a transition.
// CompleteUnlocked is Complete: SQLite locks no rows.
func (s *sqlite) CompleteUnlocked(ctx context.Context, completions []Completion, at time.Time) ([]bool, error) {
	return s.Complete(ctx, completions, at)
}

type versioned struct {
	id      string
	version int64
}

func scanVersioned(rows *sql.Rows, v *versioned) error { return rows.Scan(&v.id, &v.version) }

func (s *sqlite) CompleteTx(ctx context.Context, tx *gorm.DB, c Completion, at time.Time) (bool, error) {
	pool, err := joined(tx)
	if err != nil {
		return false, doing("complete", err)
	}
	changed, err := exec(ctx, pool, s.text(sqliteCompleteOne), SQLiteTime(at), string(c.Outcome), c.StatusID, c.Version)
	return changed == 1, doing("complete", err)
}
