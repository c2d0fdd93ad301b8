package store

import (
	"time"

	"github.com/gorm-inbox/inbox/models"
)

// ClaimRequest asks for due statuses.
type ClaimRequest struct {
	// WorkerID is empty in manual mode (contract 5.14).
	WorkerID string
	Now      time.Time
	Limits   []KeyLimit
}

// KeyLimit bounds what is claimed for one handler key. Keys are distinct.
type KeyLimit struct {
	HandlerKey string
	Limit      int
	// Lanes is nil if the handler is not ordered; lanes are then ignored.
	Lanes *LaneRule
}

// Claimed is what one claim got.
type Claimed struct {
	Claims []Claim
	// Behind are keys of ordered handlers that may have more due rows, which
	// this claim did not come to: claim again, however few of theirs are in
	// Claims. They are sorted and distinct.
	Behind []string
	// Unlooked is not nil if the claim stands but the look after the lanes of
	// the rows it marked as waiting failed: CheckLanes makes up for it.
	Unlooked error
}

// Claim is a claimed status. Version is the one after the claim.
type Claim struct {
	Ref
	RequeuedCount int
	CreatedAt     time.Time
	// Due is when it became due: its next_attempt_at, else its created_at.
	Due time.Time
	// Message is nil if the message's row is gone.
	Message *models.Message
}

// Backlog is what there is to do under one handler key.
type Backlog struct {
	HandlerKey string
	// Due are unclaimed and can be claimed now; Waiting are behind others of
	// their lane; Processing are claimed; Poisoned await an operator.
	Due, Waiting, Processing, Poisoned int
	// OldestDue is when the oldest of Due became due; zero if none is.
	OldestDue time.Time
	// Capped says that there are more: it was not looked further.
	Capped bool
}
