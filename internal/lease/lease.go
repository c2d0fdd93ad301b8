// Package lease lets one of many owners hold a name for a while. A lease is a row of the inbox's locks that belongs to
// its owner until it runs out or is given up, and that the owner renews (contract 5.3, 6.1). Lease is the row, and Hold
// keeps holding it.
package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
)

// Store is what a lease needs from an inbox's store.
type Store interface {
	store.Leases
	SingleWriter() bool
}

// Lease is one owner's claim to a name. It is safe for concurrent use.
type Lease struct {
	store   Store
	name    string
	owner   string
	ttl     time.Duration
	timeout time.Duration
	now     func() time.Time

	lock      routine.Lock // held by the goroutine that sends a statement
	released  bool         // guarded by lock
	mayBeOurs bool         // guarded by lock: the lease may be ours, also when the last response was lost
}

// New returns a lease of owner, a UUID, that lasts ttl from each Acquire. No statement takes longer than timeout.
// Nothing is sent yet. The clock is only used on SQLite: servers judge leases by their own (contract 3.5).
func New(st Store, name, owner string, ttl, timeout time.Duration, now func() time.Time) *Lease {
	return &Lease{store: st, name: name, owner: owner, ttl: ttl, timeout: timeout, now: now, lock: routine.NewLock()}
}

// Acquire takes or renews the lease and reports whether the owner holds it now. After an error that is unknown.
func (l *Lease) Acquire(ctx context.Context) (held bool, err error) {
	err = l.serialized(ctx, func(ctx context.Context) error {
		if l.released {
			return nil
		}
		l.mayBeOurs = true
		if held, err = l.store.AcquireLease(ctx, l.name, l.owner, l.ttl, l.now()); err != nil {
			return err
		}
		l.mayBeOurs = held
		return nil
	})
	return held, err
}

// owned reports whether the lease belongs to the owner in the database, and whether it belongs to another owner. It
// waits neither for writers nor for an Acquire.
func (l *Lease) owned(ctx context.Context, timeout time.Duration) (ours, others bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	owner, err := l.store.LeaseOwner(ctx, l.name)
	return err == nil && owner == l.owner, err == nil && owner != "" && owner != l.owner, err
}

// Release gives the lease up permanently: Acquire reports false from then on. Release waits for a running Acquire,
// which would otherwise restore the row for an owner that is gone. Without the lease it sends nothing.
func (l *Lease) Release(ctx context.Context) error {
	return l.serialized(ctx, func(ctx context.Context) error {
		l.released = true
		if !l.mayBeOurs {
			return nil
		}
		if err := l.store.ReleaseLease(ctx, l.name, l.owner); err != nil {
			return err
		}
		l.mayBeOurs = false
		return nil
	})
}

func (l *Lease) serialized(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	if err := l.lock.Acquire(ctx); err != nil {
		return fmt.Errorf("lease %q: %w", l.name, err)
	}
	defer l.lock.Release()
	return do(ctx)
}

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

// holds reports whether the lease is held. It does not rely on the fence, which may fire late after a freeze.
func (h *Hold) holds() bool { return h.held && h.term.Err() == nil && time.Now().Before(h.until) }

// Fresh reports whether the lease is held and was renewed recently. Check it before beginning something new: a
// statement that is sent now should not arrive when the lease is another owner's.
func (h *Hold) Fresh() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holds() && time.Now().Before(h.fresh)
}

