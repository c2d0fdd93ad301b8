package postgres

import "github.com/gorm-inbox/inbox/internal/store/base"

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
VALUES ($1, $2, $3, $4, $5, $6, $7, $8::timestamptz)
ON CONFLICT (channel, topic, "partition", from_offset, to_offset) DO UPDATE SET reason = EXCLUDED.reason WHERE false`

// requestsSQL uses partition_requests_pkey.
var requestsSQL = base.Requests{
	List: `
SELECT channel, topic, "partition", id::text, record_offset, decision, actor, requested_at FROM {requests}
WHERE channel = $1 AND requested_at > $2::timestamptz ORDER BY topic, "partition" LIMIT $3`,
	Delete:  `DELETE FROM {requests} WHERE channel = $1 AND topic = $2 AND "partition" = $3 AND id = $4::text::uuid`,
	KeepGap: keepGapSQL,
}
