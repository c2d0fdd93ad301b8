package handlertx

import (
	"container/list"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"weak"

	"gorm.io/gorm"
)

// Reserved is how many connections of a pool handlers' transactions leave to everything else, such as accepting,
// claiming, storing results and heartbeats. Of a pool of fewer than twice as many they leave half.
const Reserved = 4

// ErrInterrupted means that the context ended before a connection was free for the transaction.
var ErrInterrupted = errors.New("interrupted while waiting for a connection")

// quota hands out the connections of one pool to handlers' transactions, in the order in which they ask. All inboxes
// and delivery modes that use the pool share it.
type quota struct {
	limit func(reserved bool) int // reads the pool's present size

	mu       sync.Mutex
	reserved bool // an inbox uses the pool
	taken    int
	waiting  list.List // of channels, closed when the connection is granted
}

// quotas are the quotas of the pools in use, by weak.Pointer[sql.DB].
var quotas sync.Map

// quotaOf returns the quota of the pool that db uses, nil if the pool is unknown.
func quotaOf(db *gorm.DB) *quota {
	pool, err := db.DB()
	if err != nil || pool == nil {
		return nil
	}
	key := weak.Make(pool)
	if q, known := quotas.Load(key); known {
		return q.(*quota)
	}
	q, known := quotas.LoadOrStore(key, &quota{limit: func(reserved bool) int {
		if pool := key.Value(); pool != nil {
			return shareOf(pool, reserved)
		}
		return math.MaxInt
	}})
	if !known {
		runtime.AddCleanup(pool, func(key weak.Pointer[sql.DB]) { quotas.Delete(key) }, key)
	}
	return q.(*quota)
}

// Reserve has handlers' transactions leave connections of a pool to the inbox that uses it, for as long as the pool
// lives. Without an inbox they may hold all connections: no heartbeat or claim has to go on beside them.
func Reserve(db *gorm.DB) {
	if q := quotaOf(db); q != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.reserved = true
	}
}

// hasFree reports whether one more transaction may begin. The caller holds the lock.
func (q *quota) hasFree() bool { return q.taken < q.limit(q.reserved) }

// shareOf returns how many connections of a pool handlers' transactions may hold.
func shareOf(pool *sql.DB, reserved bool) int {
	size := pool.Stats().MaxOpenConnections
	switch {
	case size == 0:
		return math.MaxInt
	case !reserved:
		return size
	}
	return size - min(Reserved, size/2)
}

// take waits for a connection until ctx ends. The caller must call release once.
func (q *quota) take(ctx context.Context) (release func(), err error) {
	if q == nil {
		return func() {}, nil
	}
	q.mu.Lock()
	if q.waiting.Len() == 0 && q.hasFree() {
		q.taken++
		q.mu.Unlock()
		return q.release, nil
	}
	granted := make(chan struct{})
	place := q.waiting.PushBack(granted)
	q.grant() // the pool may have grown
	q.mu.Unlock()
	select {
	case <-granted:
		return q.release, nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-granted:
		q.taken--
	default:
		q.waiting.Remove(place)
	}
	q.grant()
	return nil, fmt.Errorf("%w: %w", ErrInterrupted, context.Cause(ctx))
}

func (q *quota) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken--
	q.grant()
}

// grant gives the free connections to the calls that have waited longest.
func (q *quota) grant() {
	for q.waiting.Len() > 0 && q.hasFree() {
		q.taken++
		close(q.waiting.Remove(q.waiting.Front()).(chan struct{}))
	}
}
