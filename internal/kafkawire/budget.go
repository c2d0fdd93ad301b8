package kafkawire

import (
	"context"
	"sync"
)

// Budget bounds the bytes that are fetched and not yet accepted, over all partitions. Fetchers take bytes before they
// take memory: for a response as it arrives, for a batch as it is decompressed, and for records as they are copied out.
// The size of a decompressed batch is known only then, and a batch larger than the whole budget must pass too. So one
// fetcher at a time may exceed the budget.
//
// No fetcher waits indefinitely. Workers return bytes as chunks are accepted, independent of fetchers. When workers
// have less than the limit, one of the waiting fetchers continues, even if all the rest is held by fetchers that wait
// in the middle of a response.
type Budget struct {
	limit int

	mu         sync.Mutex
	sent, held int           // bytes in chunks that workers have, and those that fetchers still have
	exceeding  *Hold         // the one fetcher that may take more than is left
	changed    chan struct{} // closed when something is given back
}

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int) *Budget { return &Budget{limit: limit, changed: make(chan struct{})} }

// Wait waits until something is left. It returns false if ctx ends first.
func (b *Budget) Wait(ctx context.Context) bool {
	return b.await(ctx, func() bool { return b.sent+b.held < b.limit })
}

// await waits until condition holds. It calls condition with the lock held.
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

// notify wakes the waiting fetchers. The caller holds the lock.
func (b *Budget) notify() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Bytes returns all that is taken.
func (b *Budget) Bytes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sent + b.held
}

// Hold is one fetcher's part of the budget while it works on a response.
type Hold struct {
	budget *Budget
	taken  int
	spare  int // taken and not used yet: records are smaller than what is taken at a time
}

// NewHold returns a Hold that holds nothing yet.
func (b *Budget) NewHold() *Hold { return &Hold{budget: b} }

// takeAtLeast is the smallest amount to take, so that not each record needs the lock.
const takeAtLeast = 64 << 10

// Take waits until it may take bytes. It reports false if ctx ends first.
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

// bytes returns how many bytes are in use.
func (h *Hold) bytes() int { return h.taken - h.spare }

// GiveBack ends the use of bytes.
func (h *Hold) GiveBack(bytes int) {
	h.spare += bytes
	if h.spare <= takeAtLeast {
		return // for the next record
	}
	back := h.spare - takeAtLeast
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= back
	h.taken -= back
	h.spare = takeAtLeast
	b.notify()
}

// Send transfers bytes to a chunk for a worker. Releasing the chunk gives them back.
func (h *Hold) Send(bytes int) {
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= bytes
	b.sent += bytes
	h.taken -= bytes
}

// End gives back everything that was not sent.
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
