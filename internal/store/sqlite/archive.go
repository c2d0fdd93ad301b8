package sqlite

import (
	"context"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// expiredSizesSQL uses the unique index on the messages' numbers. It reads lengths from the rows' headers.
const expiredSizesSQL = `
SELECT number, length(content) + length(serialized_properties) FROM {messages} WHERE number IN (SELECT value FROM json_each(?1))`

// expiredMessagesSQL uses the unique index on the messages' numbers.
const expiredMessagesSQL = `
SELECT id, namespace, number, transport_name, type, source, content, content_type, serialized_properties, ordering_key, ordering_key IS NOT NULL, received_at
FROM {messages} WHERE number IN (SELECT value FROM json_each(?1))`

// expiredStatusesSQL uses the statuses' primary key.
const expiredStatusesSQL = `
SELECT id, message_number, message_id, handler_key, sequence, error_count, abandoned_count, interrupted_count, requeued_count, message_bytes, last_error, fingerprint, created_at,
	processing_started_at, worker_id, next_attempt_at, is_poisoned, published_at, completed_at, outcome, version, lane_handler, lane_key, is_waiting, holds_lane, poisoned_at, attempts
FROM {statuses} WHERE message_number IN (SELECT value FROM json_each(?1))`

// deleteStatusesSQL uses the statuses' primary key and deletes rows at the version that was archived. CROSS JOIN fixes
// the join order, so that it reads each reference once and not each status.
const deleteStatusesSQL = `
DELETE FROM {statuses} WHERE rowid IN (
	SELECT s.rowid FROM json_each(?1) a
	CROSS JOIN {statuses} s ON s.message_number = json_extract(a.value, '$[0]') AND s.handler_key = json_extract(a.value, '$[1]')
		AND s.version = json_extract(a.value, '$[2]') AND s.id = json_extract(a.value, '$[3]')
	WHERE s.completed_at IS NOT NULL
)`

// DeleteExpired begins with a write and so holds the file's only write lock: no accept can run between deleting the
// statuses and deleting their messages.
func (s *Store) DeleteExpired(ctx context.Context, expired []store.ExpiredMessage) (store.CleanupResult, error) {
	whole, statuses := base.Deletions(expired)
	refs := make([][4]any, len(statuses))
	for i, s := range statuses {
		refs[i] = [4]any{s.MessageNumber, s.HandlerKey, s.Version, s.ID}
	}
	var result store.CleanupResult
	err := s.Transaction(ctx, func(pool gorm.ConnPool) error {
		var err error
		if result.Statuses, err = store.Exec(ctx, pool, s.Text(deleteStatusesSQL), base.JSONList(refs)); err != nil {
			return err
		}
		result.Messages, err = store.Exec(ctx, pool, s.Text(cleanupMessagesSQL), base.JSONList(whole))
		result.Passed = int64(len(whole)) - result.Messages
		return err
	})
	if err != nil {
		return store.CleanupResult{}, base.Doing("delete archived messages", err)
	}
	return result, nil
}
