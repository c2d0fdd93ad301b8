package postgres

import (
	"context"
	"slices"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// expiredSizesSQL uses the unique index on the messages' numbers. It reads the lengths from the rows' headers and
// decompresses nothing.
const expiredSizesSQL = `
SELECT number, octet_length(content)::bigint + octet_length(serialized_properties) FROM {messages} WHERE number = ANY ($1::bigint[])`

// expiredMessagesSQL uses the unique index on the messages' numbers.
const expiredMessagesSQL = `
SELECT id, namespace, number, transport_name, type, source, content, content_type, serialized_properties, ordering_key, ordering_key IS NOT NULL, received_at
FROM {messages} WHERE number = ANY ($1::bigint[])`

// expiredStatusesSQL uses handler_statuses_pkey. For LATERAL and OFFSET, see acceptKeysSQL.
const expiredStatusesSQL = `
SELECT id::text, message_number, message_id, handler_key, sequence, error_count, abandoned_count, interrupted_count, requeued_count, message_bytes, last_error,
	fingerprint, created_at, processing_started_at, worker_id::text, next_attempt_at, is_poisoned, published_at, completed_at, outcome, version, lane_handler, lane_key, is_waiting, holds_lane, poisoned_at, attempts
FROM unnest($1::bigint[]) AS k(number)
CROSS JOIN LATERAL (SELECT * FROM {statuses} WHERE message_number = k.number OFFSET 0) s`

// deleteStatusesSQL uses handler_statuses_pkey and deletes rows at the version that was archived. For the sub-selects,
// see completionsSQL.
const deleteStatusesSQL = `
DELETE FROM {statuses} s
USING unnest((SELECT $1::bigint[]), (SELECT $2::text[]), (SELECT $3::bigint[]), (SELECT $4::text[]::uuid[]))
	AS a(number, handler_key, version, id)
WHERE s.message_number = a.number AND s.handler_key = a.handler_key AND s.version = a.version AND s.id = a.id AND s.completed_at IS NOT NULL`

// deleteMessagesSQL finds messages by the unique index on their numbers, and their statuses by handler_statuses_pkey,
// which also serves the cascade. The cascade has nothing left to delete. The statement's snapshot is younger than the
// locks, so it shows all rows that an accept has added.
const deleteMessagesSQL = `
DELETE FROM {messages} m WHERE m.number = ANY ($1::bigint[])
	AND NOT EXISTS (SELECT FROM {statuses} s WHERE s.message_number = m.number OFFSET 0)`

// DeleteExpired works like Cleanup: it takes locks first, and its later snapshots show the rows that were added before
// them.
func (p *Store) DeleteExpired(ctx context.Context, expired []store.ExpiredMessage) (store.CleanupResult, error) {
	var result store.CleanupResult
	err := p.withoutJIT(ctx, func(pool gorm.ConnPool) error {
		numbers := make([]int64, len(expired))
		for i, e := range expired {
			numbers[i] = int64(e.Message.Number)
		}
		locked, err := store.Query(ctx, pool, p.Text(cleanupLockSQL), store.Value[int64], numbers)
		if err != nil {
			return err
		}
		slices.Sort(locked)
		ours := slices.DeleteFunc(slices.Clone(expired), func(e store.ExpiredMessage) bool {
			_, found := slices.BinarySearch(locked, int64(e.Message.Number))
			return !found
		})
		whole, statuses := base.Deletions(ours)
		n := len(statuses)
		ofMessages, keys, versions, ids := make([]int64, n), make([]string, n), make([]int64, n), make([]string, n)
		for i, s := range statuses {
			ofMessages[i], keys[i], versions[i], ids[i] = s.MessageNumber, s.HandlerKey, int64(s.Version), s.ID
		}
		result.Statuses, err = store.Exec(ctx, pool, p.Text(deleteStatusesSQL), ofMessages, keys, versions, ids)
		if err != nil {
			return err
		}
		result.Messages, err = store.Exec(ctx, pool, p.Text(deleteMessagesSQL), whole)
		result.Passed = int64(len(expired)-len(ours)+len(whole)) - result.Messages
		return err
	})
	if err != nil {
		return store.CleanupResult{}, base.Doing("delete archived messages", err)
	}
	return result, nil
}
