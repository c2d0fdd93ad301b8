package store

import (
	"time"

	"github.com/gorm-inbox/inbox/models"
)

// Ref identifies a status at a version.
type Ref struct {
	StatusID       string
	MessageNumber  int64
	MessageID      string
	HandlerKey     string
	Version        int64
	ErrorCount     int
	AbandonedCount int
	// InterruptedCount is how many attempts in a row a failure of the database has interrupted.
	InterruptedCount int
	// Lane is nil if the row has none.
	Lane *Lane
}

// Sibling is a status of the same message under another key.
type Sibling struct {
	Ref
	Processing bool
	Poisoned   bool
	Completed  bool
	Outcome    models.Outcome
}

// Completion ends a status that is at Version.
type Completion struct {
	StatusID string
	Version  int64
	Outcome  models.Outcome
}

// Settlement is the state to which a claimed or pending status returns. The row becomes unclaimed.
type Settlement struct {
	StatusID string
	// HandlerKey is the row's. The fingerprint of LastError is made with it.
	HandlerKey string
	Version    int64

	ErrorCount       int
	AbandonedCount   int
	InterruptedCount int
	// LastError replaces the stored text and its fingerprint. Nil keeps both.
	LastError *string
	// NextAttemptAt is nil for a status that is due now, and for a poisoned one.
	NextAttemptAt *time.Time
	Poisoned      bool
	// FailedAt is when the attempt failed, its worker was found dead, or the status was poisoned. It adds an entry to
	// the row's attempts, with the claim that the row has until now, and is the time of poisoning. Zero adds none: the
	// status was released or snoozed.
	FailedAt time.Time
}

// State is the current state of a status.
type State struct {
	Version    int64
	Completed  bool
	Poisoned   bool
	Processing bool
}
