package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// errTaken is why a hold ends that another owner has taken over.
var errTaken = errors.New("another worker has taken it")

// Hold is a lease that somebody tries to hold again and again, with a context
// for what may only go on while that succeeds. Each time the lease is held is
// a term. It is safe for concurrent use.
type Hold struct {
	lease   *Lease
	parent  context.Context
	lost    error
	changed func(held bool, why error)

	mu    sync.Mutex
	held  bool
	over  bool
	until time.Time   // the term's end if nothing extends it, monotonic
	fresh time.Time   // until when something new may begin
	fence *time.Timer // ends the term at until
	term  context.Context
	end   context.CancelCauseFunc

	busy busy // what a database with a single writer needs
}

// NewHold makes a hold whose terms end with parent, or with the cause lost
// when the lease is lost. changed is told of every change, except for End; why
// is the reason of a loss.
func NewHold(parent context.Context, l *Lease, lost error, changed func(held bool, why error)) *Hold {
	h := &Hold{lease: l, parent: parent, lost: lost, changed: changed}
	h.term, h.end = context.WithCancelCause(parent)
	h.end(lost)
	return h
}

// Try takes or renews the lease. An error leaves a term as it is: should no
// Try succeed for the lease's length, the fence ends it, whatever a later Try
// hangs on. The moment that counts is the one before the statement: the
// database lets the lease run out later than that.
//
// On SQLite a Try that waits for the file in vain does not count as silence,
// and a lease that was another's begins no term at once: see busy.
func (h *Hold) Try(ctx context.Context) error {
	h.trying(1)
	defer h.trying(-1)
	at := time.Now()
	if err := h.lookFirst(ctx); err != nil {
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

// renew lets the term end length after that moment, or begins one.
func (h *Hold) renew(at time.Time, length time.Duration, mayBegin bool) {
	h.mu.Lock()
	// A process that was frozen while the statement was under way may get a
	// yes that is out of date.
	if h.over || (!h.held && !mayBegin) || time.Since(at) >= length {
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
	h.fence = time.AfterFunc(time.Until(h.until), h.fall)
	h.watch()
	h.mu.Unlock()
	if begun {
		h.changed(true, nil)
	}
}

// fall is the fence's. A renewal that comes at the same moment may be too late
// to stop it, but not to count.
func (h *Hold) fall() {
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
	h.busy.look.stop()
	h.end(h.lost)
	h.mu.Unlock()
	h.changed(false, why)
}

// End ends the term, and no other begins. The lease is still the owner's, in
// the database: give it up by Lease.Release.
func (h *Hold) End() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over, h.held = true, false
	if h.fence != nil {
		h.fence.Stop()
	}
	h.busy.look.stop()
	h.busy.begin.stop()
	h.end(h.lost)
}

// Term is the context of what may go on now only because the lease is held: it
// has ended if it is not.
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

// holds does not wait for the fence: in a process that was frozen it may come
// late.
func (h *Hold) holds() bool { return h.held && h.term.Err() == nil && time.Now().Before(h.until) }

// Fresh reports whether it is held and was renewed lately. One who begins
// something new asks this: a statement sent now should not arrive when the
// lease is another's.
func (h *Hold) Fresh() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holds() && time.Now().Before(h.fresh)
}
