package store

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"
)

// Lane identifies one handler and one ordering key (contract 5.12), each by the first eight bytes of its SHA-256. Two
// ordering keys with the same eight bytes share a lane: they wait for each other, and the order of each holds.
type Lane struct{ Handler, Key int64 }

// LaneOf returns the lane of an ordering key, nil for a nil key. An empty key is a key. laneKey is Handler.LaneKey: the
// oldest key of the handler.
func LaneOf(laneKey string, orderingKey []byte) *Lane {
	if orderingKey == nil {
		return nil
	}
	return &Lane{Handler: LaneHandler(laneKey), Key: laneHash(orderingKey)}
}

// LaneHandler returns Lane.Handler for a handler key.
func LaneHandler(handlerKey string) int64 { return laneHash([]byte(handlerKey)) }

// laneHash returns the hash of a key. It never returns BeforeAllLanes.
func laneHash(text []byte) int64 {
	sum := sha256.Sum256(text)
	return max(int64(binary.BigEndian.Uint64(sum[:8])), BeforeAllLanes+1)
}

// BeforeAllLanes is where a walk over lanes begins.
const BeforeAllLanes = math.MinInt64

// LaneRule describes how the lanes of one handler run.
type LaneRule struct {
	// Handlers are all names that its lanes may have: LaneHandler of each of its keys. Rows accepted before a rename
	// may have another name than those accepted after it.
	Handlers []int64
	// SkipPoisoned lets a lane continue after a poisoned row.
	SkipPoisoned bool
}

// LaneRequest is one lane whose next row is to be found.
type LaneRequest struct {
	LaneRule
	Key int64
	// ClaimKey lets ClaimNext claim that row if it has this handler key. Empty lets it claim none. After a rename the
	// next row may have a key that only other programs know.
	ClaimKey string
}

// Request returns the request for a row's lane. The lane's own name is included even if the handler no longer has the
// key it comes from.
func (r LaneRule) Request(lane Lane) LaneRequest {
	names := append(slices.Clone(r.Handlers), lane.Handler)
	slices.Sort(names)
	return LaneRequest{LaneRule: LaneRule{Handlers: slices.Compact(names), SkipPoisoned: r.SkipPoisoned}, Key: lane.Key}
}

// RunRequest asks for the rows that follow a claimed row in its lane. All have the ClaimKey.
type RunRequest struct {
	LaneRequest
	// Head is the claimed row, which holds the lane.
	Head Ref
	// Limit is how many rows to claim at most.
	Limit int
	// Bytes is how many bytes of content and properties the run's messages may have together, the head's not counted. A
	// run ends before a message that exceeds it. 0 is no bound.
	Bytes int
}

// EndsAt returns Bytes, or a number that no run reaches.
func (r RunRequest) EndsAt() int64 { return endsAt(r.Bytes) }
