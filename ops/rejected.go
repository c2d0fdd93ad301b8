package ops

import (
	"context"
	"errors"
	"time"

	"github.com/gorm-inbox/inbox/handler"
)

// RejectedFilter narrows a list of rejected messages.
type RejectedFilter struct {
	Channel string
	Topic   string
	// From and To bound when it was rejected: not before From, before To.
	From, To time.Time
	// Reason contains this, whatever the case of letters.
	Reason string
}

// Rejected is a rejected message without its record.
type Rejected struct {
	ID         string
	Channel    string
	Topic      string
	Partition  int32
	Offset     int64
	Timestamp  time.Time
	Reason     string // redacted
	RejectedAt time.Time
	// Size is that of key and value in bytes.
	Size int64
}

// RejectedRecord is a rejected message with its record, redacted. A nil Key or
// Value is none, which differs from an empty one.
type RejectedRecord struct {
	Rejected
	Key     []byte
	Value   []byte
	Headers []handler.Header
	// HeadersProblem says why the stored headers cannot be read; empty if they
	// can.
	HeadersProblem string
}

// RejectedPage is a part of the list of rejected messages, see Page.
type RejectedPage struct {
	Rejected []Rejected
	Next     Cursor
	Partial  bool
	Looked   int
}

// ListRejected returns a page of the rejected messages that match, those
// rejected last first. See List for after and limit.
func (o *Ops) ListRejected(ctx context.Context, filter RejectedFilter, after Cursor, limit int) (RejectedPage, error) {
	return RejectedPage{}, errors.ErrUnsupported
}

// Rejected returns one rejected message with its record and leaves an audit row
// of the look. ErrNotFound if there is none of that ID.
func (o *Ops) Rejected(ctx context.Context, actor Actor, id string) (RejectedRecord, error) {
	return RejectedRecord{}, errors.ErrUnsupported
}

// ReAccept accepts a rejected message's record again, by its channel's decoder
// and handlers as they are now, and deletes the rejected row, with the audit row
// in the same transaction. ErrNotFound for an unknown ID; if the record is
// still bad its row stays with the new reason and the error is a
// *acceptor.StillBadError. Needs a Live (contract 7.4, 11.1).
func (o *Ops) ReAccept(ctx context.Context, actor Actor, id string) ([]Accepted, error) {
	return nil, errors.ErrUnsupported
}

// DeleteRejected deletes a rejected message for good; confirmation repeats its
// ID, else it is ErrBadInput.
func (o *Ops) DeleteRejected(ctx context.Context, actor Actor, id, confirmation string) error {
	return errors.ErrUnsupported
}
