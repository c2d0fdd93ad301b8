package handler

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"gorm.io/gorm"
)

// Kind says how a handler's attempt is run and completed (contract 5.11).
type Kind int

const (
	// Plain handlers run first and are completed afterwards, so their effects happen at least once.
	Plain Kind = iota
	// Transactional handlers run in the transaction that completes their status, so their writes to the inbox's
	// database happen exactly once.
	Transactional
)

// String returns "plain" or "transactional".
func (k Kind) String() string {
	if k == Transactional {
		return "transactional"
	}
	return "plain"
}

// Handler is one registered handler: a key and the function to run for it. Make one with New, NewTx, NewBatch or
// NewTxBatch. It is immutable and safe for concurrent use.
type Handler struct {
	key     string
	kind    Kind
	payload string
	batch   int  // how many messages one call takes at most; 0 for handlers of single messages
	runs    bool // a call may have several messages of one lane
	settings
	run     func(ctx context.Context, tx *gorm.DB, ds []Delivery) error
	findKey func(d Delivery) (string, error) // nil without IdempotencyKey
	err     error
}

// New makes a plain handler of fn. It runs first and its status is completed afterwards, so after a crash in between it
// runs again. fn must be safe for concurrent use. Err reports a missing key, an empty legacy key, a nil fn, a codec of
// another payload type or an option out of range; any of these fails the inbox's start.
func New[T any](key string, fn func(ctx context.Context, m Message[T]) error, opts ...Option) *Handler {
	h, codec := build[T](key, Plain, fn == nil, opts)
	h.run = func(ctx context.Context, _ *gorm.DB, ds []Delivery) error {
		m, err := decode(key, codec, ds[0])
		if err != nil {
			return err
		}
		return fn(ctx, m)
	}
	return h
}

// NewTx makes a transactional handler of fn. It runs in the transaction that completes its status, so its writes
// through tx happen exactly once. fn must neither commit nor roll back tx, and must not use it after it returns. Do not
// use it for handlers whose effects are elsewhere (calls to services): the transaction and its locks last as long as
// the handler.
func NewTx[T any](key string, fn func(ctx context.Context, tx *gorm.DB, m Message[T]) error, opts ...Option) *Handler {
	h, codec := build[T](key, Transactional, fn == nil, opts)
	h.run = func(ctx context.Context, tx *gorm.DB, ds []Delivery) error {
		m, err := decode(key, codec, ds[0])
		if err != nil {
			return err
		}
		return fn(ctx, tx, m)
	}
	return h
}

func build[T any](key string, kind Kind, missing bool, opts []Option) (*Handler, Codec[T]) {
	h := &Handler{key: key, kind: kind, payload: reflect.TypeFor[T]().String()}
	for _, o := range opts {
		if o != nil {
			o(&h.settings)
		}
	}
	problems := h.settings.problems(kind)
	if missing {
		problems = append(problems, errors.New("its function is nil"))
	}
	codec := defaultCodec[T]()
	if own, ok := h.codec.(Codec[T]); ok {
		codec = own
	} else if h.codec != nil {
		problems = append(problems, fmt.Errorf("its codec %T does not decode into %s", h.codec, h.payload))
	}
	problems = append(problems, idempotencyKey(h, codec))
	h.err = errors.Join(problems...)
	return h, codec
}

func decode[T any](key string, codec Codec[T], d Delivery) (Message[T], error) {
	payload, err := codec.Decode(d.Metadata, d.Content)
	if err != nil {
		return Message[T]{}, &DecodeError{HandlerKey: key, Err: err}
	}
	return Message[T]{Metadata: d.Metadata, Payload: payload}, nil
}

// Key returns the primary key.
func (h *Handler) Key() string { return h.key }

// LegacyKeys returns the keys that the handler had before.
func (h *Handler) LegacyKeys() []string { return h.legacyKeys }

