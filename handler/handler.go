package handler

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"gorm.io/gorm"
)

// Kind says how a handler's attempt is run and completed (contract 5.11).
type Kind int

const (
	// Plain handlers run first and are completed afterwards: their effects
	// happen at least once.
	Plain Kind = iota
	// Transactional handlers run in the transaction that completes their
	// status: their writes to the inbox's database happen exactly once.
	Transactional
)

// String returns "plain" or "transactional".
func (k Kind) String() string {
	if k == Transactional {
		return "transactional"
	}
	return "plain"
}

// Handler is one registered handler: a key and what to run for it. Make one
// with New or NewTx. It is immutable and safe for concurrent use.
type Handler struct {
	key        string
	legacyKeys []string
	kind       Kind
	payload    string
	timeout    time.Duration
	run        func(ctx context.Context, tx *gorm.DB, d Delivery) error
	err        error
}

// Option adjusts one handler.
type Option func(*settings)

type settings struct {
	legacyKeys []string
	timeout    time.Duration
	codec      any
}

// New makes a plain handler of fn: it runs first, then its status is
// completed, so after a crash in between it runs again. fn must be safe for
// concurrent use. A missing key, an empty legacy key, a nil fn or a codec of
// another payload type is reported by Err and fails the inbox's start.
func New[T any](key string, fn func(ctx context.Context, m Message[T]) error, opts ...Option) *Handler {
	h, codec := build[T](key, Plain, fn == nil, opts)
	h.run = func(ctx context.Context, _ *gorm.DB, d Delivery) error {
		m, err := decode(key, codec, d)
		if err != nil {
			return err
		}
		return fn(ctx, m)
	}
	return h
}

// NewTx makes a transactional handler of fn: it runs in the transaction that
// completes its status, so what it writes through tx happens exactly once. fn
// must not commit or roll back tx and must not use it after it returns. Do not
// use it for handlers whose effects are elsewhere (calls to services): the
// transaction and its locks last as long as the handler.
func NewTx[T any](key string, fn func(ctx context.Context, tx *gorm.DB, m Message[T]) error, opts ...Option) *Handler {
	h, codec := build[T](key, Transactional, fn == nil, opts)
	h.run = func(ctx context.Context, tx *gorm.DB, d Delivery) error {
		m, err := decode(key, codec, d)
		if err != nil {
			return err
		}
		return fn(ctx, tx, m)
	}
	return h
}

func build[T any](key string, kind Kind, missing bool, opts []Option) (*Handler, Codec[T]) {
	var s settings
	for _, o := range opts {
		o(&s)
	}
	h := &Handler{key: key, legacyKeys: s.legacyKeys, kind: kind, payload: reflect.TypeFor[T]().String(), timeout: s.timeout}
	if missing {
		h.err = errors.New("its function is nil")
	}
	codec := defaultCodec[T]()
	if s.codec != nil {
		own, ok := s.codec.(Codec[T])
		if ok {
			codec = own
		} else {
			h.err = fmt.Errorf("its codec %T does not decode into %s", s.codec, h.payload)
		}
	}
	if s.timeout < 0 {
		h.err = fmt.Errorf("Timeout is %s, allowed is 0 or more", s.timeout)
	}
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

// LegacyKeys returns the keys the handler had before.
func (h *Handler) LegacyKeys() []string { return h.legacyKeys }

// Keys returns the primary key followed by the legacy keys.
func (h *Handler) Keys() []string {
	return append([]string{h.key}, h.legacyKeys...)
}

// Kind says how it is run.
func (h *Handler) Kind() Kind { return h.kind }

// Payload names the payload type, for messages to people.
func (h *Handler) Payload() string { return h.payload }

// Timeout is the handler's own time limit per attempt; zero means the
// inbox's HandlerTimeout.
func (h *Handler) Timeout() time.Duration { return h.timeout }

// Err says what is wrong with the handler's declaration; nil if nothing is.
func (h *Handler) Err() error { return h.err }

// Run decodes the body and runs one attempt; tx is nil for plain handlers.
func (h *Handler) Run(ctx context.Context, tx *gorm.DB, d Delivery) error { return h.run(ctx, tx, d) }

// LegacyKeys names the keys a handler had before it was renamed, so that its
// stored statuses stay its own (contract 4.2). A legacy key should be kept for
// as long as Retention. Do not use it to merge two handlers that both still
// run: one of their statuses would be superseded.
func LegacyKeys(keys ...string) Option {
	return func(s *settings) { s.legacyKeys = append(s.legacyKeys, keys...) }
}

// Timeout limits each attempt of this handler instead of the inbox's
// HandlerTimeout; zero keeps the inbox's. Do not set it for handlers that
// ignore their context: it cannot stop them, only report them (contract 5.4).
func Timeout(d time.Duration) Option { return func(s *settings) { s.timeout = d } }

// WithCodec decodes bodies with codec, which must be a Codec of the handler's
// payload type, instead of JSON (or raw bytes for []byte). Not needed for JSON.
func WithCodec(codec any) Option { return func(s *settings) { s.codec = codec } }
