package mysql

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

// requestsSQL uses the primary key, and finds known gaps by the unique key on the coordinates.
var requestsSQL = base.Requests{
	List: `
SELECT channel, topic, "partition", id, record_offset, decision, actor, requested_at FROM {requests}
WHERE channel = ?1 AND requested_at > ?2 ORDER BY topic, "partition" LIMIT ?3`,
	Delete: `DELETE FROM {requests} WHERE channel = ?1 AND topic = ?2 AND "partition" = ?3 AND id = ?4`,
	KeepGap: `
INSERT INTO {gaps} (id, channel, topic, "partition", from_offset, to_offset, reason, found_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, COALESCE({latest}, ?8) FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM {gaps} WHERE channel = ?2 AND topic = ?3 AND "partition" = ?4 AND from_offset = ?5 AND to_offset = ?6)
ON DUPLICATE KEY UPDATE id = id`,
}

// publishingSQL lists by the indexes on unpublished rows. It loads and marks by primary keys.
var publishingSQL = base.Publishing{
	Statuses: `
SELECT id, version FROM {statuses} FORCE INDEX (unpublished)
WHERE unpublished = 1 AND handler_key = ?1 AND id > ?2 ORDER BY id LIMIT ?3`,
	Rejected: `
SELECT id, 0 FROM {rejected} FORCE INDEX (unpublished) WHERE unpublished = 1 AND channel = ?1 AND id > ?2 ORDER BY id LIMIT ?3`,
	Status: `
SELECT s.error_count, s.abandoned_count, s.last_error, s.message_id, m.number, m.namespace, m.transport_name, m.type, m.source,
	CASE WHEN LENGTH(m.content) + LENGTH(m.serialized_properties) <= ?2 THEN m.content END, m.content_type,
	CASE WHEN LENGTH(m.content) + LENGTH(m.serialized_properties) <= ?2 THEN m.serialized_properties END, m.ordering_key, m.received_at
FROM {statuses} s LEFT JOIN {messages} m ON m.number = s.message_number
WHERE s.id = ?1 AND s.is_poisoned AND s.completed_at IS NULL`,
	Record: `
SELECT id, channel, topic, "partition", record_offset, record_timestamp, "key" IS NOT NULL, CASE WHEN fits THEN "key" END,
	"value" IS NOT NULL, CASE WHEN fits THEN "value" END, CASE WHEN fits THEN headers END, reason, rejected_at
FROM (SELECT *, COALESCE(LENGTH("key"), 0) + COALESCE(LENGTH("value"), 0) + LENGTH(headers) <= ?2 AS fits FROM {rejected} WHERE id = ?1) r`,
	MarkStatus:   `UPDATE {statuses} SET published_at = ?3 WHERE id = ?1 AND version = ?2 AND is_poisoned AND completed_at IS NULL`,
	MarkRejected: `UPDATE {rejected} SET published_at = ?2 WHERE id = ?1`,
}
