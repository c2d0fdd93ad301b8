package store

import (
	"context"

	"github.com/gorm-inbox/inbox/models"
)

// By rejected_messages_pkey.
var postgresRejected = rejectedRows{
	load: `
SELECT id::text, channel, topic, "partition", record_offset, record_timestamp, "key" IS NOT NULL, "key", "value" IS NOT NULL, "value",
	headers, reason, rejected_at
FROM {rejected} WHERE id = $1::text::uuid`,
	remove: `DELETE FROM {rejected} WHERE id = $1::text::uuid`,
	reason: `UPDATE {rejected} SET reason = $2 WHERE id = $1::text::uuid`,
}

func (p *postgres) LoadRejected(ctx context.Context, id string) (models.RejectedMessage, error) {
	return loadRejected(ctx, p.database, postgresRejected, id)
}

func (p *postgres) AcceptRejected(ctx context.Context, id string, batch AcceptBatch) ([]Accepted, error) {
	return acceptRejected(ctx, p.database, p.transaction, p, postgresRejected, id, batch)
}

func (p *postgres) SetRejectedReason(ctx context.Context, id, reason string, audit *models.Audit) error {
	return setRejectedReason(ctx, p.database, p.transaction, p, postgresRejected, id, reason, audit)
}
