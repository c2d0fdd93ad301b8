// Package redaction applies an inbox's redaction hook. All that hides something before
// it is stored, logged, traced, published or shown does so here.
package redaction

import (
	"github.com/gorm-inbox/inbox/internal/secrets"
	"github.com/gorm-inbox/inbox/redact"
)

// Note takes the place of what the hook panicked on.
const Note = "[not shown: the redaction hook panicked]"

// Redactor applies a hook; the zero Redactor has none. It is safe for concurrent use.
type Redactor struct{ hook redact.Hook }

// New makes a Redactor of a hook, which may be nil.
func New(hook redact.Hook) Redactor { return Redactor{hook} }

// Hook returns the hook, nil if there is none.
func (r Redactor) Hook() redact.Hook { return r.hook }

// Then returns a Redactor that applies next to what r leaves of a value.
func (r Redactor) Then(next redact.Hook) Redactor {
	first := r.hook
	switch {
	case first == nil:
		return Redactor{next}
	case next == nil:
		return r
	}
	return Redactor{func(v redact.Value) []byte {
		if v.Bytes = first(v); v.Bytes == nil {
			return nil
		}
		return next(v)
	}}
}

// Bytes returns what is to be seen of a value; of none, nothing. A hook that panics
// must neither fail what was to be stored nor show it.
func (r Redactor) Bytes(v redact.Value) (seen []byte) {
	if r.hook == nil || v.Bytes == nil {
		return v.Bytes
	}
	defer func() {
		if recover() != nil {
			seen = []byte(Note)
		}
	}()
	return r.hook(v)
}

// Error returns what is to be seen of an error's text, about which of says what is
// known. Passwords of URLs and DSNs are masked with a hook and without. It sees the
// text whole: cut it afterwards.
func (r Redactor) Error(of redact.Value, text string) string {
	text = secrets.Mask(text)
	if r.hook == nil || text == "" {
		return text
	}
	of.Part, of.Bytes = redact.PartError, []byte(text)
	return string(r.Bytes(of))
}
