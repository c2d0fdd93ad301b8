package postgres

import (
	"context"

	"github.com/gorm-inbox/inbox/internal/store/shared"
	"github.com/gorm-inbox/inbox/models"
)

// Conflicts by the unique index on the coordinates. A gap that is there is locked, so that
// the answer waits for the synchronous standby (see confirmed).
const keepGapSQL = `
INSERT INTO {gaps} (id, channel, topic, "partition", from_offset, to_offset, reason, found_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8::timestamptz)
ON CONFLICT (channel, topic, "partition", from_offset, to_offset) DO UPDATE SET reason = EXCLUDED.reason WHERE false`

func (p *Store) KeepGap(ctx context.Context, g models.Gap) (bool, error) {
	return shared.KeepGap(ctx, p.Database, keepGapSQL, g, g.FoundAt.UTC())
}
