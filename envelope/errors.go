package envelope

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/internal/columns"
)

// Sentinels of what can be wrong with a record. Find them with errors.Is.
var (
	// ErrMissingID means that the channel's ID strategy found nothing in the record (contract 4.4). A strategy of your
	// own may return it, wrapped or not.
	ErrMissingID = errors.New("message ID is missing")
	// ErrBadID means that the ID is not valid UTF-8 without NUL. It is never altered to fit (contract 3.6).
	ErrBadID = errors.New("message ID is not valid UTF-8 without NUL")
	// ErrSharedID means that several events of one batched record would get the same ID: it is taken from the record
	// and not from the event, or a function found it for two of them.
	ErrSharedID = errors.New("one ID for several messages of a record")
	// ErrMissingType means that a plain record has no type and the channel has none.
	ErrMissingType = errors.New("message type is missing")
	// ErrNotCloudEvent means that the record is no CloudEvent and the channel accepts nothing else.
	ErrNotCloudEvent = errors.New("record is not a CloudEvent")
	// ErrMalformed means that the record claims to be a CloudEvent and breaks the rules of CloudEvents 1.0.
	ErrMalformed = errors.New("malformed CloudEvent")
)

// IDTooLongError means that a message ID has more characters than are allowed.
type IDTooLongError struct {
	// Length is in characters, not bytes.
	Length int
}

// Error names the length and what is allowed.
func (e *IDTooLongError) Error() string {
	return fmt.Sprintf("message ID has %d characters: must be 1 to %d", e.Length, columns.MaxMessageID)
}

// CheckID returns an error if id cannot be a message ID: ErrMissingID, ErrBadID or an *IDTooLongError (contract 4.4).
func CheckID(id string) error {
	if id == "" {
		return ErrMissingID
	}
	if !utf8.ValidString(id) || strings.ContainsRune(id, 0) {
		return ErrBadID
	}
	if n := utf8.RuneCountInString(id); n > columns.MaxMessageID {
		return &IDTooLongError{Length: n}
	}
	return nil
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrMalformed, fmt.Errorf(format, args...))
}