// Keys returns the primary key followed by the legacy keys.
func (h *Handler) Keys() []string {
	return append([]string{h.key}, h.legacyKeys...)
}

// Kind returns how the handler is run.
func (h *Handler) Kind() Kind { return h.kind }

// Payload returns the name of the payload type, for messages to people.
func (h *Handler) Payload() string { return h.payload }

// Err returns what is wrong with the handler's declaration; nil if nothing is.
func (h *Handler) Err() error { return h.err }

// BatchSize returns how many messages one call takes at most: 1 unless the handler was made by NewBatch or NewTxBatch.
func (h *Handler) BatchSize() int { return max(h.batch, 1) }

// TakesBatches reports whether the handler was made by NewBatch or NewTxBatch.
func (h *Handler) TakesBatches() bool { return h.batch > 0 }

// Run decodes the bodies and makes one call, for one message or for up to BatchSize messages; tx is nil for plain
// handlers. Middleware outer runs around the handler's middleware, the first outermost. The results are in the order of
// ds. A panic of the handler, of a codec or of middleware is not recovered.
func (h *Handler) Run(ctx context.Context, tx *gorm.DB, outer []Middleware, ds ...Delivery) []error {
	if len(outer)+len(h.middleware) == 0 {
		return resultsOf(h.run(ctx, tx, ds), len(ds))
	}
	call := Call{HandlerKey: h.key, Kind: h.kind, Messages: make([]Metadata, len(ds))}
	for i, d := range ds {
		call.Messages[i] = d.Metadata
	}
	run := func(ctx context.Context) error { return h.run(ctx, tx, ds) }
	return resultsOf(wrap(run, call, outer, h.middleware)(ctx), len(ds))
}

type dbKey struct{}

// ContextWithDB returns a context that carries the database or transaction of an attempt, for DB. DB uses no scopes,
// conditions or settings of db. The processor calls it; applications need it only in tests of their handlers.
func ContextWithDB(ctx context.Context, db *gorm.DB) context.Context {
	return context.WithValue(ctx, dbKey{}, db)
}

// DB returns a new session on the inbox's database, bound to ctx; in a transactional handler the session is in its
// transaction. It returns nil outside of an attempt. Writes of a plain handler are not part of the completion: use a
// transactional handler for that. On an Inline channel that keeps its markers in the inbox's database a plain handler
// runs in a transaction, too.
func DB(ctx context.Context) *gorm.DB {
	db, _ := ctx.Value(dbKey{}).(*gorm.DB)
	if db == nil {
		return nil
	}
	return db.Session(&gorm.Session{NewDB: true, Context: ctx})
}

// NewBatch makes a plain handler that takes up to size messages in one call. It is for effects that are cheaper
// together: a bulk insert elsewhere, one request for many messages. A call gets the due messages: at least one, and
// never two of one lane.
//
// If all messages are done, fn returns nil; BatchResult returns one result per message. Any other error, a panic or a
// timeout fails every message, and failed messages are tried again alone. Messages whose body cannot be decoded fail by
// themselves. After a crash the whole call is repeated.
//
// Do not use it where messages have nothing to share: it only makes failures affect more messages. (Contract 5.11.)
func NewBatch[T any](
	key string, size int, fn func(ctx context.Context, batch []Message[T]) error, opts ...Option,
) *Handler {
	h, codec := buildBatch[T](key, Plain, size, fn == nil, opts)
	h.run = func(ctx context.Context, _ *gorm.DB, ds []Delivery) error {
		return runBatch(key, codec, ds, func(batch []Message[T]) error { return fn(ctx, batch) })
	}
	return h
}

