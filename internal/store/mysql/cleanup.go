package mysql

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
	"github.com/gorm-inbox/inbox/models"
)

const (
	// candidatesSQL walks the index on (received_at, number): with partitions, of those below a number.
	candidatesSQL = `
SELECT m.number, m.received_at, {remembered} FROM {messages} m FORCE INDEX (received_at)
WHERE m.received_at < ?1 AND m.received_at >= ?2 AND (m.received_at > ?2 OR m.number > ?3) AND m.number < ?5
ORDER BY m.received_at, m.number LIMIT ?4`

	// completionsSQL reads the statuses of messages by the unique key on (message_number, handler_key).
	completionsSQL = `
SELECT message_number, handler_key, id, completed_at FROM {statuses} FORCE INDEX (message) WHERE message_number IN ({list ?1})`

	// lockNumbersSQL uses the primary key, with partitions also the unique key on the numbers of IDs. It skips messages
	// that an accept or another cleanup has locked. The next run comes back to these.
	lockNumbersSQL = `
SELECT m.number FROM {numbered} WHERE {number} IN ({list ?1}) AND m.received_at IS NOT NULL
ORDER BY {number} FOR UPDATE SKIP LOCKED`

	// lockEndedSQL locks completed statuses at the version that was archived, by the primary key.
	lockEndedSQL = versionedSQL + ` AND s.completed_at IS NOT NULL FOR UPDATE`

	// These use primary keys. They join what they delete with a query: Vitess takes the index from a DELETE of one table.
	deleteStatusesSQL = `
DELETE x FROM ({rows ?1}) c STRAIGHT_JOIN {statuses} x FORCE INDEX (PRIMARY) ON x.id = c.c0 WHERE x.completed_at IS NOT NULL`
	deleteMessagesSQL = `DELETE x FROM ({rows ?1}) c STRAIGHT_JOIN {messages} x FORCE INDEX (PRIMARY) ON x.number = c.c0`

	// expiredSizesSQL and expiredMessagesSQL use the primary key.
	expiredSizesSQL = `
SELECT number, LENGTH(content) + LENGTH(serialized_properties) FROM {messages} FORCE INDEX (PRIMARY) WHERE number IN ({list ?1})`

	expiredMessagesSQL = `
SELECT id, namespace, number, transport_name, type, source, content, content_type, serialized_properties, ordering_key, ordering_key IS NOT NULL, received_at
FROM {messages} FORCE INDEX (PRIMARY) WHERE number IN ({list ?1})`

	// expiredStatusesSQL uses the unique key on (message_number, handler_key).
	expiredStatusesSQL = `
SELECT id, message_number, message_id, handler_key, sequence, error_count, abandoned_count, interrupted_count, requeued_count, message_bytes, last_error, fingerprint, created_at,
	processing_started_at, worker_id, next_attempt_at, is_poisoned, published_at, completed_at, outcome, version, lane_handler, lane_key, is_waiting, holds_lane, poisoned_at, attempts
FROM {statuses} FORCE INDEX (message) WHERE message_number IN ({list ?1})`
)

// These statements use the indexes that their ORDER BY names, and delete rows by their primary keys. Rows that another
// transaction uses are skipped. Audit rows never change.
const (
	oldMarkersSQL = `
SELECT message_id, handler_key, namespace FROM {markers} FORCE INDEX (expires_at)
WHERE expires_at < LEAST(?1, COALESCE({latest}, ?1)) ORDER BY expires_at LIMIT ?2 FOR UPDATE SKIP LOCKED`

	deleteMarkersSQL = `
DELETE x FROM ({rows ?1}) c STRAIGHT_JOIN {markers} x FORCE INDEX (PRIMARY)
	ON x.message_id = c.c0 AND x.handler_key = c.c1 AND x.namespace = c.c2`

	deleteAuditSQL = `DELETE FROM {audit} WHERE occurred_at < ?1 ORDER BY occurred_at LIMIT ?2`

	oldRejectedSQL = `
SELECT id FROM {rejected} FORCE INDEX (rejected_at) WHERE rejected_at < ?1 ORDER BY rejected_at, id LIMIT ?2 FOR UPDATE SKIP LOCKED`

	deleteRejectedSQL = `DELETE x FROM ({rows ?1}) c STRAIGHT_JOIN {rejected} x FORCE INDEX (PRIMARY) ON x.id = c.c0`
)

