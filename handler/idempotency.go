package handler

import (
	"bytes"
	"fmt"
)

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
