package store

import (
	"context"
	"database/sql"
	"slices"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// By the unique index on the messages' numbers. The lengths are in the rows' headers, nothing is unpacked.
const postgresExpiredSizes = `
SELECT number, octet_length(content)::bigint + octet_length(serialized_properties) FROM {messages} WHERE number = ANY ($1::bigint[])`

// By the unique index on the messages' numbers.
const postgresExpiredMessages = `
SELECT id, namespace, number, transport_name, type, source, content, content_type, serialized_properties, ordering_key, ordering_key IS NOT NULL, received_at
FROM {messages} WHERE number = ANY ($1::bigint[])`

// By the unique index on (message_number, handler_key), see postgresAcceptKeys.
const postgresExpiredStatuses = `
SELECT id::text, message_number, message_id, handler_key, sequence, error_count, abandoned_count, requeued_count, last_error, created_at,
	processing_started_at, worker_id::text, next_attempt_at, is_poisoned, completed_at, outcome, version, lane_handler, lane_key, is_waiting, holds_lane
FROM unnest($1::bigint[]) AS k(number)
CROSS JOIN LATERAL (SELECT * FROM {statuses} WHERE message_number = k.number OFFSET 0) s`

// By handler_statuses_pkey, at the version that was handed over.
const postgresDeleteStatuses = `
DELETE FROM {statuses} s USING unnest($1::text[]::uuid[], $2::bigint[]) AS a(id, version)
WHERE s.id = a.id AND s.version = a.version AND s.completed_at IS NOT NULL`

// Messages by the unique index on their numbers, their statuses by that on
// (message_number, handler_key), which also serves the cascade that has nothing
// left to do. The statement's snapshot is younger than the locks, so it shows
// whatever an accept has added.
const postgresDeleteMessages = `
DELETE FROM {messages} m WHERE m.number = ANY ($1::bigint[])
	AND NOT EXISTS (SELECT FROM {statuses} s WHERE s.message_number = m.number OFFSET 0)`

func (p *postgres) LoadExpired(ctx context.Context, req CleanupRequest, numbers []int64, maxBytes int64) ([]ExpiredMessage, int, error) {
	sizes, err := Query(ctx, p.pool(ctx), p.text(postgresExpiredSizes), scanSized, numbers)
	if err != nil {
		return nil, 0, doing("size expired messages", err)
	}
	numbers = prefix(numbers, sizes, maxBytes)
	messages, err := Query(ctx, p.pool(ctx), p.text(postgresExpiredMessages), scanMessage, numbers)
	if err != nil {
		return nil, 0, doing("load expired messages", err)
	}
	statuses, err := Query(ctx, p.pool(ctx), p.text(postgresExpiredStatuses), scanStatus, numbers)
	if err != nil {
		return nil, 0, doing("load expired statuses", err)
	}
	return req.assemble(numbers, messages, statuses), len(numbers), nil
}

func scanSized(rows *sql.Rows, s *sized) error { return rows.Scan(&s.number, &s.bytes) }

func scanMessage(rows *sql.Rows, m *models.Message) error {
	var received anyTime
	var ordered bool
	err := rows.Scan(&m.ID, &m.Namespace, &m.Number, &m.TransportName, &m.Type, &m.Source, &m.Content, &m.ContentType, &m.SerializedProperties, &m.OrderingKey, &ordered, &received)
	m.ReceivedAt = received.Time
	if m.Content == nil { // some drivers read an empty blob as nil
		m.Content = []byte{}
	}
	if ordered && m.OrderingKey == nil {
		m.OrderingKey = []byte{}
	}
	return err
}

func scanStatus(rows *sql.Rows, s *models.HandlerStatus) error {
	var created, started, next, completed anyTime
	err := rows.Scan(&s.ID, &s.MessageNumber, &s.MessageID, &s.HandlerKey, &s.Sequence, &s.ErrorCount, &s.AbandonedCount, &s.RequeuedCount, &s.LastError, &created,
		&started, &s.WorkerID, &next, &s.IsPoisoned, &completed, &s.Outcome, &s.Version,
		&s.LaneHandler, &s.LaneKey, &s.IsWaiting, &s.HoldsLane)
	s.CreatedAt, s.ProcessingStartedAt, s.NextAttemptAt, s.CompletedAt = created.Time, started.pointer(), next.pointer(), completed.pointer()
	return err
}

// DeleteExpired works like Cleanup: locks first, then snapshots that show what
// was added before them.
func (p *postgres) DeleteExpired(ctx context.Context, expired []ExpiredMessage) (CleanupResult, error) {
	var result CleanupResult
	err := p.transaction(ctx, func(pool gorm.ConnPool) error {
		numbers := make([]int64, len(expired))
		for i, e := range expired {
			numbers[i] = int64(e.Message.Number)
		}
		locked, err := Query(ctx, pool, p.text(postgresCleanupLock), Value[int64], numbers)
		if err != nil {
			return err
		}
		slices.Sort(locked)
		ours := slices.DeleteFunc(slices.Clone(expired), func(e ExpiredMessage) bool {
			_, found := slices.BinarySearch(locked, int64(e.Message.Number))
			return !found
		})
		whole, statuses, versions := parts(ours)
		if result.Statuses, err = Exec(ctx, pool, p.text(postgresDeleteStatuses), statuses, versions); err != nil {
			return err
		}
		result.Messages, err = Exec(ctx, pool, p.text(postgresDeleteMessages), whole)
		result.Passed = int64(len(expired)-len(ours)+len(whole)) - result.Messages
		return err
	})
	if err != nil {
		return CleanupResult{}, doing("delete archived messages", err)
	}
	return result, nil
}
