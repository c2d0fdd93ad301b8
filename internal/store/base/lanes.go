package base

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

const (
	// LaneWindow is how many rows of a key a claim looks at, beyond twice its
	// limit, to find the first of their lanes. So a claim that has seen the
	// whole window has claimed its limit or passed over more, and marks them:
	// the next one gets further.
	LaneWindow = 1000
	// ClaimAttempts bounds how often a claim is tried again because another
	// one took the same lane at the same moment.
	ClaimAttempts = 5
)

// Ordered tells whether any key has lanes.
func Ordered(r store.ClaimRequest) bool {
	return slices.ContainsFunc(r.Limits, func(l store.KeyLimit) bool { return l.Lanes != nil && l.Limit > 0 })
}

// Distinct names keys once, in order.
func Distinct(keys []string) []string {
	slices.Sort(keys)
	return slices.Compact(keys)
}

// LaneColumns scans lane_handler and lane_key.
type LaneColumns struct{ Handler, Key sql.NullInt64 }

// Lane is nil where a column is NULL.
func (c LaneColumns) Lane() *store.Lane {
	if !c.Handler.Valid || !c.Key.Valid {
		return nil
	}
	return &store.Lane{Handler: c.Handler.Int64, Key: c.Key.Int64}
}

// walking is what CheckLanes needs of a dialect.
type walking interface {
	// WaitingLanes returns up to limit lanes of this name with waiting rows,
	// the first ones behind after.
	WaitingLanes(ctx context.Context, name, after int64, limit int) ([]store.Lane, error)
	AdvanceLanes(ctx context.Context, turns []store.LaneTurn, now time.Time) ([]string, error)
}

// CheckLanes implements Store.CheckLanes: it walks the names of a rule in order, and each one's lanes.
func CheckLanes(
	ctx context.Context, dialect walking, rule store.LaneRule, after *store.Lane, limit int, now time.Time,
) (*store.Lane, []string, error) {
	names := slices.Clone(rule.Handlers)
	slices.Sort(names)
	var turns []store.LaneTurn
	var next *store.Lane
	for _, name := range slices.Compact(names) {
		from := int64(store.BeforeAllLanes)
		if after != nil {
			if name < after.Handler {
				continue
			}
			if name == after.Handler {
				from = after.Key
			}
		}
		room := max(limit, 1) - len(turns)
		lanes, err := dialect.WaitingLanes(ctx, name, from, room)
		if err != nil {
			return nil, nil, Doing("check lanes", err)
		}
		slices.SortFunc(lanes, func(a, b store.Lane) int { return cmp.Compare(a.Key, b.Key) })
		for _, lane := range lanes {
			turns = append(turns, rule.Turn(lane))
		}
		if len(lanes) == room {
			next = &lanes[room-1]
			break
		}
	}
	keys, err := dialect.AdvanceLanes(ctx, turns, now)
	if err != nil {
		return nil, nil, Doing("check lanes", err)
	}
	return next, keys, nil
}

// ScanLaneOf scans the key of a lane of this handler.
func ScanLaneOf(name int64) func(*sql.Rows, *store.Lane) error {
	return func(rows *sql.Rows, lane *store.Lane) error {
		lane.Handler = name
		return rows.Scan(&lane.Key)
	}
}

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
