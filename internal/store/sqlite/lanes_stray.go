package sqlite

import (
	"context"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/shared"
)

func (s *Store) StrayLanes(ctx context.Context, rules map[string]store.LaneRule) ([]string, error) {
	return shared.StrayLanes(ctx, s, rules)
}

func (s *Store) LaneHandlers(ctx context.Context) ([]int64, error) {
	return store.Query(ctx, s.Pool(ctx), s.Text(shared.LaneHandlersSQL), store.Value[int64])
}

func (s *Store) LaneHandlerKeys(ctx context.Context, name int64, limit int) ([]string, error) {
	return store.Query(ctx, s.Pool(ctx), s.Text(numbered(shared.LaneHandlerKeysSQL)), store.Value[string], name, limit)
}
