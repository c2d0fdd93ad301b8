package handler

import "errors"

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

// OrderingKey returns the key of the lane that a message belongs to; nil if the handler is not ordered or the message
// has no key.
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
