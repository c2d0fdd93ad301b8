// Package memstore remembers processed keys in the memory of the process. It is for tests, and for handlers that may
// repeat messages after a restart.
package memstore

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/settings"
)

// Options configure a Store. Start from DefaultOptions: zero values are values.
type Options struct {
	// MaxKeys bounds the keys that are remembered or being handled; see Store for what happens at the bound. Do not set
	// it below the number of messages within the longest retention: messages would be refused until the first have
	// expired. Default 100,000, which takes 18.5 MB when full of UUIDs of one handler (heap in use after a collection,
	// Go 1.26 on amd64: go test -run '^$' -bench FullStore -benchtime 1x ./idempotent/memstore).
	MaxKeys int `yaml:"max_keys" env:"MAX_KEYS"`
	// WaitTimeout is how long a call waits for another one of its key before it returns idempotent.ErrInProgress; 0
	// does not wait. Do not set it above the time the transport gives a message, nor to 0 where it redelivers at once.
	// Default 10 s.
	WaitTimeout time.Duration `yaml:"wait_timeout" env:"WAIT_TIMEOUT"`
	// Clock replaces the system clock by which retention is judged, for tests. Do not use it to shift time in
	// production. WaitTimeout goes by real time. Default nil, the system's.
	Clock idempotent.Clock `yaml:"-" env:"-"`
}

// DefaultOptions returns the defaults.
func DefaultOptions() Options { return Options{MaxKeys: 100_000, WaitTimeout: 10 * time.Second} }

// Validate reports every option that is out of range, joined, each by name with its value and what is allowed.
func (o Options) Validate() error {
	if o.MaxKeys == 0 && o.WaitTimeout == 0 {
		return errors.New("options are zero: start from memstore.DefaultOptions()")
	}
	var problems []error
	if o.MaxKeys < 1 {
		problems = append(problems, fmt.Errorf("option MaxKeys = %d: must be 1 or more", o.MaxKeys))
	}
	if o.WaitTimeout < 0 {
		problems = append(problems, fmt.Errorf("option WaitTimeout = %s: must be 0 (do not wait) or more", o.WaitTimeout))
	}
	return errors.Join(problems...)
}

// ErrFull says that the store remembers or handles as many keys as MaxKeys allows and none of them has expired. The
// body was not called; the message must not be acknowledged.
var ErrFull = errors.New("the memory store is full")

// Store is an idempotent.Store in memory (contract 8.2). Do not use it if several processes handle the same messages,
// or if a message that was handled before a restart must not run again: it knows no other processes or earlier runs.
//
// A call for a key that is being handled waits for that call, within its context and WaitTimeout. A run with legacy
// keys remembers, and needs room for, each of its keys. The store is bounded by MaxKeys, and never forgets a key before
// its retention is over. When it is full it forgets as many expired keys as it needs room for, the longest expired
// first; if there are none it returns ErrFull. A body that succeeds after its context has ended is remembered, because
// its effects have happened.
type Store struct {
	opts Options

	mu      sync.Mutex
	running map[idempotent.Key]chan struct{} // closed when the call has ended
	markers map[idempotent.Key]*marker
	expiry  expiry // the same markers as a heap, the one that expires first in front
}

var _ idempotent.Store = (*Store)(nil)

// New returns a Store; each function of configure may change the options, which start as DefaultOptions. The error
// joins all options that are out of range.
func New(configure ...func(o *Options)) (*Store, error) {
	s := &Store{opts: settings.With(DefaultOptions(), configure),
		running: map[idempotent.Key]chan struct{}{}, markers: map[idempotent.Key]*marker{}}
	if err := s.opts.Validate(); err != nil {
		return nil, fmt.Errorf("memory store: %w", err)
	}
	if s.opts.Clock == nil {
		s.opts.Clock = clock.System{}
	}
	return s, nil
}

// Run calls body unless one of the run's keys has been processed, see idempotent.Store. It returns ErrFull if there is
// no room to remember the keys.
func (s *Store) Run(
	ctx context.Context, run idempotent.Run, body func(ctx context.Context) error,
) (duplicate bool, err error) {
	ended, duplicate, err := s.claim(ctx, run)
	if duplicate || err != nil {
		return duplicate, err
	}
	succeeded := false
	// Also if body panics or ends its goroutine.
	defer func() { s.end(run, ended, succeeded) }()
	err = body(ctx)
	succeeded = err == nil
	return false, err
}

// claim waits until the run's keys are the caller's to handle, or one has been processed.
func (s *Store) claim(ctx context.Context, run idempotent.Run) (ended chan struct{}, duplicate bool, err error) {
	fail := func(err error) (chan struct{}, bool, error) {
		return nil, false, fmt.Errorf("message %q, handler %q: %w", run.Key.MessageID, run.Key.HandlerKey, err)
	}
	keys := run.Keys()
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	var timeout <-chan time.Time // for all waits together: others may get a key first several times
	for {
		ended, other, duplicate, err := s.reserve(keys)
		switch {
		case err != nil:
			return fail(err)
		case other == nil:
			return ended, duplicate, nil
		case s.opts.WaitTimeout == 0:
			return fail(idempotent.ErrInProgress)
		}
		if timeout == nil {
			timeout = time.After(s.opts.WaitTimeout)
		}
		select {
		case <-other:
		case <-timeout:
			return fail(fmt.Errorf("%w: still so after WaitTimeout of %s", idempotent.ErrInProgress, s.opts.WaitTimeout))
		case <-ctx.Done():
			return fail(fmt.Errorf("%w: %w", idempotent.ErrInProgress, ctx.Err()))
		}
		// If the other call and the context end at the same time, the select may choose either.
		if err := ctx.Err(); err != nil {
			return fail(err)
		}
	}
}

// reserve claims the keys if all are free. Otherwise other is closed at the end of the call to wait for.
func (s *Store) reserve(keys []idempotent.Key) (ended, other chan struct{}, duplicate bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		if s.markers[key] != nil {
			return nil, nil, true, nil
		}
	}
	for _, key := range keys {
		if other = s.running[key]; other != nil {
			return nil, other, false, nil
		}
	}
	// The keys' places are reserved from here on, so that success can be remembered.
	if !s.makeRoom(len(keys)) {
		return nil, nil, false, fmt.Errorf("%w: option MaxKeys is %d and none of its keys has expired", ErrFull,
			s.opts.MaxKeys)
	}
	ended = make(chan struct{})
	for _, key := range keys {
		s.running[key] = ended
	}
	return ended, nil, false, nil
}

// end frees the run's keys, remembers them if its body has succeeded, and wakes the calls that wait for them.
func (s *Store) end(run idempotent.Run, ended chan struct{}, succeeded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range run.Keys() {
		delete(s.running, key)
		if succeeded {
			s.remember(key, run.Retention)
		}
	}
	close(ended)
}

// Processed reports whether the key has been processed.
func (s *Store) Processed(ctx context.Context, key idempotent.Key) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("message %q, handler %q: %w", key.MessageID, key.HandlerKey, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.markers[key] != nil, nil
}

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

// remember adds a marker for the key. Its callers, and those of makeRoom and forget, hold s.mu.
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
