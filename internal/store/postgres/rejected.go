package postgres

import (
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// rejectedSQL uses rejected_messages_pkey.
var rejectedSQL = base.RejectedRows{
	Load: `
SELECT id::text, channel, topic, "partition", record_offset, record_timestamp, "key" IS NOT NULL, "key", "value" IS NOT NULL, "value",
	headers, reason, rejected_at
FROM {rejected} WHERE id = $1::text::uuid`,
	Remove: `DELETE FROM {rejected} WHERE id = $1::text::uuid`,
	Reason: `UPDATE {rejected} SET reason = $2 WHERE id = $1::text::uuid`,
}

// keepGapSQL finds conflicts by the unique index on the coordinates. An existing gap is locked, so that the answer
// waits for the synchronous standby (see confirmed).
const keepGapSQL = `
INSERT INTO {gaps} (id, channel, topic, "partition", from_offset, to_offset, reason, found_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, COALESCE({latest}, $8::timestamptz))
ON CONFLICT (channel, topic, "partition", from_offset, to_offset) DO UPDATE SET reason = EXCLUDED.reason WHERE false`

// requestsSQL uses partition_requests_pkey.
var requestsSQL = base.Requests{
	List: `
SELECT channel, topic, "partition", id::text, record_offset, decision, actor, requested_at FROM {requests}
WHERE channel = $1 AND requested_at > $2::timestamptz ORDER BY topic, "partition" LIMIT $3`,
	Delete:  `DELETE FROM {requests} WHERE channel = $1 AND topic = $2 AND "partition" = $3 AND id = $4::text::uuid`,
	KeepGap: keepGapSQL,
}

// publishingSQL lists by the indexes on unpublished rows. It loads and marks statuses by the index on open statuses and
// rejected messages by their primary key, and finds messages by the unique index on their numbers.
var publishingSQL = base.Publishing{
	Statuses: `
SELECT id::text, version FROM {statuses} s
WHERE handler_key = $1 AND is_poisoned AND completed_at IS NULL AND published_at IS NULL AND s.id > $2::text::uuid ORDER BY s.id LIMIT $3`,
	Rejected: `
SELECT id::text, 0 FROM {rejected} r WHERE channel = $1 AND published_at IS NULL AND r.id > $2::text::uuid ORDER BY r.id LIMIT $3`,
	Status: `
SELECT s.error_count, s.abandoned_count, s.last_error, s.message_id, m.number, m.namespace, m.transport_name, m.type, m.source,
	CASE WHEN f.fits THEN m.content END, m.content_type, CASE WHEN f.fits THEN m.serialized_properties END, m.ordering_key, m.received_at
FROM {statuses} s LEFT JOIN {messages} m ON m.number = s.message_number
	LEFT JOIN (SELECT true AS fits) f ON octet_length(m.content) + octet_length(m.serialized_properties) <= $2
WHERE s.id = $1::text::uuid AND s.is_poisoned AND ` + base.OpenSQL,
	Record: `
SELECT id::text, channel, topic, "partition", record_offset, record_timestamp, "key" IS NOT NULL, CASE WHEN f.fits THEN "key" END,
	"value" IS NOT NULL, CASE WHEN f.fits THEN "value" END, CASE WHEN f.fits THEN headers END, reason, rejected_at
FROM {rejected} r
	LEFT JOIN (SELECT true AS fits) f ON COALESCE(octet_length("key"), 0) + COALESCE(octet_length("value"), 0) + octet_length(headers) <= $2
WHERE r.id = $1::text::uuid`,
	MarkStatus:   `UPDATE {statuses} SET published_at = $3::timestamptz WHERE id = $1::text::uuid AND version = $2 AND is_poisoned AND ` + base.OpenSQL,
	MarkRejected: `UPDATE {rejected} SET published_at = $2::timestamptz WHERE id = $1::text::uuid`,
}
