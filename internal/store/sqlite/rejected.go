package sqlite

import "github.com/gorm-inbox/inbox/internal/store/base"

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
