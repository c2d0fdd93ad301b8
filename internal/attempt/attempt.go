// Package attempt runs handlers. An attempt is one run of one handler for one message:
// the call with all that may go wrong in it, its deadline, the transaction around it,
// and what its error means for the message. The processor, which runs what an inbox
// stores, and package synchronous, which runs what a transport holds, use it; no
// other package calls a handler.
package attempt

import (
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Attempt is one run of one handler for one message. One goroutine at a time uses it.
type Attempt struct {
	Handler  *handler.Handler
	Policy   Policy
	Delivery handler.Delivery
	// Failures is how many failed attempts have been charged so far.
	Failures int
	// Timeout limits the call, see Policy.Timeout; 0: none.
	Timeout time.Duration
	// Alone keeps the attempt from sharing a call or a transaction with others.
	Alone bool

	// Run sets the rest. Again says that the attempt has no result and is to run once
	// more at once: others were why it did not come to its end, or its transaction
	// collided with another.
	Again bool
	// Err is what the attempt came to; nil: the handler returned nil.
	Err error
	// Cause is why the handler's context had ended; nil if it had not.
	Cause error
	// Stored says that what Steps.Write wrote for it is committed.
	Stored bool
	// Stale says that Steps.Write or Steps.Check refused it: nothing has run, or all is
	// rolled back.
	Stale    bool
	Duration time.Duration

	// watched is the transaction that the handler wrote in last. Others of a batch share
	// it.
	watched *handlertx.WatchedTx
	// unanswered is the last transaction whose commit was not answered.
	unanswered *handlertx.WatchedTx
	collisions int                // how often it ran again because its transaction collided
	span       *telemetry.Attempt // of its call, which others may share; nil if that is not traced
}

// Reset readies an attempt that is to run again.
func (a *Attempt) Reset() {
	a.Again, a.Err, a.Cause, a.Duration = false, nil, nil, 0
}

// NotifyCommitted calls what waits for the commit of the attempt's transaction, of
// which it was found out later that it was made.
func (a *Attempt) NotifyCommitted() {
	if a.unanswered != nil {
		a.unanswered.Committed()
		a.unanswered = nil
	}
}

// Came notes in the span of the attempt's call what it came to.
func (a *Attempt) Came(outcome handler.AttemptOutcome, err error) {
	a.span.Came(string(outcome), ErrorType(err, a.Cause), err)
}

// EndSpan ends the span of the attempt's call, if there is one.
func (a *Attempt) EndSpan() {
	a.span.End()
	a.span = nil
}

func (a *Attempt) repeat(alone bool) {
	a.Again, a.Alone = true, a.Alone || alone
	a.Err, a.Stored, a.Stale = nil, false, false
}

func repeatAlone(groups ...[]*Attempt) {
	for _, group := range groups {
		for _, a := range group {
			a.repeat(true)
		}
	}
}

func fail(group []*Attempt, err error) {
	for _, a := range group {
		a.Err = err
	}
}
