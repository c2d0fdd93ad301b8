package handler

import (
	"bytes"
	"fmt"
)

// IdempotencyKey takes the message ID that an Inline channel remembers this
// handler's messages by from the message itself, typically a field of its
// payload, instead of what the channel's strategy found; T is the handler's
// payload type. If the result is empty the channel's strategy decides
// (contract 4.4). Any other result that is no ID, and any error, makes the
// record bad; a body that cannot be decoded does too, unless its codec asks for a
// retry of the attempt. find is called concurrently, before each attempt, and must
// return the same each time the message comes. The handler still sees the message's
// own ID; a message without one has this as its ID.
//
// It cannot hold in Inbox and Direct mode. Do not use it for what comes again in
// other messages, such as the ID of the entity a message is about: all but its
// first message would be taken for duplicates. Nor where a header says the same:
// the body is decoded once more for it.
func IdempotencyKey[T any](find func(m Message[T]) (string, error)) Option {
	return func(s *settings) { s.idempotencyKey = find }
}

// IdempotencyKey finds the message ID in a delivery; nil means that the handler
// has no strategy of its own.
func (h *Handler) IdempotencyKey() func(d Delivery) (string, error) { return h.findKey }

// idempotencyKey checks the option's type and puts the codec before it.
func idempotencyKey[T any](h *Handler, codec Codec[T]) error {
	if h.idempotencyKey == nil {
		return nil
	}
	find, ok := h.idempotencyKey.(func(Message[T]) (string, error))
	if !ok {
		return fmt.Errorf("its IdempotencyKey is a %T, allowed is a %T", h.idempotencyKey, find)
	}
	if find == nil {
		return fmt.Errorf("its IdempotencyKey is nil, allowed is a %T", find)
	}
	h.findKey = func(d Delivery) (string, error) {
		d.Content = bytes.Clone(d.Content) // the handler's attempts get it as it is
		m, err := decode(h.key, codec, d)
		if err != nil {
			return "", err
		}
		return find(m)
	}
	return nil
}
