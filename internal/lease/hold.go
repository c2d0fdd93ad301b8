package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// errTaken ends a hold because another owner has taken over.
var errTaken = errors.New("another worker has taken it")

// Hold repeatedly tries to hold a lease and has a context for work that may only run while it holds it. Each period in
// which the lease is held is a term. A Hold is safe for concurrent use.
type Hold struct {
	lease   *Lease
	parent  context.Context
	lost    error
	changed func(held bool, why error)

	mu    sync.Mutex
	held  bool
	ended bool
	until time.Time   // the term's end if nothing extends it, monotonic
	fresh time.Time   // until when something new may begin
	fence *time.Timer // ends the term at until
	term  context.Context
	end   context.CancelCauseFunc

	busy busy // for a database with a single writer
}

// NewHold returns a hold whose terms end with parent, or with the cause lost when the lease is lost. It calls changed
// on every change except End. why is the reason of a loss.
func NewHold(parent context.Context, l *Lease, lost error, changed func(held bool, why error)) *Hold {
	h := &Hold{lease: l, parent: parent, lost: lost, changed: changed}
	h.term, h.end = context.WithCancelCause(parent)
	h.end(lost)
	return h
}

// Try takes or renews the lease. An error leaves a term as it is. If no Try succeeds for the lease's length, the fence
// ends the term, even if a Try hangs. The time counts from the moment before the statement, so the lease in the
// database runs out later than the term.
//
// On SQLite, a Try that waits for the file in vain does not count as silence, and a lease that was another owner's does
// not begin a term at once: see busy.
func (h *Hold) Try(ctx context.Context) error {
	h.countTries(1)
	defer h.countTries(-1)
	at := time.Now()
	if err := h.pollFirst(ctx); err != nil {
		return err
	}
	held, err := h.lease.Acquire(ctx)
	switch {
	case held:
		h.acquired(at)
	case err == nil:
		h.lose(errTaken)
	default:
		h.failed(ctx, err)
	}
	return err
}

// renew moves the term's end to length after at, or begins a term.
func (h *Hold) renew(at time.Time, length time.Duration, mayBegin bool) {
	h.mu.Lock()
	// If the process was frozen during the statement, its success may be outdated.
	if h.ended || (!h.held && !mayBegin) || time.Since(at) >= length {
		h.mu.Unlock()
		return
	}
	begun := !h.held
	if begun {
		h.held, h.until, h.fresh = true, at, at
		h.term, h.end = context.WithCancelCause(h.parent)
	}
	if until := at.Add(length); until.After(h.until) {
		h.until = until
	}
	if fresh := at.Add(length * 2 / 3); fresh.After(h.fresh) {
		h.fresh = fresh
	}
	if h.fence != nil {
		h.fence.Stop()
	}
	h.fence = time.AfterFunc(time.Until(h.until), h.fenceFired)
	h.watch()
	h.mu.Unlock()
	if begun {
		h.changed(true, nil)
	}
}

// fenceFired ends the term when the fence fires. A renewal at the same moment may be too late to stop the timer, but it
// still counts.
func (h *Hold) fenceFired() {
	why := fmt.Errorf("it could not be renewed for %s", h.lease.ttl)
	h.mu.Lock()
	if h.busy.failed != nil {
		why = fmt.Errorf("%w: %w", why, h.busy.failed)
	}
	h.mu.Unlock()
	h.loseIf(func() bool { return !time.Now().Before(h.until) }, why)
}

func (h *Hold) lose(why error) { h.loseIf(func() bool { return true }, why) }

func (h *Hold) loseIf(condition func() bool, why error) {
	h.mu.Lock()
	if why == errTaken {
		h.busy.others = true
		h.busy.begin.stop()
	}
	if !h.held || !condition() {
		h.mu.Unlock()
		return
	}
	h.held = false
	h.fence.Stop()
	h.busy.pollTimer.stop()
	h.end(h.lost)
	h.mu.Unlock()
	h.changed(false, why)
}

// End ends the term, and no other one begins. In the database, the lease still belongs to the owner: give it up with
// Lease.Release.
func (h *Hold) End() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended, h.held = true, false
	if h.fence != nil {
		h.fence.Stop()
	}
	h.busy.pollTimer.stop()
	h.busy.begin.stop()
	h.end(h.lost)
}

// Term returns the context of work that may only run while the lease is held. It has ended if the lease is not held.
func (h *Hold) Term() context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.term
}

// Held reports whether the lease is held.
func (h *Hold) Held() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holds()
}

// holds reports whether the lease is held. It does not rely on the fence, which may fire late in a process that was
// frozen.
func (h *Hold) holds() bool { return h.held && h.term.Err() == nil && time.Now().Before(h.until) }

// Fresh reports whether the lease is held and was renewed recently. Check it before beginning something new: a
// statement that is sent now should not arrive when the lease is another owner's.
func (h *Hold) Fresh() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holds() && time.Now().Before(h.fresh)
}
