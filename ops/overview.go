package ops

import (
	"context"
	"errors"
	"time"
)

// Overview is an inbox at a glance.
type Overview struct {
	// Inbox is its name.
	Inbox string
	// At is when it was looked at.
	At time.Time
	// Handlers are all that workers list, operators have paused, or statuses
	// are open for, by handler key.
	Handlers []HandlerOverview
	Rejected Count
	Gaps     Count
	// WorkersAlive counts workers that are neither stopped nor released and whose
	// last heartbeat is younger than AliveFor.
	WorkersAlive int
}

// HandlerOverview is one handler key at a glance. Counts go up to LookLimit.
type HandlerOverview struct {
	HandlerKey string
	Paused     bool
	// Registered: a living worker lists the key.
	Registered bool
	// Pending counts the pending statuses, those due and those waiting in lanes
	// among them.
	Pending Count
	// Due counts those that could run now, those waiting in lanes not among them.
	Due Count
	// OldestDueAge is how long the one due longest has been; 0 if none is.
	OldestDueAge time.Duration
	// Waiting counts those that wait in a lane behind another.
	Waiting    Count
	Processing Count
	Poisoned   Count
}

// Overview looks at everything at once, in bounded counts.
func (o *Ops) Overview(ctx context.Context) (Overview, error) {
	return Overview{}, errors.ErrUnsupported
}
