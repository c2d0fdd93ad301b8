package store

import (
	"time"
)

// Backlog is what there is to do under one handler key.
type Backlog struct {
	HandlerKey string
	// Due are unclaimed and can be claimed now; Waiting are behind others of
	// their lane; Processing are claimed, and Poisoned nobody has acted on.
	Due, Waiting, Processing, Poisoned int
	// OldestDue is when the oldest of Due became due; zero if none is.
	OldestDue time.Time
	// Capped says that there are more: it was not looked further.
	Capped bool
}
