package idempotent

import (
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
)

// Check reports what keeps k from being a key: a message ID that is missing, too
// long (*envelope.IDTooLongError) or no valid UTF-8 without NUL, or a handler key
// of which the same is true. The wrapper checks before it asks a store; call it
// where a Store is used without.
func (k Key) Check() error {
	if err := handler.CheckKey(k.HandlerKey); err != nil {
		return err
	}
	return envelope.CheckID(k.MessageID)
}
