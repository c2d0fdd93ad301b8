package handler

import (
	"errors"
	"fmt"
	"time"
)

// Option adjusts one handler.
type Option func(*settings)

// settings are what options set; zero fields mean the inbox's.
type settings struct {
	legacyKeys  []string
	timeout     time.Duration
	codec       any
	txGroup     int
	concurrency int
	maxRetries  *int
	backoff     func(errorCount int) time.Duration
	retention   time.Duration
	middleware  []Middleware
	breaker     *Breaker
	// idempotencyKey is a func(Message[T]) (string, error).
	idempotencyKey any
	ordering
}

// maxTxGroup bounds the locks one transaction gathers.
const maxTxGroup = 1_000

// problems lists what is out of range or does not go together.
func (s *settings) problems(kind Kind) []error {
	var problems []error
	if s.timeout < 0 {
		problems = append(problems, fmt.Errorf("option Timeout = %s: must be 0 or more", s.timeout))
	}
	if s.concurrency < 0 {
		problems = append(problems, fmt.Errorf("option Concurrency = %d: must be 0 (no limit of its own) or more",
			s.concurrency))
	}
	if s.maxRetries != nil && *s.maxRetries < 0 {
		problems = append(problems, fmt.Errorf("option MaxRetries = %d: must be 0 or more", *s.maxRetries))
	}
	if s.retention < 0 {
		problems = append(problems, fmt.Errorf("option Retention = %s: must be 0 (the inbox's) or more", s.retention))
	}
	switch {
	case s.txGroup < 0 || s.txGroup > maxTxGroup:
		problems = append(problems, fmt.Errorf("option TxGroup = %d: must be 1 to %d", s.txGroup, maxTxGroup))
	case s.txGroup > 1 && kind != Transactional:
		problems = append(problems, errors.New("TxGroup needs a transactional handler"))
	}
	if s.breaker != nil {
		problems = append(problems, s.breaker.problems()...)
	}
	for i, m := range s.middleware {
		if m == nil {
			problems = append(problems, fmt.Errorf("middleware %d is nil", i+1))
		}
	}
	return append(problems, s.ordering.problems()...)
}

// LegacyKeys names the keys a handler had before it was renamed, the newest first and the oldest last, so that it still
// runs their statuses (contract 4.2). A legacy key should be kept for as long as Retention; an ordered handler's lanes
// go by the oldest, which must stay until nothing accepted under it is pending (contract 5.12). Do not use it to merge
// two handlers that both still run: one of their statuses would be superseded. Messages for a handler with legacy keys
// are not dispatched locally, because a claim has to search for a row under the other keys (contract 5.17): drop them
// when their time is over.
func LegacyKeys(keys ...string) Option {
	return func(s *settings) { s.legacyKeys = append(s.legacyKeys, keys...) }
}

// Timeout limits each attempt of this handler instead of the inbox's HandlerTimeout; zero keeps the inbox's. One call
// of a batch handler is one attempt. Do not set it for handlers that ignore their context: it cannot stop them, only
// report them (contract 5.4).
func Timeout(d time.Duration) Option { return func(s *settings) { s.timeout = d } }

// Timeout is the handler's own time limit per attempt; zero means the inbox's HandlerTimeout.
func (h *Handler) Timeout() time.Duration { return h.timeout }

// WithCodec decodes bodies with codec, which must be a Codec of the handler's payload type, instead of JSON (or raw
// bytes for []byte). Not needed for JSON.
func WithCodec(codec any) Option { return func(s *settings) { s.codec = codec } }

// TxGroup lets up to n messages of a transactional handler share one transaction and its commit, which costs most of a
// short one's time. Each still has its own call, timeout, result and savepoint; a timeout, a cancellation or a lost
// connection repeats all of them alone, uncharged (contract 5.11). Locks that one takes are held until the last has
// run: do not use it for slow handlers, or where two handlers lock the same rows in different order. Do not use it for
// handlers that set something for their transaction (SET LOCAL) either: they run alone, and some of them twice.
func TxGroup(n int) Option { return func(s *settings) { s.txGroup = n } }

// TxGroup is how many messages share a transaction at most; 1 without.
func (h *Handler) TxGroup() int { return max(h.txGroup, 1) }

// Concurrency limits how many calls of this handler run at once in each worker; 0, the default, is no limit but the
// inbox's Concurrency. Do not use it to keep messages in order: see Ordered (contract 5.13).
func Concurrency(n int) Option { return func(s *settings) { s.concurrency = n } }

// Concurrency is the handler's own limit of calls at once; 0 is none.
func (h *Handler) Concurrency() int { return h.concurrency }

// MaxRetries is the error count at which this handler's statuses are poisoned, instead of the inbox's MaxRetries; 0 and
// 1 poison on the first failure. Do not raise it to outlast long outages: use CircuitBreaker (contract 5.13).
func MaxRetries(n int) Option { return func(s *settings) { s.maxRetries = &n } }

// MaxRetries is the handler's own limit; ok is false if it has none.
func (h *Handler) MaxRetries() (n int, ok bool) {
	if h.maxRetries == nil {
		return 0, false
	}
	return *h.maxRetries, true
}

// Backoff replaces the exponential backoff of this handler: delay returns the wait after a failure, given the error
// count with it (1 after the first). MaxRetryDelay does not cap it; a negative wait counts as none. delay is called
// concurrently and must not panic; a panic falls back to the inbox's. Do not return a constant: messages that failed
// together would come back together (contract 5.6).
func Backoff(delay func(errorCount int) time.Duration) Option {
	return func(s *settings) { s.backoff = delay }
}

// Backoff is the handler's own backoff; nil means the inbox's.
func (h *Handler) Backoff() func(errorCount int) time.Duration { return h.backoff }

// Retention is how long this handler's completed statuses are kept instead of the inbox's Retention; 0 means the
// inbox's. It is also how far back a redelivery is recognised: do not set it below the longest time after which a
// message may come again (contract 6.2). In an Inline channel it is how long it is remembered that a message was
// processed; without it, for the store's retention, which is 24 h in the inbox's table (contract 8.4).
func Retention(d time.Duration) Option { return func(s *settings) { s.retention = d } }

// Retention is the handler's own retention; zero means the inbox's.
func (h *Handler) Retention() time.Duration { return h.retention }
