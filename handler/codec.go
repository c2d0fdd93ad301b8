package handler

import (
	"encoding/json"
	"errors"
	"fmt"
)

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

// Undecodable reports whether err says that a body could not be decoded and that no attempt can change that: its codec
// did not ask for a retry.
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
