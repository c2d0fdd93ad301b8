package store

import (
	"math"
	"time"

	"github.com/gorm-inbox/inbox/models"
)

// ClaimRequest asks for due statuses.
type ClaimRequest struct {
	// WorkerID is empty in manual mode (contract 5.14).
	WorkerID string
	Now      time.Time
	Limits   []KeyLimit
	// Within, if not nil, keeps the claim of a single key within a window.
	Within *Window
}

// Window is a range of the due statuses of a handler key, and which of them to claim: those whose messages no other
// program runs (contract 4.4).
type Window struct {
	After, End *Place // End is included; nil for the status due longest, and for no end
	StatusIDs  []string
}

// WindowRows is how many due statuses NextWindow reads.
const WindowRows = 1000

// KeyLimit bounds the claims for one handler key. Keys are distinct.
type KeyLimit struct {
	HandlerKey string
	Limit      int
	// Lanes is nil if the handler is not ordered. The rows' lanes are then ignored.
	Lanes *LaneRule
	// Runs says that the caller claims what follows in the lanes, too. A claim that finds a row then marks none as
	// waiting, because most of those that it passes over are claimed next. More due rows may be left, so claim again.
	Runs bool
	// Bytes ends the claim once its messages of the key have so many bytes of content and properties. The last message
	// may exceed it. 0 is no bound. AtLeast messages, and one at least, are claimed in any case.
	Bytes   int
	AtLeast int
	// After lets the claim begin after this place instead of at the status due longest, and pass rows that other
	// transactions have locked or changed, even if these have ended. It may walk over any number of such rows, and
	// leave rows that are free: Claimed.More then has the key. A store may ignore After, and does for ordered handlers.
	After *Place
}

// EndsAt returns Bytes, or a number that no claim reaches.
func (l KeyLimit) EndsAt() int64 { return endsAt(l.Bytes) }

func endsAt(bytes int) int64 {
	if bytes == 0 {
		return math.MaxInt64
	}
	return int64(bytes)
}

// Place is a place in the order in which the statuses of a handler key become due.
type Place struct {
	Due      time.Time
	StatusID string
	// Stored is Due as SQLite stores and sorts it, if the place comes from NextWindow: users may have written the time
	// in another zone. It is empty for our own format, and for PostgreSQL.
	Stored string
}

// ClaimPage is how many statuses OpenClaims reads of each walk, and ClaimWalks how many walks one call may have.
// PostgreSQL's planner expects to read a page of a table for each row. Its estimate then stays below half of what it
// compiles a statement for (jit_above_cost).
const (
	ClaimPage  = 1000
	ClaimWalks = 10
)

// ClaimWalk is a walk over the pending statuses of one handler key that do not wait in a lane, longest due first. All
// claims are among them.
type ClaimWalk struct {
	HandlerKey string
	After      *Place // nil at the beginning
}

// OpenClaims are the claimed statuses on one page of a walk.
type OpenClaims struct {
	Claims []OpenClaim
	// Next is the place after which the walk continues, nil at its end.
	Next *Place
}

// OpenClaim is a claimed status.
type OpenClaim struct {
	Ref
	WorkerID  string // empty without a worker (contract 5.14)
	StartedAt time.Time
}

// Claimed is the result of one claim.
type Claimed struct {
	Claims []Claim
	// More are keys that may have more due rows which this claim did not reach: keys of ordered handlers, keys with
	// After, and keys whose claim ended at Bytes. Claim again for them, without After, even if few of their rows are in
	// Claims. They are sorted and distinct.
	More []string
	// LanesErr is not nil if the claim succeeded, but checking the lanes of the rows it marked as waiting failed
	// afterwards. CheckLanes makes up for that.
	LanesErr error
}

// Claim is a claimed status. Version is the one after the claim.
type Claim struct {
	Ref
	RequeuedCount int
	// MessageBytes is the status's message_bytes. Claims add up these, and not what Size returns.
	MessageBytes int
	CreatedAt    time.Time
	// Due is when the status became due: its next_attempt_at, else its created_at.
	Due time.Time
	// Message is nil if the message's row is gone.
	Message *models.Message
}

// Size returns the bytes of the message's content and properties.
func (c *Claim) Size() int {
	if c.Message == nil {
		return 0
	}
	return size(c.Message)
}

func size(m *models.Message) int { return len(m.Content) + len(m.SerializedProperties) }

// Backlog is the work that is left under one handler key.
type Backlog struct {
	HandlerKey string
	// Due statuses are unclaimed and can be claimed now. Waiting ones come after others of their lane. Processing ones
	// are claimed. Poisoned ones wait for an operator.
	Due, Waiting, Processing, Poisoned int
	// OldestDue is when the oldest due status became due, zero if none is due.
	OldestDue time.Time
	// Capped means that counting stopped at its limit and that there may be more.
	Capped bool
}
