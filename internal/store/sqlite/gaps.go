package sqlite

import (
	"context"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/shared"
	"github.com/gorm-inbox/inbox/models"
)

// Conflicts by the unique index on the coordinates.
const keepGapSQL = `
INSERT INTO {gaps} (id, channel, topic, "partition", from_offset, to_offset, reason, found_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (channel, topic, "partition", from_offset, to_offset) DO NOTHING`

func (s *Store) KeepGap(ctx context.Context, g models.Gap) (bool, error) {
	return shared.KeepGap(ctx, s.Database, keepGapSQL, g, store.SQLiteTime(g.FoundAt))
}
