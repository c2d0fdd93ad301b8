package ops

import (
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/redact"
)

// Redact has hook replace each value before anybody sees it or searches in it; nil shows nothing.
// Inbox.Ops has the hook of inbox.Options.Redact: this one is for an Ops without an application, or
// gets what that one, or a Redact before it, has left. Failure groups are made of errors as they are
// stored, without what redact.Common hides. It does not change what is stored, nor what Replay and
// ReAccept work with.
// Message IDs, types, sources, handler keys and topics are shown as they are: keep
// secrets out of them (contract 11.4, 11.6).
func Redact(hook redact.Hook) Option {
	return func(s *settings) { s.redactor = s.redactor.Then(hook) }
}

// redacts reports whether there is a hook. Without one only passwords in errors are masked.
func (o *Ops) redacts() bool { return o.redactor.Hook() != nil }

// redactHeaders returns redacted headers. It does not change its argument.
func (o *Ops) redactHeaders(of redact.Value, headers []handler.Header) []handler.Header {
	if !o.redacts() {
		return headers
	}
	shown := make([]handler.Header, len(headers))
	for i, h := range headers {
		of.Part, of.Name, of.Bytes = redact.PartHeader, h.Key, h.Value
		shown[i] = handler.Header{Key: h.Key, Value: o.redactor.Bytes(of)}
	}
	return shown
}
