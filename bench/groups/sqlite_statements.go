package groups

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// The statements of processing on the inbox's own tables, each for a thousand statuses.
const (
	claimAlone = `UPDATE {statuses} SET processing_started_at = ?1, version = version + 1 WHERE rowid IN (
		SELECT rowid FROM {statuses}
		WHERE handler_key = 'bench-handler-1' AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
			AND processing_started_at IS NULL
		ORDER BY COALESCE(next_attempt_at, created_at), id LIMIT 1000
	) RETURNING id, version, message_number`

	readAlone = `SELECT m.id, m.type, m.content FROM json_each(?1) k JOIN {messages} m ON m.number = k.value`

	completeAlone = `UPDATE {statuses} SET completed_at = ?1, outcome = 'processed', processing_started_at = NULL,
		version = {statuses}.version + 1
		FROM json_each(?2) k
		WHERE {statuses}.id = json_extract(k.value, '$[0]') AND {statuses}.version = json_extract(k.value, '$[1]')
			AND ` + base.OpenSQL
)

// statementsAlone returns the timed part of a trial that runs nothing but the statements, one after
// the other in a loop: no workers, no retries, no recovery.
func statementsAlone(ib *ours.Inbox) func(context.Context) error {
	tables := strings.NewReplacer("{statuses}", ib.Tables().HandlerStatuses(), "{messages}", ib.Tables().Messages())
	return func(ctx context.Context) error {
		pool, err := ib.DB.DB()
		if err != nil {
			return err
		}
		for {
			var claims [][2]any
			var numbers []int64
			claim := func(rows *sql.Rows) error {
				var id string
				var version, number int64
				err := rows.Scan(&id, &version, &number)
				claims, numbers = append(claims, [2]any{id, version}), append(numbers, number)
				return err
			}
			now := store.SQLiteTime(time.Now())
			if err := each(ctx, pool, tables.Replace(claimAlone), claim, now); err != nil || len(claims) == 0 {
				return err
			}
			handle := func(rows *sql.Rows) error {
				var id, kind string
				var content []byte
				err := rows.Scan(&id, &kind, &content)
				ib.Handled.Add(1)
				return err
			}
			if err := each(ctx, pool, tables.Replace(readAlone), handle, list(numbers)); err != nil {
				return err
			}
			if _, err := pool.ExecContext(ctx, tables.Replace(completeAlone), now, list(claims)); err != nil {
				return err
			}
		}
	}
}

// list encodes an argument for json_each.
func list(of any) string {
	text, err := json.Marshal(of)
	if err != nil {
		panic(err) // texts and numbers always encode
	}
	return string(text)
}

// each calls scan for each row of a query.
func each(ctx context.Context, pool *sql.DB, query string, scan func(*sql.Rows) error, args ...any) error {
	rows, err := pool.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
