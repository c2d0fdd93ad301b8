package ops

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// ListGaps returns a page of the gaps that consumers continued after, the latest first (contract 7.5). See List for
// after and limit.
func (o *Ops) ListGaps(ctx context.Context, after Cursor, limit int) (Page[models.Gap], error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	read := func(ctx context.Context, p place, _, limit int) (part[models.Gap], error) {
		gaps, err := readRows(ctx, o, walkGaps, func(rows *sql.Rows, g *models.Gap) error {
			var found store.Stamp
			err := rows.Scan(&g.ID, &g.Channel, &g.Topic, &g.Partition, &g.FromOffset, &g.ToOffset, &g.Reason, &found)
			g.FoundAt = found.Time
			return err
		}, p.ID, limit)
		return part[models.Gap]{items: gaps, looked: len(gaps)}, err
	}
	page, err := pageOf(ctx, "gaps", nil, after, limit, false, read, func(g models.Gap) place {
		return place{ID: g.ID}
	}, func(models.Gap) bool { return true })
	if err != nil {
		return Page[models.Gap]{}, fmt.Errorf("list gaps: %w", err)
	}
	return page, nil
}

// walkGaps uses the gaps' primary key: the IDs ascend with time.
const walkGaps = `
SELECT id, channel, topic, "partition", from_offset, to_offset, reason, found_at FROM {gaps} WHERE id < $1 ORDER BY id DESC LIMIT $2`
