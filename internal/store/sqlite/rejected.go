package sqlite

import (
	"context"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/shared"
	"github.com/gorm-inbox/inbox/models"
)

// By the primary key.
var rejectedSQL = shared.RejectedRows{
	Load: `
SELECT id, channel, topic, "partition", record_offset, record_timestamp, "key" IS NOT NULL, "key", "value" IS NOT NULL, "value",
	headers, reason, rejected_at
FROM {rejected} WHERE id = ?1`,
	Remove: `DELETE FROM {rejected} WHERE id = ?1`,
	Reason: `UPDATE {rejected} SET reason = ?2 WHERE id = ?1`,
}

func (s *Store) LoadRejected(ctx context.Context, id string) (models.RejectedMessage, error) {
	return shared.LoadRejected(ctx, s.Database, rejectedSQL, id)
}

func (s *Store) AcceptRejected(ctx context.Context, id string, batch store.AcceptBatch) ([]store.Accepted, error) {
	return shared.AcceptRejected(ctx, s.Database, s.Transaction, s, rejectedSQL, id, batch)
}

func (s *Store) SetRejectedReason(ctx context.Context, id, reason string, audit *models.Audit) error {
	return shared.SetRejectedReason(ctx, s.Database, s.Transaction, s, rejectedSQL, id, reason, audit)
}
