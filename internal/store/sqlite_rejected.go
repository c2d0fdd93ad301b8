package store

import (
	"context"

	"github.com/gorm-inbox/inbox/models"
)

// By the primary key.
var sqliteRejected = rejectedRows{
	load: `
SELECT id, channel, topic, "partition", record_offset, record_timestamp, "key" IS NOT NULL, "key", "value" IS NOT NULL, "value",
	headers, reason, rejected_at
FROM {rejected} WHERE id = ?1`,
	remove: `DELETE FROM {rejected} WHERE id = ?1`,
	reason: `UPDATE {rejected} SET reason = ?2 WHERE id = ?1`,
}

func (s *sqlite) LoadRejected(ctx context.Context, id string) (models.RejectedMessage, error) {
	return loadRejected(ctx, s.database, sqliteRejected, id)
}

func (s *sqlite) AcceptRejected(ctx context.Context, id string, batch AcceptBatch) ([]Accepted, error) {
	return acceptRejected(ctx, s.database, s.transaction, s, sqliteRejected, id, batch)
}

func (s *sqlite) SetRejectedReason(ctx context.Context, id, reason string, audit *models.Audit) error {
	return setRejectedReason(ctx, s.database, s.transaction, s, sqliteRejected, id, reason, audit)
}
