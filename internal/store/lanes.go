package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Lane names one handler and one ordering key (contract 5.12), both by the
// first eight bytes of their SHA-256. Two ordering keys that share these share
// a lane: they wait for each other, and the order of each holds.
type Lane struct{ Handler, Key int64 }

// LaneOf is the lane of an ordering key; nil for a nil key, which has none. An
// empty key is a key. laneKey is Handler.LaneKey: the oldest of its keys.
func LaneOf(laneKey string, orderingKey []byte) *Lane {
	if orderingKey == nil {
		return nil
	}
	return &Lane{Handler: LaneHandler(laneKey), Key: laneHash(orderingKey)}
}

// LaneHandler is Lane.Handler of a handler key.
func LaneHandler(handlerKey string) int64 { return laneHash([]byte(handlerKey)) }

// laneHash never gives beforeAllLanes.
func laneHash(text []byte) int64 {
	sum := sha256.Sum256(text)
	return max(int64(binary.BigEndian.Uint64(sum[:8])), beforeAllLanes+1)
}

// beforeAllLanes is where a walk over lanes begins.
const beforeAllLanes = math.MinInt64

// LaneRule says how the lanes of one handler run.
type LaneRule struct {
	// Handlers are all names its lanes may go by: LaneHandler of each of its
	// keys. Rows accepted before a rename carry another than those after it.
	Handlers []int64
	// SkipPoisoned: a poisoned row does not hold up its lane.
	SkipPoisoned bool
}

// LaneTurn is one lane whose next row is looked for.
type LaneTurn struct {
	LaneRule
	Key int64
}

// Turn is the turn of a row's lane. Its own name counts also where the handler
// has forgotten the key it comes from.
func (r LaneRule) Turn(lane Lane) LaneTurn {
	names := append(slices.Clone(r.Handlers), lane.Handler)
	slices.Sort(names)
	return LaneTurn{LaneRule: LaneRule{Handlers: slices.Compact(names), SkipPoisoned: r.SkipPoisoned}, Key: lane.Key}
}

const (
	// laneWindow is how many rows of a key a claim looks at, beyond twice its
	// limit, to find the first of their lanes. So a claim that has seen the
	// whole window has claimed its limit or passed over more, and marks them:
	// the next one gets further.
	laneWindow = 1000
	// claimAttempts bounds how often a claim is tried again because another
	// one took the same lane at the same moment.
	claimAttempts = 5
)

// ordered tells whether any key has lanes.
func (r ClaimRequest) ordered() bool {
	return slices.ContainsFunc(r.Limits, func(l KeyLimit) bool { return l.Lanes != nil && l.Limit > 0 })
}

// distinct names keys once, in order.
func distinct(keys []string) []string {
	slices.Sort(keys)
	return slices.Compact(keys)
}

// laneColumns scans lane_handler and lane_key.
type laneColumns struct{ handler, key sql.NullInt64 }

func (c laneColumns) lane() *Lane {
	if !c.handler.Valid || !c.key.Valid {
		return nil
	}
	return &Lane{Handler: c.handler.Int64, Key: c.key.Int64}
}

// numbers writes a list as PostgreSQL reads an array: lists of different
// lengths cannot travel in one array of arrays.
func numbers(list []int64) string {
	texts := make([]string, len(list))
	for i, n := range list {
		texts[i] = strconv.FormatInt(n, 10)
	}
	return "{" + strings.Join(texts, ",") + "}"
}

// walking is what CheckLanes needs of a dialect.
type walking interface {
	// waitingLanes returns up to limit lanes of this name with waiting rows,
	// the first ones behind after.
	waitingLanes(ctx context.Context, name, after int64, limit int) ([]Lane, error)
	AdvanceLanes(ctx context.Context, turns []LaneTurn, now time.Time) ([]string, error)
}

// checkLanes walks the names of a rule in order, and each one's lanes.
func checkLanes(ctx context.Context, dialect walking, rule LaneRule, after *Lane, limit int, now time.Time) (*Lane, []string, error) {
	names := slices.Clone(rule.Handlers)
	slices.Sort(names)
	var turns []LaneTurn
	var next *Lane
	for _, name := range slices.Compact(names) {
		from := int64(beforeAllLanes)
		if after != nil {
			if name < after.Handler {
				continue
			}
			if name == after.Handler {
				from = after.Key
			}
		}
		room := max(limit, 1) - len(turns)
		lanes, err := dialect.waitingLanes(ctx, name, from, room)
		if err != nil {
			return nil, nil, doing("check lanes", err)
		}
		slices.SortFunc(lanes, func(a, b Lane) int { return cmp.Compare(a.Key, b.Key) })
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
		return nil, nil, doing("check lanes", err)
	}
	return next, keys, nil
}
