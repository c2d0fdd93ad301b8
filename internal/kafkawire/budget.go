package kafkawire

import (
	"context"
	"sync"
)

// Budget bounds the bytes that are fetched and not yet accepted, over all
// partitions. Fetchers take from it before they take memory: for a response as
// it arrives, for a batch as it is decompressed, for records as they are
// copied out. How much a batch becomes is known only then, and one that is
// larger than the whole budget must pass too; so one fetcher at a time may
// exceed it.
//
// No fetcher waits without end: what workers have is given back as it is accepted,
// whatever fetchers wait for, and when workers have less than the limit one of
// the waiting fetchers goes on, even if all the rest is held by fetchers that
// wait in the midst of a response.
type Budget struct {
	limit int

	mu sync.Mutex
	// sent is in chunks that workers have, held is what fetchers still have.
	sent, held int
	// exceeding is whose turn it is to take more than there is.
	exceeding *Hold
	changed   chan struct{} // closed when something is given back
}

// NewBudget bounds bytes by limit.
func NewBudget(limit int) *Budget { return &Budget{limit: limit, changed: make(chan struct{})} }

// Wait returns when there is something left, or false when ctx ends first.
func (b *Budget) Wait(ctx context.Context) bool {
	return b.await(ctx, func() bool { return b.sent+b.held < b.limit })
}

// await returns when condition, which is called with the lock, holds.
func (b *Budget) await(ctx context.Context, condition func() bool) bool {
	for {
		b.mu.Lock()
		if condition() {
			b.mu.Unlock()
			return ctx.Err() == nil
		}
		changed := b.changed
		b.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Release gives back bytes that were sent.
func (b *Budget) Release(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent -= bytes
	b.notify()
}

// notify wakes the waiting fetchers; the caller holds the lock.
func (b *Budget) notify() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Bytes are all that is taken.
func (b *Budget) Bytes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sent + b.held
}

// Hold is what one fetcher has of the budget while it works on a response.
type Hold struct {
	budget *Budget
	taken  int
	// spare is taken and not used yet: records are smaller than what is taken
	// at a time.
	spare int
}

// NewHold holds nothing yet.
func (b *Budget) NewHold() *Hold { return &Hold{budget: b} }

// takeAtLeast spares fetchers the lock for each record.
const takeAtLeast = 64 << 10

// Take takes bytes, when it may, and reports false if ctx ends first.
func (h *Hold) Take(ctx context.Context, bytes int) bool {
	if bytes <= h.spare {
		h.spare -= bytes
		return true
	}
	more := max(bytes-h.spare, takeAtLeast)
	b := h.budget
	took := b.await(ctx, func() bool {
		fits := b.sent+b.held+more <= b.limit
		if !fits && b.exceeding != h && (b.exceeding != nil || b.sent >= b.limit) {
			return false
		}
		if !fits {
			b.exceeding = h
		}
		b.held += more
		h.taken += more
		return true
	})
	if took {
		h.spare += more - bytes
	}
	return took
}

// bytes are those in use.
func (h *Hold) bytes() int { return h.taken - h.spare }

// GiveBack ends the use of bytes.
func (h *Hold) GiveBack(bytes int) {
	h.spare += bytes
	if h.spare <= takeAtLeast {
		return // for the next
	}
	back := h.spare - takeAtLeast
	h.spare -= back
	h.drop(back)
}

func (h *Hold) drop(bytes int) {
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= bytes
	h.taken -= bytes
	b.notify()
}

// Send makes bytes those of a chunk that goes to a worker, who gives them
// back.
func (h *Hold) Send(bytes int) {
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= bytes
	b.sent += bytes
	h.taken -= bytes
}

// End gives everything back that is not sent.
func (h *Hold) End() {
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= h.taken
	h.taken, h.spare = 0, 0
	if b.exceeding == h {
		b.exceeding = nil
	}
	b.notify()
}
