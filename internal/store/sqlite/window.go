package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// windowRowsSQL reads a part of the due index, and each row's message by the unique index on numbers. The sign in front
// of the time keeps a driver from parsing it (modernc.org/sqlite under _texttotime).
var windowRowsSQL = fmt.Sprintf(`
SELECT '=' || due, id, is_last, is_ours FROM (
	SELECT due, id, row_number() OVER (ORDER BY due, id) = %[1]d AS is_last,
		processing_started_at IS NULL
			AND COALESCE((SELECT m.namespace FROM {messages} m WHERE m.number = message_number), '')
				NOT IN (SELECT value FROM json_each(?5)) AS is_ours
	FROM (
		SELECT COALESCE(next_attempt_at, created_at) AS due, id, message_number, processing_started_at FROM {statuses}
		WHERE handler_key = ?1 AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
			AND COALESCE(next_attempt_at, created_at) <= ?2
			AND COALESCE(next_attempt_at, created_at) >= ?3 AND (COALESCE(next_attempt_at, created_at) > ?3 OR id > ?4)
		ORDER BY COALESCE(next_attempt_at, created_at), id
		LIMIT %[1]d
	)
)
WHERE is_ours OR is_last`, store.WindowRows)

// withinSQL is the further condition of a claim within a window. The sign in front of id makes the planner read the
// index of due rows.
const withinSQL = `
		AND COALESCE(next_attempt_at, created_at) >= ?10 AND (COALESCE(next_attempt_at, created_at) > ?10 OR id > ?11)
		AND COALESCE(next_attempt_at, created_at) <= ?12 AND (COALESCE(next_attempt_at, created_at) < ?12 OR id <= ?13)
		AND +id IN (SELECT value FROM json_each(?14))`

// within returns a claim's statement and arguments for a window.
func within(w *store.Window, statement string, args ...any) (string, []any) {
	if w == nil {
		return statement, args
	}
	for len(args) < 9 {
		args = append(args, nil)
	}
	after, afterID := place(w.After)
	end, endID := "~", "~" // after each time, and each ID
	if w.End != nil {
		end, endID = place(w.End)
	}
	return strings.ReplaceAll(statement, isPendingSQL, isPendingSQL+withinSQL),
		append(args, after, afterID, end, endID, base.JSONList(w.StatusIDs))
}

// place returns a place as the due index has it, and one before each for nil.
func place(p *store.Place) (due, id string) {
	if p == nil {
		return "", ""
	}
	return cmp.Or(p.Stored, store.SQLiteTime(p.Due)), p.StatusID
}

func (s *Store) NextWindow(
	ctx context.Context, handlerKey string, after *store.Place, leave []string, now time.Time,
) (store.Window, error) {
	due, id := place(after)
	rows, err := store.Query(ctx, s.Pool(ctx), s.Text(windowRowsSQL), func(rows *sql.Rows, r *base.WindowRow) error {
		var at store.Stamp
		if err := rows.Scan(&r.Stored, &r.StatusID, &r.IsLast, &r.IsOurs); err != nil {
			return err
		}
		r.Stored = strings.TrimPrefix(r.Stored, "=")
		err := at.Scan(r.Stored)
		r.Due = at.Time
		return err
	}, handlerKey, store.SQLiteTime(now), due, id, base.JSONList(leave))
	return base.WindowOf(after, rows), base.Doing("read a window of due statuses", err)
}
