package handler

import "errors"

// ordering is what Ordered, OrderedBy and SkipPoisoned set.
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

// Ordered runs this handler's messages with the same ordering key one after
// the other, in the order of their acceptance, also across workers, retries
// and restarts: they form a lane. The ordering key is the Kafka key, or
// RawMessage.OrderingKey; messages without one have no lane and no order. A
// message that fails or snoozes holds up its lane until it succeeds; one that
// is poisoned holds it until an operator retries or discards it, unless
// SkipPoisoned. Accepts that run at the same moment, in different
// transactions, have no order among each other. It takes effect when every
// worker runs it, for messages accepted from then on. Do not use it where
// order does not matter: a lane is no faster than one message after the other,
// and one bad message can stop it; and what is accepted for an ordered handler
// is never handed off, because a claim has to judge its lane. (Contract 5.12,
// 5.17.)
func Ordered() Option { return func(s *settings) { s.ordered = true } }

// OrderedBy is Ordered with an ordering key of its own, made of the message as
// it is accepted; nil means that it has no lane. key is called concurrently,
// once per accepted message, and must give the same key for the same message;
// if it panics the message is invalid. Do not decode large bodies in it:
// accepting waits for it.
func OrderedBy(key func(m RawMessage) []byte) Option {
	return func(s *settings) { s.ordered, s.ownKey, s.orderedBy = true, true, key }
}

// SkipPoisoned lets a lane go on when a message of it is poisoned; retried by
// an operator it runs next in its lane, after later ones. Do not use it where
// a message builds on those before it.
func SkipPoisoned() Option { return func(s *settings) { s.skipPoisoned = true } }

// Ordered says whether messages run in lanes.
func (h *Handler) Ordered() bool { return h.ordered }

// SkipsPoisoned says whether a lane goes on past a poisoned message.
func (h *Handler) SkipsPoisoned() bool { return h.skipPoisoned }

// OrderingKey is the key of the lane a message belongs to; nil if the handler
// is not ordered or the message has no key.
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

// LaneKey is the handler key that names its lanes: the oldest it has, so that
// a program from before a rename sees the lanes of one from after it, while
// both run.
func (h *Handler) LaneKey() string {
	keys := h.Keys()
	return keys[len(keys)-1]
}
