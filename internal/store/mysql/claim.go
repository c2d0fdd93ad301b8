package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
)

// dueSQL locks the due rows of one key that a claim begins with, by the due index. Rows that are read and are none of
// these are not locked under READ COMMITTED.
//
// A new status is due at any time, while a retry is due by the claimer's clock, which follows the database's unless it
// is a test's. To make both one range of the index, the range reaches up to the later of the two clocks.
const dueSQL = `
SELECT ` + claimColumns + ` FROM {statuses} FORCE INDEX (due)
WHERE ` + isDue + ` ORDER BY due_at, id LIMIT ?4 FOR UPDATE SKIP LOCKED`

const (
	isDue = isPending + ` AND due_at <= GREATEST(?2, UTC_TIMESTAMP(6)) AND processing_started_at IS NULL AND (next_attempt_at IS NULL OR next_attempt_at <= ?3)`

	// isPending has the range ?5 to ?8: the places after and up to which rows are read.
	isPending = `handler_key = ?1 AND due_at >= ?5 AND (due_at > ?5 OR id > ?6) AND due_at <= ?7 AND (due_at < ?7 OR id <= ?8)`

	claimColumns = `id, message_number, message_id, handler_key, version, error_count, abandoned_count, interrupted_count,
	requeued_count, message_bytes, created_at, COALESCE(next_attempt_at, created_at), lane_handler, lane_key`
)

// claimSQL uses the primary key. The rows are locked.
const claimSQL = `
UPDATE {statuses} FORCE INDEX (PRIMARY) SET processing_started_at = ?2, worker_id = ?3, version = version + 1, is_waiting = 0, holds_lane = ?4 AND lane_key IS NOT NULL
WHERE id IN ({list ?1})`

// messagesSQL uses the primary key.
const messagesSQL = `
SELECT number, namespace, transport_name, type, source, content, content_type, serialized_properties, ordering_key, received_at
FROM {messages} FORCE INDEX (PRIMARY) WHERE number IN ({list ?1})`

// latestMessagesSQL is messagesSQL for what the transaction's snapshot does not show.
const latestMessagesSQL = messagesSQL + ` LOCK IN SHARE MODE`

// nextDueSQL uses the due index: the first row after now.
const nextDueSQL = `
SELECT due_at FROM {statuses} FORCE INDEX (due)
WHERE handler_key = ?1 AND due_at > ?2 AND processing_started_at IS NULL ORDER BY due_at, id LIMIT 1`

// siblingsSQL uses the unique key on (message_number, handler_key).
const siblingsSQL = `
SELECT message_number, id, message_id, handler_key, version, error_count, abandoned_count, interrupted_count, lane_handler, lane_key,
	processing_started_at IS NOT NULL, is_poisoned, completed_at IS NOT NULL, outcome
FROM {statuses} FORCE INDEX (message) WHERE message_number IN ({list ?1}) AND handler_key IN ({list ?2})
ORDER BY message_number, handler_key`

// The ends of all times and IDs.
const (
	firstTime = "0001-01-01 00:00:00.000000"
	lastTime  = "9999-12-31 23:59:59.999999"
	lastID    = "~"
)

// bounds returns the range of a claim.
func bounds(w *store.Window, after *store.Place) (args []any) {
	due, id := firstTime, ""
	if w != nil {
		after = w.After
	}
	if after != nil {
		due, id = mysqldialect.Time(after.Due), after.StatusID
	}
	end, endID := lastTime, lastID
	if w != nil && w.End != nil {
		end, endID = mysqldialect.Time(w.End.Due), w.End.StatusID
	}
	return []any{due, id, end, endID}
}

