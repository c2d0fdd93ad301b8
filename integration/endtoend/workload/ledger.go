package workload

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
)

// Ledger records what was produced. Verdict compares it with the database. It is safe for
// concurrent use.
type Ledger struct {
	mu  sync.Mutex
	ids []string
	bad int
}

// Produced records messages that the inbox must deliver from now on: their producer got an
// acknowledgement, or retries until it gets one. Each ID is recorded once.
func (l *Ledger) Produced(ids ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids = append(l.ids, ids...)
}

// ProducedBad records n records that cannot be decoded into messages.
func (l *Ledger) ProducedBad(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bad += n
}

// Count returns how many messages were produced so far.
func (l *Ledger) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ids)
}

func (l *Ledger) snapshot() (ids []string, bad int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ids[:len(l.ids):len(l.ids)], l.bad
}

// Progress is how far the inbox has come, as counts of rows.
type Progress struct {
	Messages, Completed, Poisoned, Pending, Processing, Rejected int
	// Deleted counts messages that cleanup has deleted. The other counts include them and their statuses.
	Deleted int
}

// Ended returns how many statuses and records are finished.
func (p Progress) Ended() int { return p.Completed + p.Poisoned + p.Rejected }

const progressQuery = `
SELECT (SELECT count(*) FROM job_messages), count(*) FILTER (WHERE completed_at IS NOT NULL), count(*) FILTER (WHERE is_poisoned),
	count(*) FILTER (WHERE completed_at IS NULL AND NOT is_poisoned), count(*) FILTER (WHERE processing_started_at IS NOT NULL),
	(SELECT count(*) FROM inbox_rejected_messages), (SELECT count(*) FROM deleted_messages)
FROM job_statuses`

// ReadProgress reads the progress from the database.
func ReadProgress(ctx context.Context, db *sql.DB) (Progress, error) {
	var p Progress
	err := db.QueryRowContext(ctx, progressQuery).Scan(&p.Messages, &p.Completed, &p.Poisoned, &p.Pending, &p.Processing,
		&p.Rejected, &p.Deleted)
	if err != nil {
		return p, fmt.Errorf("read progress: %w", err)
	}
	return p, nil
}

// Settled reports whether everything produced so far is finished.
func (l *Ledger) Settled(p Progress) bool {
	ids, bad := l.snapshot()
	return p.Messages == len(ids) && p.Pending == 0 && p.Completed+p.Poisoned == handlers*len(ids) && p.Rejected == bad
}

// Verdict compares the ledger with the database after everything is settled.
type Verdict struct {
	Produced, Accepted  int
	Completed, Poisoned int // statuses
	Pending             int
	// Missing counts produced messages that are not stored, or lack some of their statuses, or have
	// a completed status without its effect. It also counts bad records that are not kept.
	Missing int
	// Doubled counts messages whose transactional effect happened twice, or exists although the
	// status is not completed.
	Doubled int
	// Misjudged counts messages that were poisoned although their job did not ask for it, or
	// completed although it did.
	Misjudged int
	// Unknown counts stored messages that were never produced.
	Unknown int
	// Reruns counts runs of the plain handler beyond those that its failures explain. Crashes and
	// lost responses cause them. They are allowed: handlers have to be idempotent because of them.
	Reruns int
}

// Broken reports whether a promise was broken or something is still pending.
func (v Verdict) Broken() bool {
	return v.Missing+v.Doubled+v.Misjudged+v.Unknown+v.Pending > 0 || v.Accepted != v.Produced
}

