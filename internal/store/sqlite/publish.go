package sqlite

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

// publishingSQL uses the indexes on unpublished rows, and the primary keys to mark rows.
var publishingSQL = base.Publishing{
	Statuses: `
SELECT s.id, s.version, s.error_count, s.abandoned_count, s.last_error, m.id, m.number, m.namespace, m.transport_name, m.type, m.source,
	m.content, m.content_type, m.serialized_properties, m.ordering_key, m.received_at
FROM (
	SELECT id, version, error_count, abandoned_count, last_error, message_number FROM {statuses}
	WHERE handler_key = ?1 AND is_poisoned AND completed_at IS NULL AND published_at IS NULL ORDER BY id LIMIT ?2
) s JOIN {messages} m ON m.number = s.message_number
ORDER BY s.id`,
	Rejected: `
SELECT id, channel, topic, "partition", record_offset, record_timestamp, "key" IS NOT NULL, "key", "value" IS NOT NULL, "value",
	headers, reason, rejected_at
FROM {rejected} r WHERE channel = ?1 AND published_at IS NULL ORDER BY r.id LIMIT ?2`,
	MarkStatus:   `UPDATE {statuses} SET published_at = ?3 WHERE id = ?1 AND version = ?2 AND is_poisoned`,
	MarkRejected: `UPDATE {rejected} SET published_at = ?2 WHERE id = ?1`,
}

func (s *Store) Unpublished(ctx context.Context, handlerKey string, limit int) ([]store.Unpublished, error) {
	return base.Unpublished(ctx, s.Database, publishingSQL, handlerKey, limit)
}

func (s *Store) UnpublishedRejected(ctx context.Context, channel string, limit int) ([]models.RejectedMessage, error) {
	return base.UnpublishedRejected(ctx, s.Database, publishingSQL, channel, limit)
}

func (s *Store) MarkPublished(ctx context.Context, statusID string, version int64, at time.Time) error {
	return base.MarkPublished(ctx, s.Database, publishingSQL, statusID, version, store.SQLiteTime(at))
}

func (s *Store) MarkRejectedPublished(ctx context.Context, id string, at time.Time) error {
	return base.MarkRejectedPublished(ctx, s.Database, publishingSQL, id, store.SQLiteTime(at))
}
