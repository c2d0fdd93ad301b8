package base

import (
	"cmp"
	"context"
	"database/sql"
	"math"
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

// CheckLanes walks the lane names of a rule in order, and the lanes of each name.
func (c Common) CheckLanes(
	ctx context.Context, rule store.LaneRule, after *store.Lane, limit int, now time.Time,
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
		keys, err := c.waitingLanes(ctx, name, from, room)
		if err != nil {
			return nil, nil, Doing("check lanes", err)
		}
		slices.Sort(keys)
		for _, key := range keys {
			requests = append(requests, rule.Request(store.Lane{Handler: name, Key: key}))
		}
		if len(keys) == room {
			next = &store.Lane{Handler: name, Key: keys[room-1]}
			break
		}
	}
	keys, err := c.dialect.AdvanceLanes(ctx, requests, now)
	if err != nil {
		return nil, nil, Doing("check lanes", err)
	}
	return next, keys, nil
}

func (c Common) waitingLanes(ctx context.Context, name, after int64, limit int) ([]int64, error) {
	if c.sql.Lanes.ByStep {
		return c.stepping(ctx, c.sql.Lanes.Waiting, after, limit, name)
	}
	return store.Query(ctx, c.Pool(ctx), c.numbered(c.sql.Lanes.Waiting), store.Value[int64], name, after, limit)
}

// names returns what a statement on the names of lanes finds.
func (c Common) names(ctx context.Context, statement string) ([]int64, error) {
	if c.sql.Lanes.ByStep {
		return c.stepping(ctx, statement, store.BeforeAllLanes, math.MaxInt)
	}
	return store.Query(ctx, c.Pool(ctx), c.Text(statement), store.Value[int64])
}

// stepping repeats a statement after each value that it returned, up to a limit.
func (c Common) stepping(ctx context.Context, statement string, after int64, limit int, args ...any) (
	all []int64, err error,
) {
	for len(all) < limit {
		found, err := store.Query(ctx, c.Pool(ctx), c.numbered(statement), store.Value[int64],
			append([]any{after}, args...)...)
		if err != nil || len(found) == 0 {
			return all, err
		}
		after = found[0]
		all = append(all, after)
	}
	return all, nil
}

func (c Common) WaitingLaneHandlers(ctx context.Context) ([]int64, error) {
	names, err := c.names(ctx, c.sql.Lanes.WaitingHandlers)
	return names, Doing("find lanes with waiting statuses", err)
}

func (c Common) ReleaseWaiting(ctx context.Context, handlerKeys []string, limit int) (int64, error) {
	released, err := store.Exec(ctx, c.Pool(ctx), c.Text(c.sql.ReleaseWaiting), listArgument(c, handlerKeys), limit)
	return released, Doing("release waiting statuses", err)
}

func (c Common) PendingKeys(ctx context.Context) ([]string, error) {
	keys, err := store.Query(ctx, c.Pool(ctx), c.Text(PendingKeysSQL), store.Value[string])
	return keys, Doing("find pending handler keys", err)
}

// SplitLaneWindow is how many rows of each lane name KeysWithSplitLanes reads. Rows of one name belong to one handler,
// before and after its renames.
const SplitLaneWindow = 200

func (c Common) KeysWithSplitLanes(ctx context.Context, rules map[string]store.LaneRule) ([]string, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	names, err := c.names(ctx, c.sql.Lanes.Handlers)
	if err != nil {
		return nil, Doing("find the names of lanes", err)
	}
	var split []string
	for _, name := range names {
		keys, err := store.Query(ctx, c.Pool(ctx), c.numbered(c.sql.Lanes.HandlerKeys), store.Value[string], name,
			SplitLaneWindow)
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

// Follower is a row that follows the head of a run in its lane.
type Follower struct {
	// Run is the place of the run's request.
	Run      int
	Sequence int64
	// Free says that the row may be claimed, but for the rows before it.
	Free  bool
	Claim store.Claim
}

// ClaimableRuns returns those rows that are claimed: of each run the rows before its end, in the order of their lane.
func ClaimableRuns(runs []store.RunRequest, rows []Follower) []Follower {
	slices.SortFunc(rows, func(a, b Follower) int {
		return cmp.Or(cmp.Compare(a.Run, b.Run), cmp.Compare(a.Sequence, b.Sequence),
			cmp.Compare(a.Claim.StatusID, b.Claim.StatusID))
	})
	counts, bytes, ended := make([]int, len(runs)), make([]int64, len(runs)), make([]bool, len(runs))
	return slices.DeleteFunc(rows, func(row Follower) bool {
		i := row.Run
		counts[i], bytes[i] = counts[i]+1, bytes[i]+int64(row.Claim.MessageBytes)
		ended[i] = ended[i] || !row.Free || counts[i] > runs[i].Limit || bytes[i] > runs[i].EndsAt()
		return ended[i]
	})
}
