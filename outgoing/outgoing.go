// Package outgoing is what an outgoing channel and the transport of its messages agree on: the stored message, the
// function that publishes some of them, and the errors by which it says what becomes of them.
package outgoing

import (
	"context"
	"errors"
	"time"

	"github.com/gorm-inbox/inbox/handler"
)

// Message is a stored message that is to leave.
type Message struct {
	// Channel is the outgoing channel that the message was stored for.
	Channel string
	// ID is the message ID. It is the same in each attempt, so receivers can recognize a repeated message.
	ID string
	// Type and Source are the CloudEvents attributes of these names. Source may be empty.
	Type, Source string
	// ContentType is the media type of Content; empty if the application gave none.
	ContentType string
	// Content is the body. The store does not tell nil from empty.
	Content []byte
	// Key is the ordering key: messages of one key arrive in the order in which they were stored. Nil means no order.
	Key []byte
	// Headers are the message's own headers in their order. Attributes are named strings, such as CloudEvents extensions.
	Headers    []handler.Header
	Attributes map[string]string
	// OccurredAt is the time of the event, zero if the application gave none. StoredAt is when the message was stored.
	OccurredAt, StoredAt time.Time
	// Traceparent is the span that stored the message, in the format of W3C Trace Context; empty without one.
	Traceparent string
	// Attempt is 1 for the first attempt. If it is above 1, the message may have been published before.
	Attempt int
}

// Publish publishes messages, and returns one result for each, in their order. A nil result means that the message is
// durable at its destination, with all replicas. A RefusedError means that no attempt can succeed, and any other error
// that the message comes again later. Publish must return soon after ctx ends. It must be safe for concurrent use, and
// must not change the messages.
//
// Messages of one key come in order. After the first failure of a key, the results of its later messages do not count,
// and these messages come again. So Publish must not publish them after the failure; it returns ErrNotTried for them.
// A message whose result was lost, for example by a crash, comes again as well: receivers get it at least once.
type Publish func(ctx context.Context, messages []Message) []error

// ErrNotTried is the result of a message that was not tried because an earlier one failed. It may be wrapped. Such a
// message is not charged with a failure, and comes again within a second or so.
var ErrNotTried = errors.New("not tried because an earlier message failed")

// Each returns a Publish that sends messages one by one. After the first failure of a key it does not try the later
// messages of that key. Do not use it where a transport takes many messages at once.
func Each(send func(ctx context.Context, m Message) error) Publish {
	return func(ctx context.Context, messages []Message) []error {
		results, failed := make([]error, len(messages)), map[string]bool{}
		for i, m := range messages {
			if results[i] = ErrNotTried; m.Key == nil || !failed[string(m.Key)] {
				results[i] = send(ctx, m)
			}
			failed[string(m.Key)] = results[i] != nil
		}
		return results
	}
}

// RefusedError means that the destination takes the message in no attempt, so that it becomes poisoned. Find it with
// errors.As.
type RefusedError struct {
	// Err is the destination's reason.
	Err error
}

// Refused returns err as a *RefusedError. Do not use it for failures that an operator can fix while the message waits,
// such as a missing right. Refused of nil is nil.
func Refused(err error) error {
	if err == nil {
		return nil
	}
	return &RefusedError{err}
}

// Error says that the refusal is permanent, and names its reason.
func (e *RefusedError) Error() string { return "refused permanently: " + e.Err.Error() }

// Unwrap returns Err.
func (e *RefusedError) Unwrap() error { return e.Err }
