package ops

import "time"

// Filter selects the statuses to list, count or act on. A status must match every field. The zero
// Filter matches every status. Audit rows store it as JSON.
type Filter struct {
	// States matches any of these states. Empty matches all; with ErrorText or Fingerprint it means
	// StatePoisoned and StateFailing, which indexes find quickly.
	States []State `json:"states,omitempty"`
	// HandlerKeys matches any of these keys, at most 1,000.
	HandlerKeys []string `json:"handler_keys,omitempty"`
	// MessageID matches exactly, in Namespace or, if that is empty, in all namespaces.
	MessageID string `json:"message_id,omitempty"`
	// Namespace is that of MessageID. Without a MessageID it is ErrBadInput.
	Namespace string `json:"namespace,omitempty"`
	// Type matches the message type exactly.
	Type string `json:"type,omitempty"`
	// From and To limit when the message was received: not before From, and before To. Zero is no
	// limit.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// ErrorText is a substring of the last error, ignoring case.
	ErrorText string `json:"error_text,omitempty"`
	// Fingerprint matches the statuses of one failure group, see Failures.
	Fingerprint string `json:"fingerprint,omitempty"`
}

// Cursor is a place in a list, from which List and similar methods continue. It is opaque, does not
// expire and belongs to the list and the filter that it came from; with any other it is
// ErrBadInput. The empty Cursor is the beginning.
type Cursor string

// These limit what one call does.
const (
	// defaultLimit is the page size if the caller gives 0.
	defaultLimit = 50
	// MaxLimit is the largest page size; a larger one is ErrBadInput.
	MaxLimit = 1000
	// lookLimit is how many rows a page, a count or a failure overview reads.
	lookLimit = 10_000
)

// Count is a capped count: N of the rows that were read matched.
type Count struct {
	N int64
	// Capped means that there may be more rows, which were not read.
	Capped bool
}
