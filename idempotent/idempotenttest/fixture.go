// Package idempotenttest is the suite that every idempotent.Store has to pass.
// Run it on a store of your own:
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

// Fixture is a store to be tested and what the suite may do to it. The store is
// the test's own and remembers nothing yet; what it needs is closed by
// t.Cleanup. Whatever else is nil or false is said to be not tried, in the
// subtest's name.
type Fixture struct {
	// Store is required.
	Store idempotent.Store

	// Now reads and Advance moves the store's clock, for a store whose clock is
	// injected and stands still. Both nil mean that its time is time.Now, within
	// minutes, and passes by itself.
	Now     func() time.Time
	Advance func(d time.Duration)

	// Forgets says that the store forgets by itself what is past its retention
	// (a TTL). Its Cleanup then returns 0. Without it the store must remember
	// until Cleanup.
	Forgets bool

	// Waits is how long a call waits at least for another one of its key that
	// is under way, before it returns ErrInProgress. 0 means that it may return
	// ErrInProgress at once. The suite lets one wait for most of it.
	Waits time.Duration

	// Notices is how long a call that waits takes at most to notice that its
	// context has ended, where a driver does not look. Default 0, which is 0.8 of
	// Waits; it is looked at where Waits is 3 s or more.
	Notices time.Duration

	// Crash runs the key in a process that dies in the body (SIGKILL, not a
	// panic), and returns when the next call need not wait any longer for what
	// the dead one left behind: at once where the server notices, after the
	// lease where there is one. Nil if what a process remembers dies with it.
	Crash func(t *testing.T, run idempotent.Run)

	// Usurp is called while the body of key runs. It does to the store what
	// happens when that call's lease runs out and another process begins to
	// handle the key; on return that other call is under way. The suite expects
	// ErrLost of the first call even if its body returned nil, and that the
	// other's claim stands. Nil for stores without leases.
	Usurp func(t *testing.T, key idempotent.Key)
}

func (f Fixture) now() time.Time {
	if f.Now != nil {
		return f.Now()
	}
	return time.Now()
}

// run is what the suite asks of a store unless a test is about its parts.
func run(messageID, handlerKey string) idempotent.Run {
	return idempotent.Run{Key: idempotent.Key{MessageID: messageID, HandlerKey: handlerKey}, MessageType: "order.placed",
		Retention: time.Hour}
}
