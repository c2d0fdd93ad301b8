package idempotent

import (
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox/envelope"
)

// ErrMissingID is why a message without an ID is refused (contract 8.3): find it with errors.Is. A function given to
// KeyBy may return it, wrapped or not, instead of an empty ID.
var ErrMissingID = envelope.ErrMissingID

// ErrNoStore says that RequireStore is set and there is no store.
var ErrNoStore = errors.New("there is no store, and RequireStore is set")

// IDError says that a message has no usable ID, so the handler was not called. Err is ErrMissingID, an
// *envelope.IDTooLongError that names the length, envelope.ErrBadID, or the error of the function given to KeyBy. It is
// the same at each delivery.
type IDError struct {
	HandlerKey string
	Err        error
}

// Error names the handler.
func (e *IDError) Error() string { return fmt.Sprintf("handler %q: %v", e.HandlerKey, e.Err) }

// Unwrap returns what is wrong with the ID.
func (e *IDError) Unwrap() error { return e.Err }

// DuplicateError is returned by the wrapper for a message that was processed before, if Duplicates is FailDuplicates.
// The message may be acknowledged.
type DuplicateError struct{ Key Key }

// Error names message and handler.
func (e *DuplicateError) Error() string {
	return fmt.Sprintf("handler %q has processed message %q before", e.Key.HandlerKey, e.Key.MessageID)
}