// NewTxBatch makes a transactional handler that takes up to size messages in one call: its writes through tx happen
// exactly once. If some messages fail, everything is rolled back, they are charged, and the call is repeated at once
// with the others, uncharged: nothing that a failed message wrote is ever committed. If it is unknown which message is
// to blame (all have failed, a panic, a timeout, a swallowed SQL error, a refused commit), none is charged and each
// runs again alone. Otherwise it behaves like NewBatch and NewTx. (Contract 5.11.)
func NewTxBatch[T any](
	key string, size int, fn func(ctx context.Context, tx *gorm.DB, batch []Message[T]) error, opts ...Option,
) *Handler {
	h, codec := buildBatch[T](key, Transactional, size, fn == nil, opts)
	h.run = func(ctx context.Context, tx *gorm.DB, ds []Delivery) error {
		return runBatch(key, codec, ds, func(batch []Message[T]) error { return fn(ctx, tx, batch) })
	}
	return h
}

// NewOutgoing makes the handler of an outgoing channel: it publishes up to size messages in one call. It gets messages
// with their stored bodies. Several may have one ordering key: they come in the order of their acceptance. There is a
// result for each message, in their order, nil for those that are published. After a message that is not published, the
// results of later ones with its key do not count: they come again, in their order.
//
// Use inbox.Outgoing, which declares the channel with it. (Contract 14.)
func NewOutgoing(
	key string, size int, publish func(ctx context.Context, batch []Delivery) []error, opts ...Option,
) *Handler {
	h, _ := buildBatch[[]byte](key, Plain, size, publish == nil, opts)
	h.ordered, h.runs = true, true
	if h.ownKey {
		h.err = errors.Join(h.err, errors.New("OrderedBy is not for outgoing channels: inbox.Publishes gives the ordering key"))
	}
	h.run = func(ctx context.Context, _ *gorm.DB, ds []Delivery) error {
		results := publish(ctx, ds)
		if len(results) != len(ds) {
			return fmt.Errorf("publishing gave %d results for %d messages", len(results), len(ds))
		}
		return BatchResult(results...)
	}
	return h
}

// RunSize returns how many messages a call of an outgoing channel's handler may have, several of one lane among them;
// 0 for other handlers, whose calls never have two of one lane.
func (h *Handler) RunSize() int {
	if !h.runs {
		return 0
	}
	return h.batch
}

// maxBatch bounds the messages that one claim may load into memory for one call.
const maxBatch = 10_000

func buildBatch[T any](key string, kind Kind, size int, missing bool, opts []Option) (*Handler, Codec[T]) {
	h, codec := build[T](key, kind, missing, opts)
	h.batch = size
	if size < 1 || size > maxBatch {
		h.err = errors.Join(h.err, fmt.Errorf("its batch size is %d: must be 1 to %d", size, maxBatch))
	}
	if h.txGroup > 1 {
		h.err = errors.Join(h.err,
			errors.New("TxGroup is for handlers of single messages: a batch shares its transaction anyway"))
	}
	return h, codec
}

// runBatch decodes the bodies and calls fn with the messages that could be decoded.
func runBatch[T any](key string, codec Codec[T], ds []Delivery, fn func([]Message[T]) error) error {
	results := make([]error, len(ds))
	var batch []Message[T]
	var at []int
	for i, d := range ds {
		m, err := decode(key, codec, d)
		if err != nil {
			results[i] = err
			continue
		}
		batch, at = append(batch, m), append(at, i)
	}
	if len(batch) > 0 {
		for k, err := range resultsOf(fn(batch), len(batch)) {
			results[at[k]] = err
		}
	}
	return BatchResult(results...)
}

// BatchResult returns the result of a batch handler's call from one result per message, in their order, nil for those
// that are done. Each may be RetryAfter, Poison or Snooze, as for a single message. It returns nil if all are nil. If
// the number of results differs from the number of messages, all messages fail. (Contract 5.11.)
func BatchResult(results ...error) error {
	if cmp.Or(results...) == nil {
		return nil
	}
	return &BatchError{Results: results}
}

// BatchError is the error that BatchResult returns; find it with errors.As.
type BatchError struct {
	// Results are in the order of the messages; at least one is not nil.
	Results []error
}