// busy is the state of a held lease in a database with a single writer, which is SQLite. Any long transaction (a
// transactional handler, perhaps one that runs under this very lease) keeps the holder from renewing. If the holder
// cancelled that handler for it, the handler would never complete, however often it ran. So a holder that cannot write
// polls the row: readers wait for no writer.
//
//   - The row names the holder: the term continues for a grace from that poll on, even past the time
//     in the row. Polls follow each other, half a grace before the term would end, for as long as Try
//     waits for the file.
//   - The row names another owner: the lease is lost.
//   - The poll fails or takes too long: the fence ends the term.
//
// The result of a poll is outdated as soon as it is there:
//
//  1. A polls and sees its own name.
//  2. The busy file becomes free. B, which may write before A, finds a row that has run out and
//     takes it.
//  3. A continues until its next poll.
//
// So B's term does not begin at once if the row belonged to another owner. It begins a grace after B has learned that
// the row is its own. Any poll of A's that still returned A was before B's write, and its result is valid for less than
// that. If B finds no row, the previous owner has ended its term before it gave the row up, and no grace is needed.
//
// B has to know whose the row was, so it polls before each Acquire outside of a term. If the row changes hands between
// the two, it has just been taken, and Acquire fails, or it has just been given up, and B waits without need. If the
// response of B's Acquire is lost, the next poll returns B, but others stays true. The grace then counts from the first
// response that B gets.
type busy struct {
	trying    int   // running Try calls: a driver may wait longer than their deadline
	waiting   bool  // the last Try failed because it waited in vain
	pollTimer timer // the next poll
	failed    error // error of the last poll
	others    bool  // the row was another owner's when it was last seen as not ours
	begin     timer // begins a term after the grace
}

// grace is how long the result of a poll is valid. It delays a takeover by as much.
func (h *Hold) grace() time.Duration { return h.lease.ttl / 4 }

// timer is a timer that may be nil.
type timer struct{ *time.Timer }

func (t *timer) stop() {
	if t.Timer != nil {
		t.Stop()
		t.Timer = nil
	}
}

// countTries counts the running Try calls.
func (h *Hold) countTries(more int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.busy.trying += more
}

// pollFirst learns whose the lease is before it may become ours.
func (h *Hold) pollFirst(ctx context.Context) error {
	if !h.lease.store.SingleWriter() || h.Held() {
		return nil
	}
	h.fenceFired() // if it is overdue, in a process that was frozen
	ours, others, err := h.lease.owned(ctx, h.lease.timeout)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !ours {
		h.busy.others = others
	}
	return nil
}

// acquired begins or extends a term, or schedules the beginning of one.
func (h *Hold) acquired(at time.Time) {
	if !h.lease.store.SingleWriter() {
		h.renew(at, h.lease.ttl, true)
		return
	}
	h.mu.Lock()
	h.busy.waiting, h.busy.failed = false, nil
	switch {
	case h.ended, h.busy.begin.Timer != nil: // it is scheduled; the lease outlasts the grace
		h.mu.Unlock()
	case h.held && !h.holds(): // the process was frozen: another owner may have held it unseen
		h.mu.Unlock()
		h.fenceFired()
	case h.busy.others:
		h.busy.others = false
		h.busy.begin = timer{time.AfterFunc(h.grace(), func() { h.beginAfterGrace(at) })}
		h.mu.Unlock()
	default:
		h.mu.Unlock()
		h.renew(at, h.lease.ttl, true)
	}
}

func (h *Hold) beginAfterGrace(at time.Time) {
	h.mu.Lock()
	stopped := h.busy.begin.Timer == nil
	h.busy.begin.stop()
	h.mu.Unlock()
	if !stopped {
		h.renew(at, h.lease.ttl, true)
	}
}

// failed polls at once if Try waited in vain: the lease may already be another owner's.
func (h *Hold) failed(ctx context.Context, err error) {
	h.mu.Lock()
	h.busy.waiting = h.lease.store.SingleWriter() && ctx.Err() == nil && store.IsWaiting(err)
	poll := h.busy.waiting && h.held
	h.mu.Unlock()
	if poll {
		h.poll()
	}
}

// watch schedules the next poll. h.mu is held.
func (h *Hold) watch() {
	if !h.lease.store.SingleWriter() {
		return
	}
	h.busy.pollTimer.stop()
	h.busy.pollTimer = timer{time.AfterFunc(time.Until(h.until.Add(-h.grace()/2)), func() {
		h.mu.Lock()
		waiting := h.busy.waiting || h.busy.trying > 0
		h.mu.Unlock()
		if waiting {
			h.poll()
		}
	})}
}

// poll polls whose the lease is. With its timeout it ends within the term if it starts in time.
func (h *Hold) poll() {
	at := time.Now()
	ours, _, err := h.lease.owned(h.Term(), h.grace()/2)
	switch {
	case err != nil:
		h.mu.Lock()
		h.busy.failed = err
		h.mu.Unlock()
	case ours:
		h.renew(at, h.grace(), false)
	default:
		h.lose(errTaken)
	}
}