func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (claimed store.Claimed, err error) {
	limits := slices.DeleteFunc(slices.Clone(req.Limits), func(l store.KeyLimit) bool { return l.Limit <= 0 })
	if len(limits) == 0 {
		return claimed, nil
	}
	slices.SortFunc(limits, func(a, b store.KeyLimit) int { return cmp.Compare(a.HandlerKey, b.HandlerKey) })
	var marked []store.LaneRequest
	err = s.retrying(ctx, func(pool gorm.ConnPool) error {
		claimed, marked = store.Claimed{}, nil
		if req.WorkerID != "" {
			lives, err := s.lockWorker(ctx, pool, req.WorkerID, false)
			if err != nil || !lives {
				return err
			}
		}
		for _, limit := range limits {
			claims, err := s.claimKey(ctx, pool, req, limit, &claimed, &marked)
			if err != nil {
				return err
			}
			if err := s.take(ctx, pool, req, claims, limit.Lanes != nil); err != nil {
				return err
			}
			claimed.Claims = append(claimed.Claims, claims...)
		}
		return s.attachMessages(ctx, pool, claimed.Claims)
	})
	if err != nil {
		return store.Claimed{}, base.Doing("claim", err)
	}
	base.SortClaims(claimed.Claims)
	// The row before a marked one may have ended since it was judged, and who ended it may not have seen the mark.
	free, err := s.AdvanceLanes(ctx, marked, req.Now)
	claimed.LanesErr = err
	claimed.More = append(claimed.More, base.Ended(limits, claimed.Claims)...)
	claimed.More = base.Distinct(append(claimed.More, free...))
	return claimed, nil
}

// claimKey locks the rows to claim of one key.
func (s *Store) claimKey(ctx context.Context, pool gorm.ConnPool, req store.ClaimRequest, limit store.KeyLimit,
	claimed *store.Claimed, marked *[]store.LaneRequest,
) ([]store.Claim, error) {
	if limit.Lanes != nil {
		return s.lockHeads(ctx, pool, req, limit, claimed, marked)
	}
	statement, args := within(dueSQL, req, limit.HandlerKey, limit.Limit, limit.After)
	claims, err := store.Query(ctx, pool, s.Text(statement), scanClaim, args...)
	if err != nil {
		return nil, err
	}
	if limit.After != nil && req.Within == nil && len(claims) < limit.Limit {
		claimed.More = append(claimed.More, limit.HandlerKey)
	}
	return withinBytes(claims, limit), nil
}

// within returns a claim's statement and its arguments. It adds the IDs of a window. The due index is forced, so that
// they are no reason to read another one.
func within(statement string, req store.ClaimRequest, key string, rows int, after *store.Place) (string, []any) {
	args := append([]any{key, req.Now, req.Now, rows}, bounds(req.Within, after)...)
	if req.Within == nil {
		return statement, args
	}
	return strings.ReplaceAll(statement, isPending, isPending+` AND id IN ({list ?9})`),
		append(args, listOf(req.Within.StatusIDs))
}

// withinBytes ends the claim of one key at its bytes.
func withinBytes(claims []store.Claim, limit store.KeyLimit) []store.Claim {
	var before int64
	for i, c := range claims {
		if i > 0 && i >= limit.AtLeast && before >= limit.EndsAt() {
			return claims[:i]
		}
		before += int64(c.MessageBytes)
	}
	return claims
}

// take claims rows that are locked.
func (s *Store) take(ctx context.Context, pool gorm.ConnPool, req store.ClaimRequest, claims []store.Claim,
	ordered bool,
) error {
	ids := make(mysqldialect.List, len(claims))
	for i := range claims {
		ids[i] = claims[i].StatusID
		claims[i].Version++
	}
	worker := sql.NullString{String: req.WorkerID, Valid: req.WorkerID != ""}
	_, err := execAll(ctx, s, pool, claimSQL, ids, req.Now, worker, ordered)
	return err
}

func scanClaim(rows *sql.Rows, c *store.Claim) error { return scanClaimAnd(rows, c) }

