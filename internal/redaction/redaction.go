// Package redaction applies an inbox's redaction hook. All code that redacts values before they are stored, logged,
// traced, published or shown uses it.
package redaction

import (
	"fmt"

	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/secrets"
	"github.com/gorm-inbox/inbox/redact"
)

// Note replaces a value on which the hook panicked.
const Note = "[not shown: the redaction hook panicked]"

// Redactor applies a hook; the zero Redactor has none. It is safe for concurrent use.
type Redactor struct{ hook redact.Hook }

// New returns a Redactor with a hook, which may be nil.
func New(hook redact.Hook) Redactor { return Redactor{hook} }

// Hook returns the hook; nil if there is none.
func (r Redactor) Hook() redact.Hook { return r.hook }

// Then returns a Redactor that applies next to the result of r.
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

// Bytes returns the redacted value; a nil value stays nil. If the hook panics the result is Note: the panic must
// neither prevent the value from being stored nor show it.
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

// The bounds of an error's text. One that quotes a producer's data may have any size, and hooks read every byte of it.
const (
	// maxError is how many bytes of a text are redacted.
	maxError = 16 << 10
	// cutEdge is how many bytes at the end of a longer text are dropped after that: a secret that the cut goes through
	// may not be recognised. The rest holds the 2,000 characters that are stored of any error.
	cutEdge = 8 << 10
)

// Error returns the redacted text of an error. of describes what is known about the error. Passwords in URLs and DSNs
// are masked with or without a hook. Pass the whole text, and cut the result afterwards: a text of more than 16 KiB is
// cut before it is redacted, and loses the last 8 KiB of that afterwards, so that no half of a secret is left.
func (r Redactor) Error(of redact.Value, text string) string {
	if len(text) <= maxError {
		return r.mask(of, text)
	}
	seen := r.mask(of, brief.Cut(text, maxError))
	return brief.Cut(seen, max(len(seen)-cutEdge, 0)) + fmt.Sprintf("… (cut, it has %d bytes)", len(text))
}

func (r Redactor) mask(of redact.Value, text string) string {
	text = secrets.Mask(text)
	if r.hook == nil || text == "" {
		return text
	}
	of.Part, of.Bytes = redact.PartError, []byte(text)
	return string(r.Bytes(of))
}
