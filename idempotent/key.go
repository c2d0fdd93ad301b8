package idempotent

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/registry"
)

// Check returns why k is not a valid key: its message ID is missing, too long (*envelope.IDTooLongError) or not valid
// UTF-8 without NUL, or the same holds for its handler key or namespace; a namespace may be empty. The wrapper checks
// before it calls a store. Call it where a Store is used without the wrapper.
func (k Key) Check() error {
	if err := registry.CheckKey(k.HandlerKey); err != nil {
		return err
	}
	if err := checkNamespace(k.Namespace); err != nil {
		return err
	}
	return envelope.CheckID(k.MessageID)
}

func checkNamespace(name string) error {
	switch n := utf8.RuneCountInString(name); {
	case n > columns.MaxChannel:
		return fmt.Errorf("namespace of IDs has %d characters, at most %d are allowed: give a shorter one to IDNamespace", n,
			columns.MaxChannel)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return fmt.Errorf("namespace of IDs %q is no valid UTF-8 without NUL: give another to IDNamespace", name)
	default:
		return nil
	}
}
