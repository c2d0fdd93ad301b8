package sqlite

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
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

func (s *Store) LoadRejected(ctx context.Context, id string) (models.RejectedMessage, error) {
	return base.LoadRejected(ctx, s.Database, rejectedSQL, id)
}

func (s *Store) AcceptRejected(ctx context.Context, id string, batch store.AcceptBatch) ([]store.Accepted, error) {
	return base.AcceptRejected(ctx, s.Database, s.Transaction, s, rejectedSQL, id, batch)
}

func (s *Store) SetRejectedReason(ctx context.Context, id, reason string, audit *models.Audit) error {
	return base.SetRejectedReason(ctx, s.Database, s.Transaction, s, rejectedSQL, id, reason, audit)
}

// keepGapSQL finds conflicts by the unique index on the coordinates.
const keepGapSQL = `
INSERT INTO {gaps} (id, channel, topic, "partition", from_offset, to_offset, reason, found_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (channel, topic, "partition", from_offset, to_offset) DO NOTHING`

func (s *Store) KeepGap(ctx context.Context, g models.Gap) (bool, error) {
	return base.KeepGap(ctx, s.Database, keepGapSQL, g, store.SQLiteTime(g.FoundAt))
}

// requestsSQL uses the primary key.
var requestsSQL = base.Requests{
	List: `
SELECT channel, topic, "partition", id, record_offset, decision, actor, requested_at FROM {requests}
WHERE channel = ?1 AND requested_at > ?2 ORDER BY topic, "partition" LIMIT ?3`,
	Delete:  `DELETE FROM {requests} WHERE channel = ?1 AND topic = ?2 AND "partition" = ?3 AND id = ?4`,
	KeepGap: keepGapSQL,
}

func (s *Store) PartitionRequests(ctx context.Context, channel string, since time.Time) (
	[]models.PartitionRequest, error,
) {
	return base.PartitionRequests(ctx, s.Database, requestsSQL, channel, store.SQLiteTime(since))
}

func (s *Store) CarryOut(ctx context.Context, r models.PartitionRequest, rejected *models.RejectedMessage,
	gap *models.Gap,
) (bool, error) {
	return base.CarryOut(ctx, s.Database, s.Transaction, s, requestsSQL, r, rejected, gap,
		func(at time.Time) any { return store.SQLiteTime(at) })
}
