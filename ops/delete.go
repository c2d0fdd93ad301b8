package ops

import (
	"context"
	"errors"
)

// Delete deletes a message and all of its statuses, whatever their state:
// ErrProcessing while any is being processed. Nothing remembers it: a redelivery
// is a new message. confirmation repeats the message ID, else it is ErrBadInput.
// To end a poisoned status, Discard it instead.
func (o *Ops) Delete(ctx context.Context, actor Actor, messageID, confirmation string) error {
	return errors.ErrUnsupported
}
