package handler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// Option adjusts one handler.
type Option func(*settings)

// settings are what options set; zero fields mean the inbox's.
type settings struct {
	legacyKeys     []string
	timeout        time.Duration
	codec          any
	txGroup        int
	concurrency    int
	fleet          int
	rate           rate
	maxRetries     *int
	backoff        func(errorCount int) time.Duration
	retention      time.Duration
	middleware     []Middleware
	breaker        *Breaker
	idempotencyKey any // a func(Message[T]) (string, error)
	notBefore      func(m RawMessage) time.Time
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
	if s.fleet < 0 {
		problems = append(problems, fmt.Errorf("option FleetConcurrency = %d: must be 0 (no such limit) or more", s.fleet))
	}
	problems = append(problems, s.rate.problems()...)
	if s.rate.set && s.txGroup > 1 {
		problems = append(problems, errors.New("Rate spaces calls: TxGroup makes several at once"))
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

// FleetConcurrency limits how many calls of this handler run at once in all workers of the inbox together, and in its
// ProcessPending calls; 0, the default, is no such limit. One call of a batch handler, and a group that shares a
// transaction (TxGroup), counts as one. The limit is divided among the workers that live: with fewer than one call for
// each, some of them run none. Concurrency may limit each worker further.
//
// While workers come and go, fewer calls may run, for WorkerTimeout and two sweeps at most. More may run only while a
// call of a worker that counts as dead goes on: it was frozen, or ignores its cancelled context. The limit holds once
// all workers have the option; while a deploy changes it, up to the sum of both counts.
//
// Do not use it for order, see Ordered, nor for a limit of one worker, see Concurrency. Do not use it on an Inline or
// Direct channel, where it is an error at start. (Contract 5.18.)
func FleetConcurrency(n int) Option { return func(s *settings) { s.fleet = n } }

// FleetConcurrency returns the handler's limit of calls at once in all workers; 0 is none.
func (h *Handler) FleetConcurrency() int { return h.fleet }

// rate holds what Rate and RateBy set.
type rate struct {
	set       bool
	perSecond float64
	burst     int
	keyed     bool // RateBy was used
	key       func(m RawMessage) string
}

func (r *rate) problems() (problems []error) {
	if r.set && (!(r.perSecond > 0) || math.IsInf(r.perSecond, 0)) {
		problems = append(problems, fmt.Errorf("option Rate = %g calls a second: must be a number above 0", r.perSecond))
	}
	if r.set && r.burst < 1 {
		problems = append(problems, fmt.Errorf("option Rate with a burst of %d: must be 1 or more", r.burst))
	}
	if r.keyed && r.key == nil {
		problems = append(problems, errors.New("RateBy's function is nil"))
	}
	return problems
}

// Rate limits how many calls of this handler start in all workers of the inbox together, and in its ProcessPending
// calls: in any period no more than perSecond for each second, and burst. A call counts when it gets its slot, and one
// call of a batch handler as one. Repeats count, except those that follow a deadlock at once. Messages beyond the rate
// stay due: they are not claimed, or for about 100 ms, and neither charged nor in a slot.
//
// The rate is divided into as many parts as burst allows, up to 32, and each worker runs at the rate of its parts. So
// with a burst of 1 one worker runs all calls. Each part begins empty: the first call of a worker waits. Rate is
// measured in real time, and reaches 1,000 times burst at most.
//
// Do not use it to limit what runs at once, see FleetConcurrency. Do not use it with TxGroup, nor on an Inline or
// Direct channel, where it is an error at start. (Contract 5.18.)
func Rate(perSecond float64, burst int) Option {
	return func(s *settings) { s.rate = rate{set: true, perSecond: perSecond, burst: burst} }
}

// RateBy is Rate for each key, such as a partner or a tenant, that is computed from the message; messages whose key is
// empty have no limit. Each message of a batch counts. Messages beyond a key's rate are released, uncharged, and due
// when their call may start, so that those of other keys come first, however many there are.
//
// key is called concurrently, when a message is claimed, and must return the same key for the same message. Messages
// for which it panics share one key. A worker remembers a key until the rate has given it a full burst again.
//
// Do not take the key from a content that is sealed: key gets such messages without Content. Their type, source,
// headers, attributes and ordering key are there.
//
// Do not decode large bodies in key. Do not use it with TxGroup, nor on an Inline or Direct channel, where it is an
// error at start. (Contract 5.18.)
func RateBy(perSecond float64, burst int, key func(m RawMessage) string) Option {
	return func(s *settings) {
		s.rate = rate{set: true, perSecond: perSecond, burst: burst, keyed: true, key: key}
	}
}

// Rate returns the handler's rate and burst; both are 0 without.
func (h *Handler) Rate() (perSecond float64, burst int) { return h.rate.perSecond, h.rate.burst }

// RateKey returns the function that names the key of a message for its rate; nil if the rate is not by key.
func (h *Handler) RateKey() func(m RawMessage) string { return h.rate.key }

// MaxRetries is the error count at which this handler's statuses are poisoned, instead of the inbox's MaxRetries; 0 and
// 1 poison on the first failure. Do not raise it for outages of hours: use CircuitBreaker, which needs an Inbox channel
// (contract 5.13).
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

// NotBefore sets the time before which this handler does not run a message; the zero time is none. If the message has a
// time as well (RawMessage.NotBefore), the later of both holds. at is called concurrently, when the message is accepted
// and when it is backfilled, and a panic makes the message invalid. An ordered handler's lane waits for the message.
//
// Do not use it to delay retries, which Backoff does. Do not use it on an Inline or Direct channel, where it is an
// error at start. (Contract 4.8.)
func NotBefore(at func(m RawMessage) time.Time) Option { return func(s *settings) { s.notBefore = at } }

// NotBefore returns the handler's own function for the time before which it does not run a message; nil if it has none.
func (h *Handler) NotBefore() func(m RawMessage) time.Time { return h.notBefore }

// ordering holds what Ordered, OrderedBy and SkipPoisoned set.
type ordering struct {
	ordered      bool
	orderedBy    func(m RawMessage) []byte
	ownKey       bool // OrderedBy was used
	skipPoisoned bool
}

func (o *ordering) problems() []error {
	if o.ownKey && o.orderedBy == nil {
		return []error{errors.New("OrderedBy's function is nil")}
	}
	if o.skipPoisoned && !o.ordered {
		return []error{errors.New("SkipPoisoned needs Ordered or OrderedBy")}
	}
	return nil
}

// Ordered runs this handler's messages with the same ordering key one after the other, in the order of their
// acceptance, also across workers, retries and restarts: they form a lane. The ordering key is the Kafka key, or
// RawMessage.OrderingKey. Messages without one have no lane and no order. Accepts that run concurrently, in different
// transactions, have no order among each other.
//
// A message that fails or snoozes blocks its lane until it succeeds. A poisoned one blocks its lane until an operator
// retries or discards it, unless SkipPoisoned is set. Ordered takes effect once every worker runs it, for messages
// accepted from then on.
//
// Do not use it where order does not matter. A lane is no faster than one message after the other, and one bad message
// can stop it. Messages of an ordered handler are never dispatched locally, because a claim has to judge their lane.
// (Contract 5.12, 5.17.)
func Ordered() Option { return func(s *settings) { s.ordered = true } }

// OrderedBy is Ordered with an ordering key that is computed from the message when it is accepted; nil means that the
// message has no lane. key is called concurrently, once per accepted message, and must return the same key for the same
// message. If it panics the message is invalid. Do not decode large bodies in it: accepting waits for it.
func OrderedBy(key func(m RawMessage) []byte) Option {
	return func(s *settings) { s.ordered, s.ownKey, s.orderedBy = true, true, key }
}

// SkipPoisoned lets a lane continue when one of its messages is poisoned. If an operator retries that message it runs
// next in its lane, after later ones. Do not use it where a message builds on earlier ones.
func SkipPoisoned() Option { return func(s *settings) { s.skipPoisoned = true } }

// Ordered reports whether the handler's messages run in lanes.
func (h *Handler) Ordered() bool { return h.ordered }

// SkipsPoisoned reports whether a lane continues past a poisoned message.
func (h *Handler) SkipsPoisoned() bool { return h.skipPoisoned }

// OrderingKey returns the key of a message's lane; nil if the handler is not ordered or the message has no key.
func (h *Handler) OrderingKey(m RawMessage) []byte {
	switch {
	case !h.ordered:
		return nil
	case h.orderedBy != nil:
		return h.orderedBy(m)
	default:
		return m.OrderingKey
	}
}

// LaneKey returns the handler key that names the handler's lanes: its oldest one. So programs from before and after a
// rename use the same lanes while both run.
func (h *Handler) LaneKey() string {
	keys := h.Keys()
	return keys[len(keys)-1]
}

// Breaker configures a circuit breaker.
type Breaker struct {
	// Failures is how many attempts must fail in a row to open the breaker; at least 1. One call of a batch handler is
	// one attempt, which failed if none of its messages was completed.
	Failures int
	// OpenFor is how long the breaker stays open before one message is tried as a probe; more than
	// 0. It is measured in real time.
	OpenFor time.Duration
}

func (b *Breaker) problems() []error {
	var problems []error
	if b.Failures < 1 {
		problems = append(problems, fmt.Errorf("option CircuitBreaker.Failures = %d: must be 1 or more", b.Failures))
	}
	if b.OpenFor <= 0 {
		problems = append(problems, fmt.Errorf("option CircuitBreaker.OpenFor = %s: must be more than 0", b.OpenFor))
	}
	return problems
}

// CircuitBreaker stops a worker from trying this handler after b.Failures failed attempts in a row, for b.OpenFor; then
// it tries one message at a time until one succeeds. While the breaker is open nothing is claimed and nothing is
// charged. Snoozed, interrupted and undecodable messages do not count. Do not use it for failures that lie in the
// message: a few bad messages in a row would delay the good ones. Do not use it on an Inline or Direct channel, where
// it is an error at start. (Contract 5.13, 7.6.)
func CircuitBreaker(b Breaker) Option { return func(s *settings) { s.breaker = &b } }

// CircuitBreaker returns the handler's breaker; ok is false if it has none.
func (h *Handler) CircuitBreaker() (b Breaker, ok bool) {
	if h.breaker == nil {
		return Breaker{}, false
	}
	return *h.breaker, true
}

// IdempotencyKey computes the message ID by which an Inline channel remembers this handler's messages from the message
// itself, typically from a field of its payload. T is the handler's payload type. If find returns an empty string the
// channel's strategy decides (contract 4.4). Any other result that is not a valid ID, and any error, makes the record
// bad; so does a body that cannot be decoded, unless its codec asks for a retry of the attempt.
//
// find is called concurrently, before each attempt, and must return the same ID each time the message is delivered. The
// handler still sees the message's own ID; a message without one gets this ID.
//
// It cannot hold in Inbox and Direct mode. Do not use it for values that other messages share, such as the ID of the
// entity a message is about: all messages but the first would count as duplicates. Do not use it if a header has the
// same value either: the body is decoded once more for it.
func IdempotencyKey[T any](find func(m Message[T]) (string, error)) Option {
	return func(s *settings) { s.idempotencyKey = find }
}

// IdempotencyKey returns the function that finds the message ID in a delivery; nil if the handler sets none.
func (h *Handler) IdempotencyKey() func(d Delivery) (string, error) { return h.findKey }

// idempotencyKey checks the type of the option's function and makes it decode the body first.
func idempotencyKey[T any](h *Handler, codec Codec[T]) error {
	if h.idempotencyKey == nil {
		return nil
	}
	find, ok := h.idempotencyKey.(func(Message[T]) (string, error))
	if !ok {
		return fmt.Errorf("its IdempotencyKey is a %T: must be a %T", h.idempotencyKey, find)
	}
	if find == nil {
		return fmt.Errorf("its IdempotencyKey is nil: must be a %T", find)
	}
	h.findKey = func(d Delivery) (string, error) {
		d.Content = bytes.Clone(d.Content) // find must not change the handler's body
		m, err := decode(h.key, codec, d)
		if err != nil {
			return "", err
		}
		return find(m)
	}
	return nil
}

// Middleware runs around a handler's calls: logging, tracing, tenancy, limits. It calls next at most once, with ctx or
// a context derived from it, and returns next's error or one of its own. If it returns nil without calling next, the
// messages are completed unhandled. For a batch handler it runs once per call, and next may return a *BatchError. It
// runs inside the attempt: its time counts towards the timeout, and its panic is the attempt's failure. It must be safe
// for concurrent use. (Contract 5.13.)
type Middleware func(ctx context.Context, call Call, next func(context.Context) error) error

// Call describes the call that a middleware runs around.
type Call struct {
	// HandlerKey is the handler's primary key.
	HandlerKey string
	Kind       Kind
	// Messages are the messages of the call: one, unless it is a batch handler's. Do not change them.
	Messages []Metadata
}

// Use runs middleware around this handler, the first outermost, inside the inbox's middleware. Do not use it for
// effects that must happen exactly once: it runs at every attempt.
func Use(middleware ...Middleware) Option {
	return func(s *settings) { s.middleware = append(s.middleware, middleware...) }
}

// wrap returns run with the chains around it; the first middleware of the first chain is outermost.
func wrap(run func(context.Context) error, call Call, chains ...[]Middleware) func(context.Context) error {
	for c := len(chains) - 1; c >= 0; c-- {
		for i := len(chains[c]) - 1; i >= 0; i-- {
			around, next := chains[c][i], run
			run = func(ctx context.Context) error { return around(ctx, call, next) }
		}
	}
	return run
}
