package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// claimSQL uses the due index, from the key's oldest due row on, and finds the worker by its primary key. Each key
// takes one statement: statements run in this process and cost microseconds.
const claimSQL = `
UPDATE {statuses} SET processing_started_at = ?1, worker_id = ?2, version = version + 1
WHERE rowid IN (
	` + boundedSQL + `SELECT rowid AS place, message_bytes FROM {statuses}
		WHERE ` + isDueSQL + `
			AND (?2 IS NULL OR EXISTS (SELECT 1 FROM {workers} WHERE id = ?2 AND released_at IS NULL))
		ORDER BY COALESCE(next_attempt_at, created_at), id
		LIMIT ?4
	` + boundSQL + `
)
RETURNING ` + claimColumnsSQL

// boundedSQL and boundSQL enclose the query for a key's rows, and end the claim at ?9 bytes, after ?8 rows.
const (
	boundedSQL = `SELECT b.place FROM (
		SELECT d.place, row_number() OVER w AS position, sum(d.message_bytes) OVER w - d.message_bytes AS before
		FROM (`
	boundSQL = `) d
		WINDOW w AS (ROWS UNBOUNDED PRECEDING)
	) b WHERE b.position <= ?8 OR b.before < ?9`
)

const isDueSQL = isPendingSQL + ` AND COALESCE(next_attempt_at, created_at) <= ?1`

const isPendingSQL = `handler_key = ?3 AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting AND processing_started_at IS NULL`

const claimColumnsSQL = `id, message_number, message_id, handler_key, version, error_count, abandoned_count, interrupted_count, requeued_count, message_bytes, created_at, COALESCE(next_attempt_at, created_at),
	lane_handler, lane_key`

// anyDueSQL reports by the due index whether a key has due rows. It runs before and outside of the claim's transaction:
// that begins by taking the file's only write lock, which a worker with nothing to do must leave to others. A status
// that becomes due, or is accepted, after the answer is found by the next claim, as it would be after the claim itself.
var anyDueSQL = `SELECT EXISTS (SELECT 1 FROM {statuses} WHERE ` + strings.ReplaceAll(isDueSQL, "?3", "?2") + `)`

// messagesSQL uses the unique index on the messages' numbers.
const messagesSQL = `
SELECT m.number, m.namespace, m.transport_name, m.type, m.source, m.content, m.content_type, m.serialized_properties, m.ordering_key, m.ordering_key IS NOT NULL, m.received_at
FROM json_each(?1) k JOIN {messages} m ON m.number = k.value`

// nextDueSQL uses the due index: the first row after now.
const nextDueSQL = `
SELECT COALESCE(next_attempt_at, created_at) FROM {statuses}
WHERE handler_key = ?1 AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
	AND COALESCE(next_attempt_at, created_at) > ?2 AND processing_started_at IS NULL
ORDER BY COALESCE(next_attempt_at, created_at), id
LIMIT 1`

// siblingsSQL uses the primary key.
const siblingsSQL = `
SELECT s.message_number, s.id, s.message_id, s.handler_key, s.version, s.error_count, s.abandoned_count, s.interrupted_count, s.lane_handler, s.lane_key,
	s.processing_started_at IS NOT NULL, s.is_poisoned, s.completed_at IS NOT NULL, s.outcome
FROM json_each(?1) k CROSS JOIN {statuses} s ON s.message_number = k.value
WHERE s.handler_key IN (SELECT value FROM json_each(?2))
ORDER BY s.message_number, s.handler_key`

