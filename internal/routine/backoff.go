package routine

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is the pause between tries of a failing operation. It doubles from First to Max, and each pause is a random
// half to all of it, so that callers that failed together do not try again together. It is not safe for concurrent use.
type Backoff struct {
	First, Max time.Duration
	last       time.Duration // 0 before the first try
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	b.last = min(max(2*b.last, b.First), b.Max)
	return b.last/2 + rand.N(b.last/2+1)
}

// Wait sleeps for the next pause and returns true. It returns false as soon as ctx ends.
func (b *Backoff) Wait(ctx context.Context) bool { return Sleep(ctx, b.Next()) }

// Reset begins with First again, because a try has succeeded.
func (b *Backoff) Reset() { b.last = 0 }