func (s *Store) DeleteMarkers(ctx context.Context, before time.Time, limit int) (deleted int64, err error) {
	err = s.retrying(ctx, func(pool gorm.ConnPool) error {
		var keys mysqldialect.Rows
		_, err := store.Query(ctx, pool, s.Text(oldMarkersSQL), func(rows *sql.Rows, key *[3]string) error {
			err := rows.Scan(&key[0], &key[1], &key[2])
			keys = append(keys, []any{key[0], key[1], key[2]})
			return err
		}, before, limit)
		if err == nil {
			deleted, err = execAll(ctx, s, pool, deleteMarkersSQL, keys)
		}
		return err
	})
	return deleted, base.Doing("delete expired markers", err)
}

func (s *Store) DeleteRejected(ctx context.Context, before time.Time, limit int) (deleted int64, err error) {
	err = s.retrying(ctx, func(pool gorm.ConnPool) error {
		ids, err := store.Query(ctx, pool, s.Text(oldRejectedSQL), store.Value[string], before, limit)
		if err == nil {
			deleted, err = execAll(ctx, s, pool, deleteRejectedSQL, listOf(ids))
		}
		return err
	})
	return deleted, base.Doing("delete old rejected messages", err)
}

// completion is a status of a message, completed or not.
type completion struct {
	number         int64
	handlerKey, id string
	at             store.Stamp
}

func (s *Store) completions(ctx context.Context, pool gorm.ConnPool, numbers []int64) (map[int64][]completion, error) {
	of := map[int64][]completion{}
	rows, err := queryAll(ctx, s, pool, completionsSQL, func(rows *sql.Rows, c *completion) error {
		return rows.Scan(&c.number, &c.handlerKey, &c.id, &c.at)
	}, listOf(numbers))
	for _, c := range rows {
		of[c.number] = append(of[c.number], c)
	}
	return of, err
}

// expired reports whether the status is to be deleted.
func (c completion) expired(req store.CleanupRequest) bool {
	cutoff := req.Cutoff
	for _, own := range req.HandlerCutoffs {
		if own.HandlerKey == c.handlerKey {
			cutoff = own.Cutoff
		}
	}
	return !c.at.IsZero() && c.at.Before(cutoff)
}

func (s *Store) Expired(ctx context.Context, req store.CleanupRequest) (store.ExpiredBatch, error) {
	after := firstTime
	if !req.After.ReceivedAt.IsZero() {
		after = mysqldialect.Time(req.After.ReceivedAt)
	}
	bound, err := s.walkBound(ctx, req)
	if err != nil {
		return store.ExpiredBatch{Next: req.After}, base.Doing("find expired partitions", err)
	}
	candidates, err := store.Query(ctx, s.Pool(ctx), s.Text(candidatesSQL), func(rows *sql.Rows, c *base.Candidate) error {
		var received store.Stamp
		err := rows.Scan(&c.MessageNumber, &received, &c.Expired)
		c.ReceivedAt = received.Time
		return err
	}, base.WalkEnd(req), after, req.After.MessageNumber, req.Limit, bound)
	numbers := make([]int64, len(candidates))
	for i, c := range candidates {
		numbers[i] = c.MessageNumber
	}
	var of map[int64][]completion
	if err == nil {
		of, err = s.completions(ctx, s.Pool(ctx), numbers)
	}
	if err != nil {
		return store.ExpiredBatch{Next: req.After}, base.Doing("find expired messages", err)
	}
	for i := range candidates {
		statuses := of[candidates[i].MessageNumber]
		candidates[i].Expired = candidates[i].Expired && (len(statuses) == 0 ||
			slices.ContainsFunc(statuses, func(c completion) bool { return c.expired(req) }))
	}
	return base.Walked(req, candidates), nil
}

