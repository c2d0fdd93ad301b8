package lease

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

// busy is how a lease is held in a database with a single writer, SQLite. Any
// transaction that takes long (a transactional handler, perhaps one that runs
// under this very lease) keeps the holder from renewing; were it cancelled for
// that, it would never complete, however often it is run again. So a holder
// that cannot write reads: readers wait for nobody.
//
//   - The row names the holder: the term goes on for a grace from that look,
//     also beyond the time the row says. Looks follow each other, half a grace
//     before the term would end, for as long as Try waits for the file.
//   - The row names another: lost.
//   - The look fails or takes too long: the fence falls.
//
// A look is old as soon as it is taken. A looks and sees its name; the busy
// file becomes free; B, whose turn to write comes before A's, finds a row that
// has run out, and takes it; A goes on until its next look. So B's term does
// not begin at once if the row was another's: it begins a grace after B knows
// of the row as its own. Any look of A's that still said A was before B's
// write, and is good for less than that. A row that B finds free was given up
// by an owner who has ended its term before, and needs no grace.
//
// B has to know whose the row was, and looks before each Acquire outside of a
// term. If it changes hands between the two, the lease has just been taken or
// given up, and Acquire fails or B waits for nothing. If the answer of B's
// Acquire is lost, the next look says B, but others remains: the grace is
// counted from the first answer that B gets.
type busy struct {
	trying  int   // Try calls under way: a driver may wait longer than their deadline
	waiting bool  // the last Try failed because it waited in vain
	look    timer // the next one
	failed  error // of the last one
	others  bool  // the row was another's when it was last seen as not ours
	begin   timer // begins a term after the grace
}

// grace is how long a look is good for. It delays a takeover by as much.
func (h *Hold) grace() time.Duration { return h.lease.ttl / 4 }

// timer is one that may be nil.
type timer struct{ *time.Timer }

func (t *timer) stop() {
	if t.Timer != nil {
		t.Stop()
		t.Timer = nil
	}
}

func (h *Hold) trying(more int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.busy.trying += more
}

// lookFirst learns whose the lease is before it may become ours.
func (h *Hold) lookFirst(ctx context.Context) error {
	if !h.lease.store.SingleWriter() || h.Held() {
		return nil
	}
	h.fall() // if it is overdue, in a process that was frozen
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

// acquired begins or extends a term, or lets one begin later.
func (h *Hold) acquired(at time.Time) {
	if !h.lease.store.SingleWriter() {
		h.renew(at, h.lease.ttl, true)
		return
	}
	h.mu.Lock()
	h.busy.waiting, h.busy.failed = false, nil
	switch {
	case h.over, h.busy.begin.Timer != nil: // it is on its way; the lease outlasts the grace
		h.mu.Unlock()
	case h.held && !h.holds(): // frozen meanwhile: whose it was in between nobody has looked
		h.mu.Unlock()
		h.fall()
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

// failed looks at once: the term may be another's already.
func (h *Hold) failed(ctx context.Context, err error) {
	h.mu.Lock()
	h.busy.waiting = h.lease.store.SingleWriter() && ctx.Err() == nil && store.IsWaiting(err)
	look := h.busy.waiting && h.held
	h.mu.Unlock()
	if look {
		h.look()
	}
}

// watch sets the time of the next look; h.mu is held.
func (h *Hold) watch() {
	if !h.lease.store.SingleWriter() {
		return
	}
	h.busy.look.stop()
	h.busy.look = timer{time.AfterFunc(time.Until(h.until.Add(-h.grace()/2)), func() {
		h.mu.Lock()
		waiting := h.busy.waiting || h.busy.trying > 0
		h.mu.Unlock()
		if waiting {
			h.look()
		}
	})}
}

// look reads whose the lease is. It must not take longer than what is left of
// the term when it is looked at in time.
func (h *Hold) look() {
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
