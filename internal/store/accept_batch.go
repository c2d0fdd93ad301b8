package store

import (
	"time"

	"github.com/gorm-inbox/inbox/models"
)

// AcceptBatch is what one accept persists. Message IDs are distinct within each
// namespace.
type AcceptBatch struct {
	Messages []NewMessage
	Rejected []models.RejectedMessage
	// RejectDiffering makes a known ID with other content a conflict, too
	// (contract 4.3).
	RejectDiffering bool
	// Now becomes received_at and created_at.
	Now time.Time
	// Claimer is the worker for which statuses with Claim are claimed as they
	// are inserted; empty claims none (contract 5.17). If its row is not there,
	// or says that it is released or stopped, they are inserted unclaimed.
	Claimer string
	// Audit, if not nil, is added by AcceptRejected in its transaction.
	Audit *models.Audit
}

// NewMessage is a message to accept with the handlers it is routed to.
type NewMessage struct {
	models.Message // Number and ReceivedAt are ignored
	Handlers       []NewStatus
	// Rejection makes the row that is stored, with its Reason completed, if the ID
	// turns out to be known with another message (contract 4.3, 7.4). It is called
	// only then: the row holds the whole record. Nil stores nothing.
	Rejection func() models.RejectedMessage
}

// NewStatus asks for one handler's status row.
type NewStatus struct {
	HandlerKey string
	// LegacyKeys: a row under one of them counts as this handler's row.
	LegacyKeys []string
	// Retention, if positive: a known message received longer ago than this
	// gets no row any more, because it was cleaned, not missing (4.2).
	Retention time.Duration
	// Lane is nil if the message has none with this handler.
	Lane *Lane
	// Claim asks for the row to be claimed by the batch's Claimer. It is for
	// rows without a lane, which claims have to judge, and goes unheeded for
	// a message that was known before.
	Claim bool
}

// Accepted says what became of one message.
type Accepted struct {
	// Inserted is true for a new message, false for a duplicate or conflict.
	Inserted bool
	// StatusesAdded counts the status rows this accept inserted.
	StatusesAdded int
	// Conflict is true if the ID is known with another type or source, of which
	// StoredType and StoredSource tell, or under RejectDiffering with other
	// content, and then ContentDiffers is true. Nothing was added.
	Conflict                 bool
	StoredType, StoredSource string
	// ContentDiffers is true for a message of a known ID, type and source whose
	// content is not the stored one.
	ContentDiffers bool
	// Claims are those of its statuses that were inserted claimed, each as a
	// claim would have returned it. Once they are committed the caller has to
	// run them or give them back.
	Claims []Claim
}
