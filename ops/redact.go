package ops

import "github.com/gorm-inbox/inbox/handler"

// Part says what a Redactable is.
type Part string

// What is shown of messages and records beside names, numbers and times.
const (
	// PartPayload is a message's content or a rejected record's value.
	PartPayload Part = "payload"
	// PartKey is an ordering key or a record's key.
	PartKey Part = "key"
	// PartHeader is the value of a header, whose name is Name.
	PartHeader Part = "header"
	// PartAttribute is the value of an attribute, whose name is Name.
	PartAttribute Part = "attribute"
	// PartError is the text of an error: a status's, or a rejection's reason.
	PartError Part = "error"
)

// Redactable is one value before it is shown. What is not known is empty: lists
// know neither headers nor channels.
type Redactable struct {
	Part       Part
	MessageID  string // or the rejected message's ID
	Type       string
	Channel    string
	HandlerKey string // of errors
	Name       string // of headers and attributes
	Value      []byte
}

// Redact has hook replace each value before anybody sees it, searches in it or
// groups by it; nil shows nothing. If it panics, the value is replaced by a note
// that says so. The hook runs for every row of a search: it must be quick, and
// safe for concurrent use. It does not change what is stored, nor what Replay
// and ReAccept work with. Message IDs, types, sources, handler keys and topics
// are shown as they are: keep secrets out of them (contract 11.4).
func Redact(hook func(Redactable) []byte) Option { return func(s *settings) { s.redactor = hook } }

// unredacted is shown in place of what the hook panicked on.
const unredacted = "[not shown: the redaction hook panicked]"

// redact is the value as it is shown.
func (o *Ops) redact(r Redactable) (shown []byte) {
	if o.redactor == nil || r.Value == nil {
		return r.Value
	}
	defer func() {
		if recover() != nil {
			shown = []byte(unredacted)
		}
	}()
	return o.redactor(r)
}

// redactError is the error of a status as it is shown.
func (o *Ops) redactError(messageID, messageType, handlerKey, text string) string {
	if o.redactor == nil || text == "" {
		return text
	}
	return string(o.redact(Redactable{Part: PartError, MessageID: messageID, Type: messageType, HandlerKey: handlerKey, Value: []byte(text)}))
}

// redactHeaders leaves its argument alone.
func (o *Ops) redactHeaders(of Redactable, headers []handler.Header) []handler.Header {
	if o.redactor == nil {
		return headers
	}
	shown := make([]handler.Header, len(headers))
	for i, h := range headers {
		of.Part, of.Name, of.Value = PartHeader, h.Key, h.Value
		shown[i] = handler.Header{Key: h.Key, Value: o.redact(of)}
	}
	return shown
}
