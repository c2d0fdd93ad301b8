package lease

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

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
