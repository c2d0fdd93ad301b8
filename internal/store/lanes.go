package store

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"
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

// laneHash never gives BeforeAllLanes.
func laneHash(text []byte) int64 {
	sum := sha256.Sum256(text)
	return max(int64(binary.BigEndian.Uint64(sum[:8])), BeforeAllLanes+1)
}

// BeforeAllLanes is where a walk over lanes begins.
const BeforeAllLanes = math.MinInt64

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