// scanClaimAnd scans claimColumns and those after them.
func scanClaimAnd(rows *sql.Rows, c *store.Claim, more ...any) error {
	var created, due store.Stamp
	var lane base.LaneColumns
	err := rows.Scan(append([]any{&c.StatusID, &c.MessageNumber, &c.MessageID, &c.HandlerKey, &c.Version, &c.ErrorCount,
		&c.AbandonedCount, &c.InterruptedCount, &c.RequeuedCount, &c.MessageBytes, &created, &due, &lane.Handler,
		&lane.Key}, more...)...)
	c.CreatedAt, c.Due, c.Lane = created.Time, due.Time, lane.Lane()
	return err
}

// attachMessages adds their messages to claims. It reads each message once, however many handlers it has. A claim whose
// message is gone stays without one.
//
// A message that is not found is read again, with a lock. On Vitess a session may lose its isolation after it has lost
// its connection to MySQL, and the transaction's snapshot is then older than statuses that it has locked since.
func (s *Store) attachMessages(ctx context.Context, pool gorm.ConnPool, claims []store.Claim) error {
	var numbers []int64
	for _, claim := range claims {
		numbers = append(numbers, claim.MessageNumber)
	}
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	byNumber := make(map[int64]base.StoredMessage, len(numbers))
	for _, statement := range []string{messagesSQL, latestMessagesSQL} {
		stored, err := queryAll(ctx, s, pool, statement, func(rows *sql.Rows, m *base.StoredMessage) error {
			return rows.Scan(&m.Number, &m.Namespace, &m.TransportName, &m.MessageType, &m.Source, &m.Content,
				&m.ContentType, &m.Properties, &m.OrderingKey, &m.ReceivedAt)
		}, listOf(numbers))
		if err != nil {
			return err
		}
		for _, m := range stored {
			byNumber[m.Number.Int64] = m
		}
		numbers = slices.DeleteFunc(numbers, func(number int64) bool { return byNumber[number].Number.Valid })
	}
	for i := range claims {
		claims[i].Message = byNumber[claims[i].MessageNumber].Message(claims[i].MessageID) // a copy each
	}
	return nil
}

func (s *Store) NextDue(ctx context.Context, keys []string, now time.Time) (time.Time, error) {
	var earliest time.Time
	for _, key := range keys {
		found, err := store.Query(ctx, s.Pool(ctx), s.Text(nextDueSQL), store.Value[store.Stamp], key, now)
		if err != nil {
			return time.Time{}, base.Doing("find the next due status", err)
		}
		if len(found) == 1 && (earliest.IsZero() || found[0].Before(earliest)) {
			earliest = found[0].Time
		}
	}
	return earliest, nil
}

// windowRowsSQL reads a part of the due index, and each row's message by its primary key.
const windowRowsSQL = `
SELECT s.due_at, s.id, s.processing_started_at IS NULL, COALESCE((SELECT m.namespace FROM {messages} m WHERE m.number = s.message_number), '')
FROM {statuses} s FORCE INDEX (due)
WHERE s.handler_key = ?1 AND s.due_at <= GREATEST(?2, UTC_TIMESTAMP(6)) AND s.due_at >= ?3 AND (s.due_at > ?3 OR s.id > ?4)
ORDER BY s.due_at, s.id LIMIT ?5`

func (s *Store) NextWindow(ctx context.Context, handlerKey string, after *store.Place, leave []string, now time.Time) (
	store.Window, error,
) {
	from := bounds(nil, after)
	rows, err := store.Query(ctx, s.Pool(ctx), s.Text(windowRowsSQL), func(rows *sql.Rows, r *base.WindowRow) error {
		var due store.Stamp
		var free bool
		var namespace string
		err := rows.Scan(&due, &r.StatusID, &free, &namespace)
		r.Due, r.IsOurs = due.Time, free && !slices.Contains(leave, namespace)
		return err
	}, handlerKey, now, from[0], from[1], store.WindowRows)
	if len(rows) == store.WindowRows {
		rows[len(rows)-1].IsLast = true
	}
	return base.WindowOf(after, rows), base.Doing("read a window of due statuses", err)
}
