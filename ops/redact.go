package ops

import (
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/redact"
)

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
