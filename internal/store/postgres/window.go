package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// windowRowsSQL reads a part of the due index, and each row's message by the unique index on numbers. Its limit is part
// of the text: see openClaimsSQL.
var windowRowsSQL = fmt.Sprintf(`
SELECT due, id::text, is_last, is_ours FROM (
	SELECT due, id, row_number() OVER (ORDER BY due, id) = %[1]d AS is_last,
		processing_started_at IS NULL
			AND COALESCE((SELECT m.namespace FROM {messages} m WHERE m.number = message_number), '') <> ALL ($5::text[]) AS is_ours
	FROM (
		SELECT COALESCE(next_attempt_at, created_at) AS due, id, message_number, processing_started_at FROM {statuses}
		WHERE handler_key = $1 AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
			AND COALESCE(next_attempt_at, created_at) <= GREATEST($2::timestamptz, statement_timestamp())
			AND (COALESCE(next_attempt_at, created_at), id) >
				(COALESCE($3::timestamptz, '-infinity'), COALESCE($4::text::uuid, '00000000-0000-0000-0000-000000000000'))
		ORDER BY COALESCE(next_attempt_at, created_at), id
		LIMIT %[1]d
	) read
) judged
WHERE is_ours OR is_last`, store.WindowRows)

// within returns a claim's statement and arguments for a window. Only such claims have the conditions, so that the plan
// of all others is as it is. CASE hides the IDs from the planner, for which they would be a reason not to read the
// index of due rows.
func within(w *store.Window, statement string, args ...any) (string, []any) {
	if w == nil {
		return statement, args
	}
	n := len(args)
	condition := fmt.Sprintf(`
			AND (COALESCE(next_attempt_at, created_at), id) >
				(COALESCE($%d::timestamptz, '-infinity'), COALESCE($%d::text::uuid, '00000000-0000-0000-0000-000000000000'))
			AND (COALESCE(next_attempt_at, created_at), id) <=
				(COALESCE($%d::timestamptz, 'infinity'), COALESCE($%d::text::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
			AND CASE WHEN id IN (SELECT unnest($%d::text[])::uuid) THEN true ELSE false END`,
		n+1, n+2, n+3, n+4, n+5)
	after, afterID := place(w.After)
	end, endID := place(w.End)
	args = append(args, after, afterID, end, endID, w.StatusIDs)
	return strings.ReplaceAll(statement, isDueSQL, isDueSQL+condition), args
}

func place(p *store.Place) (due *time.Time, id *string) {
	if p == nil {
		return nil, nil
	}
	return inUTC(&p.Due), &p.StatusID
}

func (p *Store) NextWindow(
	ctx context.Context, handlerKey string, after *store.Place, leave []string, now time.Time,
) (store.Window, error) {
	due, id := place(after)
	rows, err := store.Query(ctx, p.Pool(ctx), p.Text(windowRowsSQL), base.ScanWindowRow,
		handlerKey, now.UTC(), due, id, leave)
	return base.WindowOf(after, rows), base.Doing("read a window of due statuses", err)
}
