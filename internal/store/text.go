package store

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/columns"
)

// ErrUnstorable means that a text column cannot hold this text as it is.
var ErrUnstorable = errors.New("text cannot be stored")

// CheckText returns nil if a text column of at most limit characters holds the text unaltered on every dialect.
// Otherwise it returns an error that wraps ErrUnstorable and names the cause: invalid UTF-8, a NUL, or the length found
// and allowed. A limit of 0 means any length (contract 3.6).
func CheckText(text string, limit int) error {
	switch {
	case !utf8.ValidString(text):
		return fmt.Errorf("%w: invalid UTF-8", ErrUnstorable)
	case strings.IndexByte(text, 0) >= 0:
		return fmt.Errorf("%w: contains a NUL", ErrUnstorable)
	case limit <= 0 || len(text) <= limit:
		return nil
	}
	if count := utf8.RuneCountInString(text); count > limit {
		return fmt.Errorf("%w: %d characters, at most %d are allowed", ErrUnstorable, count, limit)
	}
	return nil
}

// SanitizeError makes any error text fit for last_error: NUL and invalid UTF-8 become U+FFFD, and it is cut to
// columns.MaxLastError characters, never within one (contract 3.6). Text that already fits is returned unchanged.
func SanitizeError(text string) string {
	text = strings.ToValidUTF8(brief.Characters(text, columns.MaxLastError), "\uFFFD")
	return brief.Characters(strings.ReplaceAll(text, "\x00", "\uFFFD"), columns.MaxLastError)
}
