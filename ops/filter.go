package ops

import "time"

// Filter narrows what is listed, counted or acted on; a status must meet all of
// it. The zero Filter takes every status. Audit rows tell it as JSON.
type Filter struct {
	// States: any of them. Empty is all; with ErrorText or Fingerprint it is
	// StatePoisoned and StateFailing, which indexes find at once.
	States []State `json:"states,omitempty"`
	// HandlerKeys: any of them, at most 1,000.
	HandlerKeys []string `json:"handler_keys,omitempty"`
	// MessageID: this one exactly, in Namespace or, if that is empty, in all.
	MessageID string `json:"message_id,omitempty"`
	// Namespace is of the MessageID; ErrBadInput without one.
	Namespace string `json:"namespace,omitempty"`
	// Type: this message type exactly.
	Type string `json:"type,omitempty"`
	// From and To bound when the message was received: not before From, before
	// To. Zero is no bound.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// ErrorText: its last error contains this, whatever the case of letters.
	ErrorText string `json:"error_text,omitempty"`
	// Fingerprint: it belongs to this failure group, see Failures.
	Fingerprint string `json:"fingerprint,omitempty"`
}

// Cursor is a place in a list, for List and its like to go on from. It is
// opaque, belongs to the list and the filter it came from (any other is
// ErrBadInput) and does not expire. The empty Cursor is the beginning.
type Cursor string

// Limits of what one call does.
const (
	// defaultLimit is the size of a page if the caller gives 0.
	defaultLimit = 50
	// MaxLimit is the largest page; more is ErrBadInput.
	MaxLimit = 1000
	// lookLimit is how many rows a page, a count or a failure overview looks at.
	lookLimit = 10_000
)

// Count is a capped count: of what was looked at, N matched.
type Count struct {
	N int64
	// Capped: there may be more, which were not looked at.
	Capped bool
}