func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.Claimed, error) {
	limits := slices.DeleteFunc(slices.Clone(req.Limits), func(l store.KeyLimit) bool { return l.Limit <= 0 })
	if len(limits) == 0 {
		return store.Claimed{}, nil
	}
	slices.SortFunc(limits, func(a, b store.KeyLimit) int { return cmp.Compare(a.HandlerKey, b.HandlerKey) })
	var worker any
	if req.WorkerID != "" {
		worker = req.WorkerID
	}
	now := store.SQLiteTime(req.Now)
	limits, err := s.withDue(ctx, now, limits)
	if err != nil || len(limits) == 0 {
		return store.Claimed{}, base.Doing("claim", err)
	}
	var claimed store.Claimed
	err = s.Transaction(ctx, func(pool gorm.ConnPool) error {
		claimed = store.Claimed{}
		for _, limit := range limits {
			if limit.Lanes != nil {
				claims, marked, err := s.claimHeads(ctx, pool, now, worker, limit, req.Within)
				if err != nil {
					return err
				}
				claimed.Claims = append(claimed.Claims, claims...)
				if marked {
					claimed.More = append(claimed.More, limit.HandlerKey)
				}
				continue
			}
			statement, args := within(req.Within, claimSQL,
				now, worker, limit.HandlerKey, limit.Limit, nil, nil, nil, limit.AtLeast, limit.EndsAt())
			claims, err := store.Query(ctx, pool, s.Text(statement), func(rows *sql.Rows, c *store.Claim) error {
				return scanClaim(rows, c)
			}, args...)
			if err != nil {
				return err
			}
			base.SortClaims(claims) // RETURNING promises no order
			claimed.Claims = append(claimed.Claims, claims...)
		}
		return s.attachMessages(ctx, pool, claimed.Claims)
	})
	if err != nil {
		return store.Claimed{}, base.Doing("claim", err)
	}
	claimed.More = base.Distinct(append(claimed.More, base.Ended(limits, claimed.Claims)...))
	return claimed, nil
}

// withDue returns the limits of the keys that have due rows.
func (s *Store) withDue(ctx context.Context, now string, limits []store.KeyLimit) ([]store.KeyLimit, error) {
	var with []store.KeyLimit
	for _, limit := range limits {
		due, err := store.Query(ctx, s.Pool(ctx), s.Text(anyDueSQL), store.Value[bool], now, limit.HandlerKey)
		if err != nil {
			return nil, err
		}
		if due[0] {
			with = append(with, limit)
		}
	}
	return with, nil
}

// scanClaim scans a claim without its message, which attachMessages adds.
func scanClaim(rows *sql.Rows, c *store.Claim, more ...any) error {
	var created, due store.Stamp
	var lane base.LaneColumns
	err := rows.Scan(append([]any{&c.StatusID, &c.MessageNumber, &c.MessageID, &c.HandlerKey, &c.Version, &c.ErrorCount,
		&c.AbandonedCount, &c.InterruptedCount, &c.RequeuedCount, &c.MessageBytes, &created, &due,
		&lane.Handler, &lane.Key}, more...)...)
	c.CreatedAt, c.Due, c.Lane = created.Time, due.Time, lane.Lane()
	return err
}

// attachMessages adds the messages that claims have not yet. It reads each message once, however many handlers it has.
// A claim whose message is gone stays without one.
func (s *Store) attachMessages(ctx context.Context, pool gorm.ConnPool, claims []store.Claim) error {
	var numbers []int64
	for _, claim := range claims {
		if claim.Message == nil {
			numbers = append(numbers, claim.MessageNumber)
		}
	}
	if len(numbers) == 0 {
		return nil
	}
	slices.Sort(numbers)
	stored, err := store.Query(ctx, pool, s.Text(messagesSQL), func(rows *sql.Rows, m *base.StoredMessage) error {
		var ordered bool
		err := rows.Scan(&m.Number, &m.Namespace, &m.TransportName, &m.MessageType, &m.Source, &m.Content, &m.ContentType,
			&m.Properties, &m.OrderingKey, &ordered, &m.ReceivedAt)
		if ordered && m.OrderingKey == nil { // some drivers read an empty blob as nil
			m.OrderingKey = []byte{}
		}
		return err
	}, base.JSONList(slices.Compact(numbers)))
	if err != nil {
		return err
	}
	byNumber := make(map[int64]base.StoredMessage, len(stored))
	for _, message := range stored {
		byNumber[message.Number.Int64] = message
	}
	for i := range claims {
		if claims[i].Message == nil {
			claims[i].Message = byNumber[claims[i].MessageNumber].Message(claims[i].MessageID) // a copy each
		}
	}
	return nil
}

func (s *Store) NextDue(ctx context.Context, keys []string, now time.Time) (time.Time, error) {
	var earliest time.Time
	for _, key := range keys {
		found, err := store.Query(ctx, s.Pool(ctx), s.Text(nextDueSQL), store.Value[store.Stamp], key, store.SQLiteTime(now))
		if err != nil {
			return time.Time{}, base.Doing("find the next due status", err)
		}
		if len(found) == 1 && (earliest.IsZero() || found[0].Before(earliest)) {
			earliest = found[0].Time
		}
	}
	return earliest, nil
}

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
