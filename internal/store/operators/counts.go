package operators

import (
	"context"
	"database/sql"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// countOpen counts the open statuses of handler keys, up to $3 of each kind and key. It reads rows only of those that
// are due by $2, oldest due first; these include the processing ones, which were due before. Everything else is counted
// in the indexes on due, waiting and poisoned rows. PostgreSQL reads no rows for an index with an expression only if
// the statement names just its columns: so the due index is walked in the order of the key, as a range of one key
// because a constant has no order.
const countOpen = `
WITH keys AS (SELECT value AS handler_key FROM {list}),
due AS MATERIALIZED (
	SELECT s.handler_key, count(*) AS looked,
		sum(CASE WHEN s.processing_started_at IS NOT NULL THEN 1 ELSE 0 END) AS processing,
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
	COALESCE(d.looked, 0), COALESCE(d.processing, 0), COALESCE(d.due, 0), d.oldest, COALESCE(d.lanes, 0)
FROM keys k LEFT JOIN due d ON d.handler_key = k.handler_key`

func (q Queries) CountOpen(ctx context.Context, pool gorm.ConnPool, keys []string, limit int, now, soon time.Time) (
	[]store.OpenCounts, error,
) {
	return query(ctx, q, pool, countOpen, func(rows *sql.Rows, c *store.OpenCounts) error {
		var oldest store.Stamp
		var lanes int
		err := rows.Scan(&c.HandlerKey, &c.Open, &c.Waiting, &c.Poisoned, &c.Looked, &c.Processing, &c.Due, &oldest, &lanes)
		c.OldestDue, c.InLanes = oldest.Time, lanes > 0
		return err
	}, base.JSONList(keys), q.form.Time(soon), limit, q.form.Time(now))
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
