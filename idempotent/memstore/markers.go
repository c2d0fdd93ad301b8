package memstore

import (
	"container/heap"
	"context"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/idempotent"
)

// marker says that a key was processed.
type marker struct {
	key       idempotent.Key
	expiresAt time.Time
}

// expiry is a heap of markers, by when they expire.
type expiry []*marker

func (e expiry) Len() int           { return len(e) }
func (e expiry) Less(i, j int) bool { return e[i].expiresAt.Before(e[j].expiresAt) }
func (e expiry) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *expiry) Push(m any)        { *e = append(*e, m.(*marker)) }
func (e *expiry) Pop() any {
	old, last := *e, len(*e)-1
	m := old[last]
	old[last] = nil
	*e = old[:last]
	return m
}

// remember adds a marker for the key. Callers of the functions in this file, except Cleanup, forgetBatch and Len, hold
// s.mu.
func (s *Store) remember(key idempotent.Key, retention time.Duration) {
	if retention == 0 {
		retention = idempotent.DefaultRetention
	}
	m := &marker{key, s.opts.Clock.Now().Add(retention)}
	s.markers[key] = m
	heap.Push(&s.expiry, m)
}

// makeRoom makes room for n more keys and reports whether there is any. It forgets keys only if it must: an expired key
// counts as a duplicate as long as it is stored.
func (s *Store) makeRoom(n int) bool {
	for len(s.running)+len(s.markers)+n > s.opts.MaxKeys {
		if !s.forget(s.opts.Clock.Now()) {
			return false
		}
	}
	return true
}

// forget forgets the key that expires first, if it expired before the given time. It reports whether it did.
func (s *Store) forget(before time.Time) bool {
	if len(s.expiry) == 0 || !s.expiry[0].expiresAt.Before(before) {
		return false
	}
	delete(s.markers, heap.Pop(&s.expiry).(*marker).key)
	return true
}

// cleanupBatch is how many keys are forgotten at once, while other calls wait for the lock.
const cleanupBatch = 1_000

// Cleanup forgets keys whose retention ended before olderThan, and returns how many. If ctx ends before it is done, it
// returns the number so far with the error.
func (s *Store) Cleanup(ctx context.Context, olderThan time.Time) (forgotten int64, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return forgotten, fmt.Errorf("memory store: cleanup: %w", err)
		}
		n := s.forgetBatch(olderThan)
		forgotten += n
		if n < cleanupBatch {
			return forgotten, nil
		}
	}
}

func (s *Store) forgetBatch(before time.Time) (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n < cleanupBatch && s.forget(before) {
		n++
	}
	return n
}

// Len returns how many keys are remembered or being handled, to compare it with MaxKeys.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.running) + len(s.markers)
}