// verdictQuery checks every message that was produced or stored.
const verdictQuery = `
WITH produced AS (SELECT unnest($1::text[]) AS id),
status AS (
	SELECT message_id, count(*) AS n,
		count(*) FILTER (WHERE completed_at IS NOT NULL AND NOT is_poisoned) AS completed,
		count(*) FILTER (WHERE is_poisoned AND completed_at IS NULL) AS poisoned,
		count(*) FILTER (WHERE completed_at IS NULL AND NOT is_poisoned) AS pending,
		bool_or(handler_key = 'record-effect' AND completed_at IS NOT NULL) AS effect_completed,
		bool_or(handler_key = 'log-run' AND completed_at IS NOT NULL) AS run_completed
	FROM job_statuses GROUP BY message_id
), effect AS (SELECT message_id, count(*) AS n FROM effects GROUP BY message_id),
run AS (
	SELECT message_id, count(*) FILTER (WHERE step = 'began') AS began, count(*) FILTER (WHERE step = 'failed') AS failed,
		count(*) FILTER (WHERE step = 'done') AS done
	FROM runs GROUP BY message_id
), each AS (
	SELECT p.id AS produced, m.id AS stored, COALESCE((convert_from(m.content, 'UTF8')::jsonb ->> 'poison')::boolean, false) AS poison,
		COALESCE(s.n, 0) AS statuses, COALESCE(s.completed, 0) AS completed, COALESCE(s.poisoned, 0) AS poisoned, COALESCE(s.pending, 0) AS pending,
		COALESCE(s.effect_completed, false) AS effect_completed, COALESCE(s.run_completed, false) AS run_completed,
		COALESCE(e.n, 0) AS effects, COALESCE(r.done, 0) AS done, COALESCE(r.began, 0) AS began, COALESCE(r.failed, 0) AS failed
	FROM produced p FULL JOIN job_messages m ON m.id = p.id
	LEFT JOIN status s ON s.message_id = COALESCE(m.id, p.id)
	LEFT JOIN effect e ON e.message_id = COALESCE(m.id, p.id)
	LEFT JOIN run r ON r.message_id = COALESCE(m.id, p.id)
)
SELECT count(*) FILTER (WHERE stored IS NOT NULL), COALESCE(sum(completed), 0), COALESCE(sum(poisoned), 0), COALESCE(sum(pending), 0),
	count(*) FILTER (WHERE produced IS NOT NULL AND (stored IS NULL OR statuses <> 2 OR effect_completed AND effects = 0 OR run_completed AND done = 0)),
	count(*) FILTER (WHERE effects > 1 OR effects > 0 AND NOT effect_completed),
	count(*) FILTER (WHERE stored IS NOT NULL AND (poison AND completed > 0 OR NOT poison AND poisoned > 0)),
	count(*) FILTER (WHERE produced IS NULL),
	COALESCE(sum(greatest(began - failed - 1, 0)), 0),
	(SELECT count(*) FROM inbox_rejected_messages)
FROM each`

// Verdict compares what was produced with what the database holds.
func (l *Ledger) Verdict(ctx context.Context, db *sql.DB) (Verdict, error) {
	ids, bad := l.snapshot()
	v := Verdict{Produced: len(ids)}
	var rejected int
	err := db.QueryRowContext(ctx, verdictQuery, ids).Scan(&v.Accepted, &v.Completed, &v.Poisoned, &v.Pending,
		&v.Missing, &v.Doubled, &v.Misjudged, &v.Unknown, &v.Reruns, &rejected)
	if err != nil {
		return v, fmt.Errorf("read verdict: %w", err)
	}
	v.Missing += max(bad-rejected, 0)
	v.Unknown += max(rejected-bad, 0)
	return v, nil
}

// Suspects describes some of the messages that cause a broken verdict, with their rows.
func (l *Ledger) Suspects(ctx context.Context, db *sql.DB) ([]string, error) {
	ids, _ := l.snapshot()
	rows, err := db.QueryContext(ctx, `
SELECT concat_ws(' ', p.id, 'stored=' || (m.id IS NOT NULL), (SELECT string_agg(concat_ws(' ', s.handler_key, 'completed=' || (s.completed_at IS NOT NULL),
		'poisoned=' || s.is_poisoned, 'errors=' || s.error_count, 'abandoned=' || s.abandoned_count, 'version=' || s.version,
		'processing=' || (s.processing_started_at IS NOT NULL), 'last_error=' || left(s.last_error, 200)), '; ') FROM job_statuses s WHERE s.message_id = p.id),
	'effects=' || (SELECT count(*) FROM effects e WHERE e.message_id = p.id),
	'runs=' || (SELECT string_agg(r.step || '/' || r.pid, ',' ORDER BY r.at) FROM runs r WHERE r.message_id = p.id))
FROM unnest($1::text[]) AS p(id) LEFT JOIN job_messages m ON m.id = p.id
WHERE m.id IS NULL OR (SELECT count(*) FROM effects e WHERE e.message_id = p.id) <> 1
	OR NOT EXISTS (SELECT FROM runs r WHERE r.message_id = p.id AND r.step = 'done')
	OR EXISTS (SELECT FROM job_statuses s WHERE s.message_id = p.id AND s.completed_at IS NULL)
LIMIT 20`, ids)
	if err != nil {
		return nil, fmt.Errorf("read suspects: %w", err)
	}
	defer rows.Close()
	var suspects []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return nil, fmt.Errorf("read suspects: %w", err)
		}
		suspects = append(suspects, line)
	}
	return suspects, rows.Err()
}
