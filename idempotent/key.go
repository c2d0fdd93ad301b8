package idempotent

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/models"
)

// Check reports what keeps k from being a key: a message ID that is missing, too
// long (*envelope.IDTooLongError) or no valid UTF-8 without NUL, or a handler key
// of which the same is true. The wrapper checks before it asks a store; call it
// where a Store is used without.
func (k Key) Check() error {
	if err := CheckHandlerKey(k.HandlerKey); err != nil {
		return err
	}
	return envelope.CheckID(k.MessageID)
}

// CheckHandlerKey reports what keeps key from being a handler key: it has to
// have 1 to 200 characters of valid UTF-8 without NUL.
func CheckHandlerKey(key string) error {
	switch n := utf8.RuneCountInString(key); {
	case n == 0:
		return fmt.Errorf("handler key is empty, allowed are 1 to %d characters that stay the same for ever", models.MaxHandlerKey)
	case !utf8.ValidString(key) || slices.Contains([]byte(key), 0):
		return fmt.Errorf("handler key %q is not valid UTF-8 without NUL", key)
	case n > models.MaxHandlerKey:
		return fmt.Errorf("handler key has %d characters, allowed are 1 to %d", n, models.MaxHandlerKey)
	default:
		return nil
	}
}
