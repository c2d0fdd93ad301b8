package operators

import (
	"context"
	"database/sql"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

// countOpen counts the open statuses of handler keys, up to $3 of each kind and key. It reads rows only of those that
// are due by $2, oldest due first; these include the processing ones, which were due before. Everything else is counted
// in the indexes on due, waiting and poisoned rows. PostgreSQL reads no rows for an index with an expression only if
// the statement names just its columns: so the due index is walked in the order of the key, as a range of one key
// because a constant has no order. $5 are the living workers: no claim without a worker is an orphan.
const countOpen = `
WITH keys AS (SELECT value AS handler_key FROM {list}),
due AS MATERIALIZED (
	SELECT s.handler_key, count(*) AS looked,
		sum(CASE WHEN s.processing_started_at IS NOT NULL THEN 1 ELSE 0 END) AS processing,
		sum(CASE WHEN s.processing_started_at IS NOT NULL AND s.worker_id IS NOT NULL AND CAST(s.worker_id AS text) NOT IN {fifth list} THEN 1 ELSE 0 END) AS orphaned,
		sum(CASE WHEN s.processing_started_at IS NULL AND ` + Due + ` <= $4 THEN 1 ELSE 0 END) AS due,
		min(CASE WHEN s.processing_started_at IS NULL AND ` + Due + ` <= $4 THEN ` + Due + ` END) AS oldest,
		max(CASE WHEN s.processing_started_at IS NULL AND ` + Due + ` <= $4 AND s.lane_key IS NOT NULL THEN 1 ELSE 0 END) AS lanes
	FROM keys k {each} FROM {statuses}
		WHERE handler_key = k.handler_key AND ` + isOpen + ` AND ` + Due + ` <= $2 ORDER BY ` + Due + `, id LIMIT $3
	{/each}
	GROUP BY s.handler_key
)
SELECT k.handler_key,
	(SELECT count(*) FROM (
		SELECT handler_key FROM {statuses} WHERE handler_key >= k.handler_key AND handler_key <= k.handler_key AND ` + isOpen + `
		ORDER BY handler_key LIMIT $3
	) o),
	(SELECT count(*) FROM (SELECT id FROM {statuses} WHERE handler_key = k.handler_key AND is_waiting ORDER BY id LIMIT $3) w),
	(SELECT count(*) FROM (
		SELECT id FROM {statuses} WHERE handler_key = k.handler_key AND is_poisoned AND completed_at IS NULL ORDER BY id LIMIT $3
	) p),
	COALESCE(d.looked, 0), COALESCE(d.processing, 0), COALESCE(d.orphaned, 0), COALESCE(d.due, 0), d.oldest, COALESCE(d.lanes, 0)
FROM keys k LEFT JOIN due d ON d.handler_key = k.handler_key`

func (q Queries) CountOpen(ctx context.Context, pool gorm.ConnPool, keys []string, limit int, now, soon time.Time,
	living []string) ([]store.OpenCounts, error) {
	return query(ctx, q, pool, countOpen, func(rows *sql.Rows, c *store.OpenCounts) error {
		var oldest store.Stamp
		var lanes int
		err := rows.Scan(&c.HandlerKey, &c.Open, &c.Waiting, &c.Poisoned, &c.Looked, &c.Processing, &c.Orphaned, &c.Due,
			&oldest, &lanes)
		c.OldestDue, c.InLanes = oldest.Time, lanes > 0
		return err
	}, base.JSONList(keys), q.form.Time(soon), limit, q.form.Time(now), base.JSONList(living))
}

// listClaims uses the due index: claimed statuses were due. It reads $3 rows, so that a backlog costs nothing more.
const listClaims = `
SELECT ` + rowColumns + ` FROM (
	SELECT * FROM (
		SELECT * FROM {statuses} WHERE handler_key = $1 AND ` + isOpen + ` AND ` + Due + ` <= $2 ORDER BY ` + Due + `, id LIMIT $3
	) d
	WHERE processing_started_at IS NOT NULL ORDER BY processing_started_at, id LIMIT $4
) s ORDER BY s.processing_started_at, s.id`

func (q Queries) Claims(ctx context.Context, pool gorm.ConnPool, handlerKey string, depth, limit int, soon time.Time) (
	[]store.StatusRow, error,
) {
	return query(ctx, q, pool, listClaims, scanStatus, handlerKey, q.form.Time(soon), depth, limit)
}

// listParked uses the index on poisoned rows, and for each of their lanes the index on lanes. The lanes share the $3
// rows that it counts. It is MATERIALIZED because a planner repeats the count otherwise.
const listParked = `
WITH lanes AS MATERIALIZED (
	SELECT lane_handler, lane_key, count(*) AS poisoned, min(sequence) AS first FROM (
		SELECT lane_handler, lane_key, sequence FROM {statuses}
		WHERE handler_key = $1 AND is_poisoned AND completed_at IS NULL ORDER BY id LIMIT $2
	) p WHERE lane_key IS NOT NULL GROUP BY lane_handler, lane_key
),
counted AS MATERIALIZED (
	SELECT l.lane_handler, l.lane_key, l.poisoned, (
		SELECT count(*) FROM (
			SELECT s.sequence FROM {statuses} s
			WHERE s.lane_handler = l.lane_handler AND s.lane_key = l.lane_key AND s.is_poisoned = false AND s.completed_at IS NULL
				AND s.sequence > l.first
			ORDER BY s.sequence, s.id LIMIT (SELECT $3 / count(*) FROM lanes)
		) w
	) AS waiting FROM lanes l
)
SELECT lane_handler, lane_key, poisoned, waiting, waiting >= (SELECT $3 / count(*) FROM lanes) FROM counted
WHERE waiting > 0 ORDER BY waiting DESC, lane_handler, lane_key`

func (q Queries) ParkedLanes(ctx context.Context, pool gorm.ConnPool, handlerKey string, poisoned, waiting int64) (
	[]store.ParkedLane, error,
) {
	return query(ctx, q, pool, listParked, func(rows *sql.Rows, l *store.ParkedLane) error {
		return rows.Scan(&l.Handler, &l.Key, &l.Poisoned, &l.Waiting, &l.Capped)
	}, handlerKey, poisoned, waiting)
}

// recentStatuses uses messages_received_at for the latest $4 messages, and for each the statuses' primary key.
// Completed statuses have no index by time.
const recentStatuses = `
WITH chosen AS MATERIALIZED (
	SELECT number, received_at FROM {messages} WHERE received_at >= $2 AND received_at <= $3
	ORDER BY received_at DESC, number DESC LIMIT $4
)
SELECT 0 AS messages, s.created_at, s.completed_at, s.outcome, s.is_poisoned, s.poisoned_at, s.error_count
FROM chosen c {each} FROM {statuses} WHERE message_number = c.number AND handler_key = $1 LIMIT 1 {/each}
UNION ALL
SELECT count(*), min(received_at), NULL, '', false, NULL, 0 FROM chosen`

func (q Queries) RecentStatuses(ctx context.Context, pool gorm.ConnPool, scan store.RecentScan) (
	out store.Recent, err error,
) {
	_, err = query(ctx, q, pool, recentStatuses, func(rows *sql.Rows, _ *struct{}) error {
		var s models.HandlerStatus
		var messages int
		var created, completed, poisoned store.Stamp
		err := rows.Scan(&messages, &created, &completed, &s.Outcome, &s.IsPoisoned, &poisoned, &s.ErrorCount)
		s.CreatedAt, s.CompletedAt, s.PoisonedAt = created.Time, completed.Pointer(), poisoned.Pointer()
		if messages > 0 {
			out.Messages, out.Earliest = messages, created.Time
		} else if !created.IsZero() { // else no message was read
			out.Statuses = append(out.Statuses, s)
		}
		return err
	}, scan.HandlerKey, q.form.Time(scan.From), q.form.Time(scan.To), scan.Depth)
	return out, err
}

// These use the index on poisoned rows, the index on rejected_at, and the gaps' primary key.
const (
	countPoisoned = `SELECT count(*) FROM (SELECT id FROM {statuses} WHERE handler_key = $2 AND is_poisoned AND completed_at IS NULL ORDER BY id LIMIT $1) s`
	countRejected = `SELECT count(*) FROM (SELECT id FROM {rejected} ORDER BY rejected_at LIMIT $1) r`
	countGaps     = `SELECT count(*) FROM (SELECT id FROM {gaps} ORDER BY id LIMIT $1) g`
)

func (q Queries) CountPoisoned(ctx context.Context, pool gorm.ConnPool, handlerKey string, limit int64) (int64, error) {
	return q.number(ctx, pool, countPoisoned, limit, handlerKey)
}

func (q Queries) CountRejected(ctx context.Context, pool gorm.ConnPool, limit int64) (int64, error) {
	return q.number(ctx, pool, countRejected, limit)
}

func (q Queries) CountGaps(ctx context.Context, pool gorm.ConnPool, limit int64) (int64, error) {
	return q.number(ctx, pool, countGaps, limit)
}

// isGrouped is the condition of the index on failures, for the rows that belong to groups. It repeats the index's terms
// literally: SQLite uses a partial index only for the same terms.
const isGrouped = `completed_at IS NULL AND fingerprint IS NOT NULL AND (is_poisoned OR error_count + abandoned_count + interrupted_count > 0)`

// failureGroups uses the index on failures with one step per group (a loose index scan), however many statuses a group
// has. It returns at most $2 groups of each handler key after a fingerprint.
const failureGroups = `
WITH RECURSIVE groups(handler_key, fingerprint, number) AS (
	SELECT {0}, {1}, 0 FROM {list}
	UNION ALL
	SELECT g.handler_key, (SELECT CAST(s.fingerprint AS text) FROM {statuses} s WHERE s.handler_key = g.handler_key AND ` + isGrouped + `
		AND s.fingerprint > g.fingerprint ORDER BY s.fingerprint LIMIT 1), g.number + 1
	FROM groups g WHERE g.fingerprint IS NOT NULL AND g.number < $2
)
SELECT handler_key, fingerprint, number FROM groups WHERE fingerprint IS NOT NULL AND number > 0`

func (q Queries) FailureGroups(ctx context.Context, pool gorm.ConnPool, after []store.FailureGroup, perKey int) (
	[]store.FoundGroup, error,
) {
	return query(ctx, q, pool, failureGroups, func(rows *sql.Rows, g *store.FoundGroup) error {
		return rows.Scan(&g.HandlerKey, &g.Fingerprint, &g.Number)
	}, groups(after), perKey)
}

// groups returns groups as an argument.
func groups(of []store.FailureGroup) string {
	rows := make([][3]string, len(of))
	for i, g := range of {
		rows[i] = [3]string{g.HandlerKey, g.Fingerprint, g.Before}
	}
	return base.JSONList(rows)
}

// countGroups uses the index on failures and reads the newest $2 statuses of each group before an ID. It is
// MATERIALIZED because a planner repeats the condition in each aggregate otherwise. The columns of a group that are
// shown are read by the index on open statuses. Times are not compared again: our own form is compared exactly here,
// other forms on SQLite to the second.
const countGroups = `
WITH groups AS (SELECT {0} AS handler_key, {1} AS fingerprint, {2 as ID} AS before FROM {list}),
found AS MATERIALIZED (
	SELECT CAST(s.id AS text){bytewise} AS id, s.handler_key, s.fingerprint, s.is_poisoned, s.created_at,
		(` + stateBits + ` & $3) <> 0 AND (NOT $7 OR (
			SELECT ($4 = '' OR type = $4) AND (received_at >= $5 OR {in another form} AND received_at >= $8) AND received_at < $6
			FROM {messages} WHERE number = s.message_number
		)) AS matched
	FROM groups g {each} FROM {statuses}
		WHERE handler_key = g.handler_key AND fingerprint = g.fingerprint AND ` + isGrouped + ` AND id < g.before
		ORDER BY id DESC LIMIT $2
	{/each}
),
counted AS (
	SELECT count(*) AS looked, sum(CASE WHEN matched AND is_poisoned THEN 1 ELSE 0 END) AS poisoned,
		sum(CASE WHEN matched AND NOT is_poisoned THEN 1 ELSE 0 END) AS failing,
		min(CASE WHEN matched THEN created_at END) AS first_seen, max(CASE WHEN matched THEN created_at END) AS last_seen,
		min(id) AS lowest, COALESCE(max(CASE WHEN matched THEN id END), min(id)) AS sample
	FROM found GROUP BY handler_key, fingerprint
)
SELECT looked, poisoned, failing, first_seen, last_seen, lowest, ` + rowColumns + `
FROM counted c {each} FROM {statuses} WHERE id = c.sample{as ID} AND ` + base.OpenSQL + ` {/each}`

func (q Queries) CountGroups(ctx context.Context, pool gorm.ConnPool, scan store.GroupScan) (
	[]store.GroupCount, error,
) {
	return query(ctx, q, pool, countGroups, func(rows *sql.Rows, c *store.GroupCount) error {
		var first, last store.Stamp
		err := scanColumns(rows, &c.Sample, &c.Looked, &c.Poisoned, &c.Failing, &first, &last, &c.Lowest)
		c.FirstSeen, c.LastSeen = first.Time, last.Time
		return err
	}, q.groupArguments(scan)...)
}

func (q Queries) groupArguments(scan store.GroupScan) []any {
	return []any{groups(scan.Groups), scan.Depth, scan.States, scan.Type, q.form.Time(scan.From), q.form.Time(scan.To),
		scan.ComparesMessage, q.form.Time(scan.Rough)}
}
