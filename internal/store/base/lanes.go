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
	// LaneWindow is how many rows of a key a claim reads, beyond twice its limit, to find the first rows of their
	// lanes. A claim that read the whole window has either claimed its limit or passed over more rows than that. It
	// then marks those as waiting, so the next claim gets further.
	LaneWindow = 1000
	// ClaimAttempts bounds how often a claim is tried if another one took the same lane at the same moment.
	ClaimAttempts = 5
)

// Ordered reports whether any key of the request has lanes.
func Ordered(r store.ClaimRequest) bool {
	return slices.ContainsFunc(r.Limits, func(l store.KeyLimit) bool { return l.Lanes != nil && l.Limit > 0 })
}

// Distinct sorts keys and removes duplicates.
func Distinct(keys []string) []string {
	slices.Sort(keys)
	return slices.Compact(keys)
}

// LaneColumns scans lane_handler and lane_key.
type LaneColumns struct{ Handler, Key sql.NullInt64 }

// Lane returns the lane, nil if a column is NULL.
func (c LaneColumns) Lane() *store.Lane {
	if !c.Handler.Valid || !c.Key.Valid {
		return nil
	}
	return &store.Lane{Handler: c.Handler.Int64, Key: c.Key.Int64}
}

// walking is what CheckLanes needs from a dialect.
type walking interface {
	// WaitingLanes returns up to limit lanes of this name that have waiting rows and whose key is above after, in the
	// order of their keys.
	WaitingLanes(ctx context.Context, name, after int64, limit int) ([]store.Lane, error)
	AdvanceLanes(ctx context.Context, requests []store.LaneRequest, now time.Time) ([]string, error)
}

// CheckLanes implements Store.CheckLanes. It walks the lane names of a rule in order, and the lanes of each name.
func CheckLanes(
	ctx context.Context, dialect walking, rule store.LaneRule, after *store.Lane, limit int, now time.Time,
) (*store.Lane, []string, error) {
	names := slices.Clone(rule.Handlers)
	slices.Sort(names)
	var requests []store.LaneRequest
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
		room := max(limit, 1) - len(requests)
		lanes, err := dialect.WaitingLanes(ctx, name, from, room)
		if err != nil {
			return nil, nil, Doing("check lanes", err)
		}
		slices.SortFunc(lanes, func(a, b store.Lane) int { return cmp.Compare(a.Key, b.Key) })
		for _, lane := range lanes {
			requests = append(requests, rule.Request(lane))
		}
		if len(lanes) == room {
			next = &lanes[room-1]
			break
		}
	}
	keys, err := dialect.AdvanceLanes(ctx, requests, now)
	if err != nil {
		return nil, nil, Doing("check lanes", err)
	}
	return next, keys, nil
}

// ScanLaneOf returns a function that scans the key of a lane of this handler.
func ScanLaneOf(name int64) func(*sql.Rows, *store.Lane) error {
	return func(rows *sql.Rows, lane *store.Lane) error {
		lane.Handler = name
		return rows.Scan(&lane.Key)
	}
}

// SplitLaneWindow is how many rows of each lane name KeysWithSplitLanes reads. Rows of one name belong to one handler,
// before and after its renames.
const SplitLaneWindow = 200

// laneLister is what KeysWithSplitLanes needs from a dialect.
type laneLister interface {
	LaneHandlers(ctx context.Context) ([]int64, error)
	LaneHandlerKeys(ctx context.Context, name int64, limit int) ([]string, error)
}

// KeysWithSplitLanes implements Store.KeysWithSplitLanes.
func KeysWithSplitLanes(ctx context.Context, dialect laneLister, rules map[string]store.LaneRule) ([]string, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	names, err := dialect.LaneHandlers(ctx)
	if err != nil {
		return nil, Doing("find the names of lanes", err)
	}
	var split []string
	for _, name := range names {
		keys, err := dialect.LaneHandlerKeys(ctx, name, SplitLaneWindow)
		if err != nil {
			return nil, Doing("find the handler keys of lanes", err)
		}
		for _, key := range keys {
			if rule, ordered := rules[key]; ordered && !slices.Contains(rule.Handlers, name) {
				split = append(split, key)
			}
		}
	}
	return Distinct(split), nil
}