// Error returns how many messages failed, and the first failure.
func (e *BatchError) Error() string {
	return fmt.Sprintf("%d of %d messages failed, the first: %v", len(e.Unwrap()), len(e.Results), cmp.Or(e.Results...))
}

// Unwrap returns the failures.
func (e *BatchError) Unwrap() (failures []error) {
	for _, err := range e.Results {
		if err != nil {
			failures = append(failures, err)
		}
	}
	return failures
}

// resultsOf returns the result of each of n messages, given err of the whole call.
func resultsOf(err error, n int) []error {
	if batch, ok := errors.AsType[*BatchError](err); ok {
		if len(batch.Results) == n {
			return slices.Clone(batch.Results)
		}
		// Do not wrap err: Poison or Snooze of one message must not apply to all.
		err = fmt.Errorf("the handler gave %d results for %d messages: %v", len(batch.Results), n, err)
	}
	return slices.Repeat([]error{err}, n)
}

// Codec decodes a message's body into T. An error means that the body can never be decoded: it poisons the message at
// once, and on an Inline or Direct channel its record is bad at once (contract 5.7). If another attempt may succeed,
// for instance because a schema registry was unreachable, return RetryAfter or Snooze. Implementations must be safe for
// concurrent use.
type Codec[T any] interface {
	Decode(meta Metadata, content []byte) (T, error)
}

// CodecFunc is a function that implements Codec.
type CodecFunc[T any] func(meta Metadata, content []byte) (T, error)

// Decode calls the function.
func (f CodecFunc[T]) Decode(meta Metadata, content []byte) (T, error) { return f(meta, content) }

// JSON decodes bodies with encoding/json. It is the default for every payload type but []byte.
type JSON[T any] struct{}

// Decode unmarshals the body.
func (JSON[T]) Decode(_ Metadata, content []byte) (T, error) {
	var payload T
	err := json.Unmarshal(content, &payload)
	return payload, err
}

// Raw passes the body as it is. It is the default for payloads of type []byte. The slice belongs to the handler.
type Raw struct{}

// Decode returns the body.
func (Raw) Decode(_ Metadata, content []byte) ([]byte, error) { return content, nil }

// Encoder encodes payloads of outgoing messages. JSON and Raw implement it. Implementations must be safe for concurrent
// use.
type Encoder[T any] interface {
	// Encode returns the body and its media type, which may be empty.
	Encode(payload T) (content []byte, contentType string, err error)
}

// Encode marshals the payload.
func (JSON[T]) Encode(payload T) ([]byte, string, error) {
	content, err := json.Marshal(payload)
	return content, "application/json", err
}

// Encode returns the payload.
func (Raw) Encode(payload []byte) ([]byte, string, error) { return payload, "", nil }

// DefaultEncoder returns the encoder of payloads for which none is given: Raw for []byte, and JSON for all others.
func DefaultEncoder[T any]() Encoder[T] {
	if raw, ok := any(Raw{}).(Encoder[T]); ok {
		return raw
	}
	return JSON[T]{}
}

// DecodeError says that a body could not be decoded for a handler.
type DecodeError struct {
	HandlerKey string
	Err        error
}

// Error names the handler.
func (e *DecodeError) Error() string {
	return fmt.Sprintf("decode body for handler %q: %v", e.HandlerKey, e.Err)
}

// Unwrap returns the codec's error.
func (e *DecodeError) Unwrap() error { return e.Err }

// Undecodable reports whether err says that a body could not be decoded, and its codec did not ask for a retry.
func Undecodable(err error) bool {
	_, body := errors.AsType[*DecodeError](err)
	_, retryAfter := errors.AsType[*RetryAfterError](err)
	_, snooze := errors.AsType[*SnoozeError](err)
	return body && !retryAfter && !snooze
}

func defaultCodec[T any]() Codec[T] {
	if raw, ok := any(Raw{}).(Codec[T]); ok {
		return raw
	}
	return JSON[T]{}
}
