package sqlite

import (
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// rejectedSQL uses the primary key.
var rejectedSQL = base.RejectedRows{
	Load: `
SELECT id, channel, topic, "partition", record_offset, record_timestamp, "key" IS NOT NULL, "key", "value" IS NOT NULL, "value",
	headers, reason, rejected_at
FROM {rejected} WHERE id = ?1`,
	Remove: `DELETE FROM {rejected} WHERE id = ?1`,
	Reason: `UPDATE {rejected} SET reason = ?2 WHERE id = ?1`,
}

// keepGapSQL finds conflicts by the unique index on the coordinates.
const keepGapSQL = `
INSERT INTO {gaps} (id, channel, topic, "partition", from_offset, to_offset, reason, found_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (channel, topic, "partition", from_offset, to_offset) DO NOTHING`

// requestsSQL uses the primary key.
var requestsSQL = base.Requests{
	List: `
SELECT channel, topic, "partition", id, record_offset, decision, actor, requested_at FROM {requests}
WHERE channel = ?1 AND requested_at > ?2 ORDER BY topic, "partition" LIMIT ?3`,
	Delete:  `DELETE FROM {requests} WHERE channel = ?1 AND topic = ?2 AND "partition" = ?3 AND id = ?4`,
	KeepGap: keepGapSQL,
}

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
