// Package redact hides card numbers, credentials and the like in the data that an inbox stores, logs, traces, publishes
// and shows (contract 11.6).
//
// Declare a Hook with the option Redact of inbox.Options. Common is a Hook that is ready to use; an application's hook
// can call it:
//
//	o.Redact = func(v redact.Value) []byte {
//		v.Bytes = customerNumber.ReplaceAll(v.Bytes, []byte("[customer]"))
//		return redact.Common(v)
//	}
package redact

// Part is the kind of a Value.
type Part string

// Parts of messages and records that are stored, logged or shown, besides names, numbers and times.
const (
	// PartPayload is a message's content or a rejected record's value.
	PartPayload Part = "payload"
	// PartKey is an ordering key or a record's key.
	PartKey Part = "key"
	// PartHeader is the value of a header, whose name is Name.
	PartHeader Part = "header"
	// PartAttribute is the value of an attribute, whose name is Name.
	PartAttribute Part = "attribute"
	// PartError is the text of an error: a handler's, with the stack if it panicked, the reason of a rejection, or a
	// reason of Health.
	PartError Part = "error"
)

// Value is one value before it is redacted. Unknown fields are empty: lists know neither headers nor channels, and logs
// do not know every message.
type Value struct {
	Part       Part
	MessageID  string // or the rejected message's ID
	Type       string
	Channel    string
	HandlerKey string // of errors
	Name       string // of headers and attributes
	Bytes      []byte
}

// Hook returns the replacement of a value; nil shows nothing of it. It must not change v.Bytes. It must be safe for
// concurrent use and quick: it runs for every error, and for every row of an operator's search. It must leave its own
// results unchanged, because a stored error is passed again when it is shown. If it panics, a note that says so
// replaces the value.
type Hook func(v Value) []byte
