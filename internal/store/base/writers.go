package base

import (
	"context"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
)

// writers has a slot for one writer of this store, on SQLite, whose file has one writer at a time.
// SQLite does not queue those that wait: each polls, with pauses of up to 100 ms, while a write takes
// a few milliseconds. In a queue the next one begins at once, on the connection that was used last,
// whose page cache is still valid. On PostgreSQL writers is nil, and no one waits.
type writers chan struct{}

// writerPatience bounds the wait for the slot. After it SQLite's lock alone decides, as it does among
// processes. A writer that waits for another transaction, such as a handler's, until busy_timeout ends
// must not add its wait to that of those behind it.
const writerPatience = 100 * time.Millisecond

// enter waits for the slot. The caller must call leave after its transaction or statement has ended.
func (w writers) enter(ctx context.Context) (leave func()) {
	if w == nil {
		return func() {}
	}
	end := time.NewTimer(writerPatience)
	defer end.Stop()
	select {
	case w <- struct{}{}:
		return func() { <-w }
	case <-end.C:
	case <-ctx.Done():
	}
	return func() {}
}

// Writer is Pool for statements that write.
func (d Database) Writer(ctx context.Context) gorm.ConnPool {
	return queued{ConnPool: d.Pool(ctx), writers: d.writers}
}

// queued is a pool whose statements wait for the writers' slot.
type queued struct {
	gorm.ConnPool
	writers writers
}

// RunAlone implements what store.RunAlone asks a pool for.
func (q queued) RunAlone(ctx context.Context, statement func(gorm.ConnPool) error) error {
	defer q.writers.enter(ctx)()
	return store.RunAlone(ctx, q.ConnPool, statement)
}
