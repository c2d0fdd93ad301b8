package ops

import (
	"context"
	"errors"
)

// PropertyOriginalID is the attribute of a replayed message that names the
// message it is a copy of.
const PropertyOriginalID = "inboxreplayof"

// Edit is what a replay changes; what is nil stays as it is stored.
type Edit struct {
	// MessageID is the copy's ID. Empty makes one: the original's with a suffix,
	// or a UUID if that would be too long.
	MessageID string
	// Content is the whole new content. Don't take it from what was shown if a
	// redaction hook is set.
	Content *[]byte
	// ContentType, Type and OrderingKey likewise.
	ContentType *string
	Type        *string
	OrderingKey *[]byte
}

// Replay accepts an edited copy of a message as a new one, for all handlers that
// take its type now: unlike Retry it runs also those that had completed. The copy
// names its original in the attribute PropertyOriginalID, and the audit row
// both. It needs AllowReplay (ErrReplayOff) and a Live. ErrNotFound if there is
// no such message; ErrBadInput if the copy's ID is known already, or what the
// acceptor says against the copy.
func (o *Ops) Replay(ctx context.Context, actor Actor, messageID string, edit Edit) (Accepted, error) {
	return Accepted{}, errors.ErrUnsupported
}
