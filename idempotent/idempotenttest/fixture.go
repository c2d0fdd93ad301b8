// Package idempotenttest is the suite that every idempotent.Store has to pass. Run it on a store of your own:
//
//	func TestConformance(t *testing.T) {
//		idempotenttest.Run(t, func(t *testing.T) idempotenttest.Fixture {
//			return idempotenttest.Fixture{Store: mystore.New(open(t))}
//		})
//	}
package idempotenttest

import (
	"testing"
	"time"

	"github.com/gorm-inbox/inbox/idempotent"
)

// Fixture is a store under test and what the suite may do to it. The store must be new and empty for each test; close
// what it needs with t.Cleanup. Subtests that need a field which is nil, false or 0 are not tried, and say so in their
// name.
type Fixture struct {
	// Store is required.
	Store idempotent.Store

	// Now reads and Advance moves the store's clock, if that is injected and stands still. If both are nil, the store's
	// time is time.Now, within minutes, and advances by itself.
	Now     func() time.Time
	Advance func(d time.Duration)

	// Forgets says that the store forgets markers by itself once their retention is over (a TTL). Its Cleanup then
	// returns 0. Otherwise the store must remember until Cleanup.
	Forgets bool

	// Waits is how long a call waits at least for another call of its key before it returns ErrInProgress. 0 means that
	// it may return ErrInProgress at once. The suite makes a call wait for most of this time.
	Waits time.Duration

	// Notices is how long a waiting call takes at most to notice that its context has ended, for drivers that do not
	// watch the context. Default 0, which means 0.8 of Waits. It is checked only if Waits is at least 3 s.
	Notices time.Duration

	// Crash runs the key in a process that dies in the body (SIGKILL, not a panic). It returns when the next call need
	// not wait for the dead process any longer: at once if the server notices, or after the lease if there is one. Nil
	// if a process's memory is the store.
	Crash func(t *testing.T, run idempotent.Run)

	// Usurp is called while the body of key runs. It changes the store as if that call's lease had expired and another
	// process had begun to handle the key; that other call is in progress when Usurp returns. The suite expects ErrLost
	// of the first call even if its body returned nil, and that the other call keeps its claim. Nil for stores without
	// leases.
	Usurp func(t *testing.T, key idempotent.Key)
}

func (f Fixture) now() time.Time {
	if f.Now != nil {
		return f.Now()
	}
	return time.Now()
}

// run returns the run that the suite uses unless a test is about its fields.
func run(messageID, handlerKey string, legacyKeys ...string) idempotent.Run {
	return idempotent.Run{Key: idempotent.Key{MessageID: messageID, HandlerKey: handlerKey}, LegacyKeys: legacyKeys,
		MessageType: "order.placed", Retention: time.Hour}
}
