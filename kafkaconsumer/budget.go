package kafkaconsumer

import (
	"context"
	"sync"
)

// budget bounds the bytes that are fetched and not yet accepted. It may be
// exceeded by what is on its way when it runs out: how much a response holds
// is known only once it is decompressed.
type budget struct {
	limit int

	mu   sync.Mutex
	used int
	free chan struct{} // closed when used falls below limit
}

func newBudget(limit int) *budget { return &budget{limit: limit, free: make(chan struct{})} }

// wait returns when there is something left, or false when ctx ends first.
func (b *budget) wait(ctx context.Context) bool {
	for {
		b.mu.Lock()
		if b.used < b.limit {
			b.mu.Unlock()
			return ctx.Err() == nil
		}
		free := b.free
		b.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
			return false
		}
	}
}

// add takes bytes, or gives them back if negative.
func (b *budget) add(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	full := b.used >= b.limit
	b.used += bytes
	if full && b.used < b.limit {
		close(b.free)
		b.free = make(chan struct{})
	}
}

func (b *budget) bytes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
