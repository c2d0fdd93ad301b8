package shared

import (
	"context"
	"slices"

	"github.com/gorm-inbox/inbox/internal/store"
)

// LaneHandlersSQL goes by the index on lanes, one step per name (a loose index scan).
// SQLite runs the same text.
const LaneHandlersSQL = `
WITH RECURSIVE handlers(lane_handler) AS (
	SELECT (SELECT lane_handler FROM {statuses} WHERE completed_at IS NULL AND lane_key IS NOT NULL ORDER BY lane_handler LIMIT 1)
	UNION ALL
	SELECT (SELECT s.lane_handler FROM {statuses} s WHERE s.completed_at IS NULL AND s.lane_key IS NOT NULL
		AND s.lane_handler > h.lane_handler ORDER BY s.lane_handler LIMIT 1)
	FROM handlers h WHERE h.lane_handler IS NOT NULL
)
SELECT lane_handler FROM handlers WHERE lane_handler IS NOT NULL`

// LaneHandlerKeysSQL goes by the index on lanes, backwards: of each lane the newest rows first, which
// carry the newest keys. Likewise.
const LaneHandlerKeysSQL = `
SELECT DISTINCT handler_key FROM (
	SELECT handler_key FROM {statuses} WHERE lane_handler = $1 AND completed_at IS NULL AND lane_key IS NOT NULL
	ORDER BY lane_handler DESC, lane_key DESC, is_poisoned DESC, sequence DESC, id DESC LIMIT $2
) s`

// StrayWindow is how many rows of each name StrayLanes looks at. Rows of one
// name are those of one handler, from before and after its renames.
const StrayWindow = 200

// straying is what StrayLanes needs of a dialect.
type straying interface {
	LaneHandlers(ctx context.Context) ([]int64, error)
	LaneHandlerKeys(ctx context.Context, name int64, limit int) ([]string, error)
}

// StrayLanes implements Store.StrayLanes.
func StrayLanes(ctx context.Context, dialect straying, rules map[string]store.LaneRule) ([]string, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	names, err := dialect.LaneHandlers(ctx)
	if err != nil {
		return nil, Doing("find the names of lanes", err)
	}
	var stray []string
	for _, name := range names {
		keys, err := dialect.LaneHandlerKeys(ctx, name, StrayWindow)
		if err != nil {
			return nil, Doing("find the handler keys of lanes", err)
		}
		for _, key := range keys {
			if rule, ordered := rules[key]; ordered && !slices.Contains(rule.Handlers, name) {
				stray = append(stray, key)
			}
		}
	}
	return Distinct(stray), nil
}
