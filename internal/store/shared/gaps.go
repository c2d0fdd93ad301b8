package shared

import (
	"context"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// KeepGap implements Store.KeepGap.
func KeepGap(ctx context.Context, d Database, statement string, g models.Gap, foundAt any) (bool, error) {
	added, err := store.Exec(ctx, d.Pool(ctx), d.Text(statement),
		g.ID, g.Channel, g.Topic, g.Partition, g.FromOffset, g.ToOffset, store.SanitizeError(g.Reason), foundAt)
	return added == 1, Doing("keep gap", err)
}
