package store

import (
	"context"
	"time"

	"gorm.io/gorm"
)

// Rows by their primary key.
const sqliteComplete = `
UPDATE {statuses} SET ` + sqliteCompleted + `
FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS version, json_extract(value, '$[2]') AS outcome FROM json_each(?2)) AS c
WHERE {statuses}.id = c.id AND {statuses}.version = c.version AND {statuses}.completed_at IS NULL
RETURNING id`

// By the primary key.
const sqliteCompleteOne = `
UPDATE {statuses} SET ` + sqliteCompleted + `
FROM (SELECT ?2 AS outcome) AS c
WHERE {statuses}.id = ?3 AND {statuses}.version = ?4 AND {statuses}.completed_at IS NULL`

const sqliteCompleted = `completed_at = ?1, outcome = c.outcome, processing_started_at = NULL, worker_id = NULL,
	next_attempt_at = NULL, abandoned_count = 0, is_poisoned = false, version = {statuses}.version + 1`

func (s *sqlite) Complete(ctx context.Context, completions []Completion, at time.Time) ([]bool, error) {
	applied := make([]bool, len(completions))
	if len(completions) == 0 {
		return applied, nil
	}
	rows, index := make([][3]any, len(completions)), make(map[string]int, len(completions))
	for i, c := range completions {
		rows[i], index[c.StatusID] = [3]any{c.StatusID, c.Version, c.Outcome}, i
	}
	list, err := jsonList(rows)
	if err != nil {
		return nil, doing("complete", err)
	}
	ids, err := query(ctx, s.pool(ctx), s.text(sqliteComplete), value[string], SQLiteTime(at), list)
	if err != nil {
		return nil, doing("complete", err)
	}
	for _, id := range ids {
		applied[index[id]] = true
	}
	return applied, nil
}

func (s *sqlite) CompleteTx(ctx context.Context, tx *gorm.DB, c Completion, at time.Time) (bool, error) {
	pool, err := joined(tx)
	if err != nil {
		return false, doing("complete", err)
	}
	changed, err := exec(ctx, pool, s.text(sqliteCompleteOne), SQLiteTime(at), string(c.Outcome), c.StatusID, c.Version)
	return changed == 1, doing("complete", err)
}