// Cleanup locks messages first and skips those that an accept holds. From then on every accept of these messages waits
// for this transaction, and what an accept has added before is committed and seen.
func (s *Store) Cleanup(ctx context.Context, req store.CleanupRequest) (store.CleanupResult, error) {
	found, err := s.Expired(ctx, req)
	if err != nil {
		return store.CleanupResult{Next: req.After}, err
	}
	result := store.CleanupResult{Next: found.Next, Done: found.Done}
	if len(found.MessageNumbers) == 0 {
		return result, nil
	}
	err = s.retrying(ctx, func(pool gorm.ConnPool) error {
		result = store.CleanupResult{Next: found.Next, Done: found.Done}
		numbers, err := s.lockNumbers(ctx, pool, found.MessageNumbers)
		if err != nil {
			return err
		}
		result.Passed = int64(len(found.MessageNumbers) - len(numbers))
		of, err := s.completions(ctx, pool, numbers)
		if err != nil {
			return err
		}
		var whole []int64
		var ids []string
		var withPartition int64 // statuses that are dropped later
		for _, number := range numbers {
			var expired []string
			for _, c := range of[number] {
				if c.expired(req) {
					expired = append(expired, c.id)
				}
			}
			isWhole := len(expired) == len(of[number])
			if isWhole {
				whole = append(whole, number)
			}
			if isWhole && s.goesWithPartition(number) {
				withPartition += int64(len(expired))
			} else {
				ids = append(ids, expired...)
			}
		}
		slices.Sort(ids) // the order in which others lock statuses: a join locks in the order of its list
		if result.Statuses, err = execAll(ctx, s, pool, deleteStatusesSQL, listOf(ids)); err == nil {
			result.Statuses += withPartition
			result.Messages, err = s.deleteWhole(ctx, pool, whole)
		}
		return err
	})
	if err != nil {
		return store.CleanupResult{Next: req.After}, base.Doing("cleanup", err)
	}
	return result, nil
}

func (s *Store) lockNumbers(ctx context.Context, pool gorm.ConnPool, numbers []int64) ([]int64, error) {
	numbers = slices.Sorted(slices.Values(numbers))
	return queryAll(ctx, s, pool, lockNumbersSQL, store.Value[int64], listOf(numbers))
}

// DeleteExpired works like Cleanup: it takes locks first.
func (s *Store) DeleteExpired(ctx context.Context, expired []store.ExpiredMessage) (
	result store.CleanupResult, err error,
) {
	numbers := make([]int64, len(expired))
	for i, e := range expired {
		numbers[i] = int64(e.Message.Number)
	}
	err = s.retrying(ctx, func(pool gorm.ConnPool) error {
		result = store.CleanupResult{}
		locked, err := s.lockNumbers(ctx, pool, numbers)
		if err != nil {
			return err
		}
		slices.Sort(locked)
		ours := slices.DeleteFunc(slices.Clone(expired), func(e store.ExpiredMessage) bool {
			_, found := slices.BinarySearch(locked, int64(e.Message.Number))
			return !found
		})
		whole, statuses := base.Deletions(ours)
		if result.Statuses, err = s.deleteEnded(ctx, pool, statuses); err != nil {
			return err
		}
		left, err := s.completions(ctx, pool, whole)
		if err != nil {
			return err
		}
		empty := slices.DeleteFunc(slices.Clone(whole), func(number int64) bool { return len(left[number]) > 0 })
		result.Messages, err = s.deleteWhole(ctx, pool, empty)
		result.Passed = int64(len(expired)-len(ours)+len(whole)) - result.Messages
		return err
	})
	if err != nil {
		return store.CleanupResult{}, base.Doing("delete archived messages", err)
	}
	return result, nil
}

// deleteEnded deletes completed statuses that are still at their version.
func (s *Store) deleteEnded(ctx context.Context, pool gorm.ConnPool, statuses []models.HandlerStatus) (int64, error) {
	wanted := make([]versioned, len(statuses))
	for i, each := range statuses {
		wanted[i] = versioned{each.ID, int64(each.Version)}
	}
	locked, err := s.lockVersioned(ctx, pool, lockEndedSQL, wanted)
	if err != nil {
		return 0, err
	}
	var ids []string
	for i, is := range locked {
		if is {
			ids = append(ids, wanted[i].id)
		}
	}
	slices.Sort(ids)
	return execAll(ctx, s, pool, deleteStatusesSQL, listOf(ids))
}
