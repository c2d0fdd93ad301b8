package handler

import (
	"context"
	"errors"
	"fmt"
	"reflect"

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
	// batch is how many messages one call takes at most; 0 for handlers of single messages.
	batch int
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
