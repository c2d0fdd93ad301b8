package kafkaconsumer

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/gorm-inbox/inbox/internal/routine"
)

// backoff computes a growing pause between tries. Its zero value is unusable.
type backoff struct {
	first, most time.Duration
	tries       int
}

// wait pauses for half to all of the current delay and doubles the delay for the next call. It
// reports false at once when ctx ends.
func (b *backoff) wait(ctx context.Context) bool {
	delay := b.most
	if b.tries < 20 {
		delay = min(b.first<<b.tries, b.most)
	}
	b.tries++
	return routine.Sleep(ctx, delay/2+rand.N(delay/2+1))
}

func (b *backoff) reset() { b.tries = 0 }
