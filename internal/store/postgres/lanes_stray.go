package postgres

import (
	"context"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/shared"
)

func (p *Store) StrayLanes(ctx context.Context, rules map[string]store.LaneRule) ([]string, error) {
	return shared.StrayLanes(ctx, p, rules)
}

func (p *Store) LaneHandlers(ctx context.Context) ([]int64, error) {
	return store.Query(ctx, p.Pool(ctx), p.Text(shared.LaneHandlersSQL), store.Value[int64])
}

func (p *Store) LaneHandlerKeys(ctx context.Context, name int64, limit int) ([]string, error) {
	return store.Query(ctx, p.Pool(ctx), p.Text(shared.LaneHandlerKeysSQL), store.Value[string], name, limit)
}
