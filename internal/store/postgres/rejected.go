package postgres

import (
	"context"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/shared"
	"github.com/gorm-inbox/inbox/models"
)

// By rejected_messages_pkey.
var rejectedSQL = shared.RejectedRows{
	Load: `
SELECT id::text, channel, topic, "partition", record_offset, record_timestamp, "key" IS NOT NULL, "key", "value" IS NOT NULL, "value",
	headers, reason, rejected_at
FROM {rejected} WHERE id = $1::text::uuid`,
	Remove: `DELETE FROM {rejected} WHERE id = $1::text::uuid`,
	Reason: `UPDATE {rejected} SET reason = $2 WHERE id = $1::text::uuid`,
}

func (p *Store) LoadRejected(ctx context.Context, id string) (models.RejectedMessage, error) {
	return shared.LoadRejected(ctx, p.Database, rejectedSQL, id)
}

func (p *Store) AcceptRejected(ctx context.Context, id string, batch store.AcceptBatch) ([]store.Accepted, error) {
	return shared.AcceptRejected(ctx, p.Database, p.transaction, p, rejectedSQL, id, batch)
}

func (p *Store) SetRejectedReason(ctx context.Context, id, reason string, audit *models.Audit) error {
	return shared.SetRejectedReason(ctx, p.Database, p.transaction, p, rejectedSQL, id, reason, audit)
}
