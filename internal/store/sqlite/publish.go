package sqlite

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// publishingSQL lists by the indexes on unpublished rows. It loads and marks statuses by the index on open statuses and
// rejected messages by their primary key, and finds messages by the unique index on their numbers.
var publishingSQL = base.Publishing{
	Statuses: `
SELECT id, version FROM {statuses} s
WHERE handler_key = ?1 AND is_poisoned AND completed_at IS NULL AND published_at IS NULL AND s.id > ?2 ORDER BY s.id LIMIT ?3`,
	Rejected: `
SELECT id, 0 FROM {rejected} r WHERE channel = ?1 AND published_at IS NULL AND r.id > ?2 ORDER BY r.id LIMIT ?3`,
	Status: `
SELECT s.error_count, s.abandoned_count, s.last_error, s.message_id, m.number, m.namespace, m.transport_name, m.type, m.source,
	CASE WHEN f.fits THEN m.content END, m.content_type, CASE WHEN f.fits THEN m.serialized_properties END, m.ordering_key, m.received_at
FROM {statuses} s LEFT JOIN {messages} m ON m.number = s.message_number
	LEFT JOIN (SELECT true AS fits) f ON length(CAST(m.content AS blob)) + length(CAST(m.serialized_properties AS blob)) <= ?2
WHERE s.id = ?1 AND s.is_poisoned AND ` + base.OpenSQL,
	Record: `
SELECT id, channel, topic, "partition", record_offset, record_timestamp, "key" IS NOT NULL, CASE WHEN f.fits THEN "key" END,
	"value" IS NOT NULL, CASE WHEN f.fits THEN "value" END, CASE WHEN f.fits THEN headers END, reason, rejected_at
FROM {rejected} r
	LEFT JOIN (SELECT true AS fits) f ON COALESCE(length(CAST("key" AS blob)), 0) + COALESCE(length(CAST("value" AS blob)), 0) + length(CAST(headers AS blob)) <= ?2
WHERE r.id = ?1`,
	MarkStatus:   `UPDATE {statuses} SET published_at = ?3 WHERE id = ?1 AND version = ?2 AND is_poisoned AND ` + base.OpenSQL,
	MarkRejected: `UPDATE {rejected} SET published_at = ?2 WHERE id = ?1`,
}

func (s *Store) Unpublished(
	ctx context.Context, handlerKey, after string, limit int,
) ([]store.UnpublishedRef, error) {
	return base.Unpublished(ctx, s.Database, publishingSQL.Statuses, handlerKey, after, limit)
}

func (s *Store) UnpublishedRejected(
	ctx context.Context, channel, after string, limit int,
) ([]store.UnpublishedRef, error) {
	return base.Unpublished(ctx, s.Database, publishingSQL.Rejected, channel, after, limit)
}

func (s *Store) LoadUnpublished(ctx context.Context, statusID string, maxBytes int) (store.Unpublished, error) {
	return base.LoadUnpublished(ctx, s.Database, publishingSQL.Status, base.ScanUnpublished, statusID, maxBytes)
}

func (s *Store) LoadUnpublishedRejected(
	ctx context.Context, id string, maxBytes int,
) (store.UnpublishedRejected, error) {
	return base.LoadUnpublished(ctx, s.Database, publishingSQL.Record, base.ScanUnpublishedRejected, id, maxBytes)
}

func (s *Store) MarkPublished(ctx context.Context, ref store.UnpublishedRef, at time.Time) error {
	return base.MarkPublished(ctx, s.Database, publishingSQL.MarkStatus, ref.ID, ref.Version, store.SQLiteTime(at))
}

func (s *Store) MarkRejectedPublished(ctx context.Context, ref store.UnpublishedRef, at time.Time) error {
	return base.MarkPublished(ctx, s.Database, publishingSQL.MarkRejected, ref.ID, store.SQLiteTime(at))
}
