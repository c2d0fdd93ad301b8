package store

import (
	"context"

	"github.com/gorm-inbox/inbox/models"
)

// Conflicts by the unique index on the coordinates. On PostgreSQL a gap that is
// there is locked, so that the answer waits for the synchronous standby (see
// confirmed).
const (
	postgresKeepGap = `
INSERT INTO {gaps} (id, channel, topic, "partition", from_offset, to_offset, reason, found_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8::timestamptz)
ON CONFLICT (channel, topic, "partition", from_offset, to_offset) DO UPDATE SET reason = EXCLUDED.reason WHERE false`

	sqliteKeepGap = `
INSERT INTO {gaps} (id, channel, topic, "partition", from_offset, to_offset, reason, found_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (channel, topic, "partition", from_offset, to_offset) DO NOTHING`
)

func (p *postgres) KeepGap(ctx context.Context, g models.Gap) (bool, error) {
	return keepGap(ctx, p.database, postgresKeepGap, g, g.FoundAt.UTC())
}

func (s *sqlite) KeepGap(ctx context.Context, g models.Gap) (bool, error) {
	return keepGap(ctx, s.database, sqliteKeepGap, g, SQLiteTime(g.FoundAt))
}

func keepGap(ctx context.Context, d database, statement string, g models.Gap, foundAt any) (bool, error) {
	added, err := Exec(ctx, d.pool(ctx), d.text(statement),
		g.ID, g.Channel, g.Topic, g.Partition, g.FromOffset, g.ToOffset, SanitizeError(g.Reason), foundAt)
	return added == 1, doing("keep gap", err)
}
