// Package brief bounds text that comes from outside before it is kept, logged or quoted in an error: message types,
// IDs, header names, and the texts of errors, which may quote a producer's data (contract 3.6).
package brief

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName is how many bytes Name keeps. It is enough for every value that a column holds as an ID or a type in ASCII.
const maxName = 256

// Name returns a value for an error or a log line: its first 256 bytes, with an ellipsis if it is longer.
func Name(value string) string {
	if len(value) <= maxName {
		return value
	}
	return strings.Clone(Cut(value, maxName)) + "…"
}

// Cut returns at most so many bytes of text, and never ends within a character.
func Cut(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	for end := bytes; end >= 0 && end > bytes-utf8.UTFMax; end-- {
		if utf8.RuneStart(text[end]) {
			return text[:end]
		}
	}
	return text[:bytes] // it is not UTF-8
}

// Characters returns at most so many characters of text. It does not read what it cuts off, however long that is.
func Characters(text string, characters int) string {
	if len(text) <= characters {
		return text
	}
	text = Cut(text, characters*utf8.UTFMax) // more cannot remain
	count := 0
	for i := range text {
		if count == characters {
			return text[:i]
		}
		count++
	}
	return text
}

// Visible returns text for a log or a terminal. Characters that move the cursor, end a line or change the writing
// direction become escapes such as \u202e, and so do bytes that are not UTF-8. Line feeds and tabs stay.
func Visible(text string) string {
	from := strings.IndexFunc(text, isUnsafe)
	if from < 0 && utf8.ValidString(text) {
		return text
	}
	var out strings.Builder
	for rest := text; len(rest) > 0; {
		c, size := utf8.DecodeRuneInString(rest)
		switch {
		case c == utf8.RuneError && size == 1:
			fmt.Fprintf(&out, `\x%02x`, rest[0])
		case isUnsafe(c):
			fmt.Fprintf(&out, `\u%04x`, c)
		default:
			out.WriteString(rest[:size])
		}
		rest = rest[size:]
	}
	return out.String()
}

// isUnsafe reports whether a terminal or a log viewer does something else with c than to show it. Zero-width joiners,
// which belong to words and to emoji, do not act.
func isUnsafe(c rune) bool {
	const zeroWidthNonJoiner, zeroWidthJoiner = 0x200c, 0x200d
	switch c {
	case '\n', '\t', zeroWidthNonJoiner, zeroWidthJoiner:
		return false
	}
	return unicode.IsControl(c) || unicode.In(c, unicode.Cf, unicode.Zl, unicode.Zp)
}

// maxError is how many bytes Error keeps. Redaction cuts longer texts itself, with care for secrets at the cut, so this
// must be more than it reads.
const maxError = 20 << 10

// Error returns err to be kept while a partition is halted or a condition lasts. An error whose text has more than 20
// KiB quotes data from outside: then only its text is kept, cut to 20 KiB.
func Error(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if len(text) <= maxError {
		return err
	}
	return errors.New(strings.Clone(Cut(text, maxError)))
}
