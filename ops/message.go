package ops

import (
	"context"
	"errors"
	"time"

	"github.com/gorm-inbox/inbox/handler"
)

// Message is a message with all of its statuses.
type Message struct {
	ID          string
	Number      int64
	Transport   string
	Type        string
	Source      string
	ContentType string
	ReceivedAt  time.Time
	// Content, OrderingKey and Properties are redacted. OrderingKey is nil if
	// there is none.
	Content     []byte
	OrderingKey []byte
	// Properties are headers, attributes and where it came from.
	Properties handler.Properties
	// PropertiesProblem says why the stored properties cannot be read; empty if
	// they can.
	PropertiesProblem string
	// TraceID is that of the producer's traceparent header; empty without one.
	TraceID string
	// OriginalID is the message this one is a replay of; empty if of none.
	OriginalID string
	// Statuses has one element per handler, by handler key.
	Statuses []StatusDetail
}

// StatusDetail is a status and its place in its lane.
type StatusDetail struct {
	Status
	// Lane is nil unless the status is open and has one.
	Lane *LanePlace
}

// LanePlace says what is before a status in its lane.
type LanePlace struct {
	// Ahead counts the open statuses before it, poisoned ones included.
	Ahead Count
	// HeadMessageID, HeadStatusID and HeadState are of the first open status of
	// the lane: itself if nothing is ahead.
	HeadMessageID string
	HeadStatusID  string
	HeadState     State
}

// Message returns a message and leaves an audit row of the look, because it
// shows a payload (contract 11.3). ErrNotFound if there is none of that ID.
func (o *Ops) Message(ctx context.Context, actor Actor, id string) (Message, error) {
	return Message{}, errors.ErrUnsupported
}
