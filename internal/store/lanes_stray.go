package store

import (
	"context"
	"slices"
)

// By the index on lanes, one step per name (a loose index scan). SQLite runs
// the same text.
const laneHandlers = `
WITH RECURSIVE handlers(lane_handler) AS (
	SELECT (SELECT lane_handler FROM {statuses} WHERE completed_at IS NULL AND lane_key IS NOT NULL ORDER BY lane_handler LIMIT 1)
	UNION ALL
	SELECT (SELECT s.lane_handler FROM {statuses} s WHERE s.completed_at IS NULL AND s.lane_key IS NOT NULL
		AND s.lane_handler > h.lane_handler ORDER BY s.lane_handler LIMIT 1)
	FROM handlers h WHERE h.lane_handler IS NOT NULL
)
SELECT lane_handler FROM handlers WHERE lane_handler IS NOT NULL`

// By the index on lanes, backwards: of each lane the newest rows first, which
// carry the newest keys. Likewise.
const laneHandlerKeys = `
SELECT DISTINCT handler_key FROM (
	SELECT handler_key FROM {statuses} WHERE lane_handler = $1 AND completed_at IS NULL AND lane_key IS NOT NULL
	ORDER BY lane_handler DESC, lane_key DESC, is_poisoned DESC, sequence DESC, id DESC LIMIT $2
) s`

// strayWindow is how many rows of each name StrayLanes looks at. Rows of one
// name are those of one handler, from before and after its renames.
const strayWindow = 200

// straying is what StrayLanes needs of a dialect.
type straying interface {
	laneHandlers(ctx context.Context) ([]int64, error)
	laneHandlerKeys(ctx context.Context, name int64, limit int) ([]string, error)
}

func strayLanes(ctx context.Context, dialect straying, rules map[string]LaneRule) ([]string, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	names, err := dialect.laneHandlers(ctx)
	if err != nil {
		return nil, doing("find the names of lanes", err)
	}
	var stray []string
	for _, name := range names {
		keys, err := dialect.laneHandlerKeys(ctx, name, strayWindow)
		if err != nil {
			return nil, doing("find the handler keys of lanes", err)
		}
		for _, key := range keys {
			if rule, ordered := rules[key]; ordered && !slices.Contains(rule.Handlers, name) {
				stray = append(stray, key)
			}
		}
	}
	return distinct(stray), nil
}

func (p *postgres) StrayLanes(ctx context.Context, rules map[string]LaneRule) ([]string, error) {
	return strayLanes(ctx, p, rules)
}

func (p *postgres) laneHandlers(ctx context.Context) ([]int64, error) {
	return Query(ctx, p.pool(ctx), p.text(laneHandlers), Value[int64])
}

func (p *postgres) laneHandlerKeys(ctx context.Context, name int64, limit int) ([]string, error) {
	return Query(ctx, p.pool(ctx), p.text(laneHandlerKeys), Value[string], name, limit)
}

func (s *sqlite) StrayLanes(ctx context.Context, rules map[string]LaneRule) ([]string, error) {
	return strayLanes(ctx, s, rules)
}

func (s *sqlite) laneHandlers(ctx context.Context) ([]int64, error) {
	return Query(ctx, s.pool(ctx), s.text(laneHandlers), Value[int64])
}

func (s *sqlite) laneHandlerKeys(ctx context.Context, name int64, limit int) ([]string, error) {
	return Query(ctx, s.pool(ctx), s.text(numbered(laneHandlerKeys)), Value[string], name, limit)
}
