package store

import (
	"bytes"
	"crypto/sha256"
	"time"

	"github.com/gorm-inbox/inbox/models"
)

// AcceptBatch holds the rows that one accept persists. Message IDs are distinct within each namespace.
type AcceptBatch struct {
	Messages []NewMessage
	Rejected []models.RejectedMessage
	// Now becomes received_at and created_at.
	Now time.Time
	// Claimer is the worker for which statuses with Claim are claimed as they are inserted. Empty means that none is
	// claimed (contract 5.17). If the worker's row is missing, or marked released or stopped, the statuses are inserted
	// unclaimed.
	Claimer string
	// DryRun makes Accept roll its transaction back and return what it would have done.
	DryRun bool
	// Audit, if not nil, is added by AcceptRejected in its transaction.
	Audit *models.Audit
}

// NewMessage is a message to accept together with the handlers it is routed to.
type NewMessage struct {
	models.Message // Number and ReceivedAt are ignored
	Handlers       []NewStatus
	// PlainSHA256 is the hash of the plain content if Content is sealed, and its properties have it then. It is nil for
	// a content that is not.
	PlainSHA256 []byte
	// RejectDiffering makes a known ID with other content a conflict too (contract 4.3).
	RejectDiffering bool
	// Rejection returns the row to store, its Reason still to be completed, if the ID turns out to be known with
	// another message (contract 4.3, 7.4). It is called only then, because the row holds the whole record. Nil stores
	// nothing.
	Rejection func() models.RejectedMessage
}

// Size returns the bytes of the message's content and properties.
func (m *NewMessage) Size() int { return size(&m.Message) }

// ContentSHA256 returns the hash of the message's plain content.
func (m *NewMessage) ContentSHA256() []byte {
	if m.PlainSHA256 != nil {
		return m.PlainSHA256
	}
	hash := sha256.Sum256(m.Content)
	return hash[:]
}

// Differs reports whether the message's plain content is another one than a stored content that is not sealed.
func (m *NewMessage) Differs(stored []byte) bool {
	if m.PlainSHA256 == nil {
		return !bytes.Equal(stored, m.Content)
	}
	hash := sha256.Sum256(stored)
	return !bytes.Equal(hash[:], m.PlainSHA256)
}

// NewStatus asks for one handler's status row.
type NewStatus struct {
	HandlerKey string
	// LegacyKeys are the handler's former keys. A row under one of them counts as this handler's row.
	LegacyKeys []string
	// Retention, if positive, suppresses rows for old messages: a known message received longer ago than this gets no
	// new row, because its row was cleaned up and is not missing (contract 4.2).
	Retention time.Duration
	// Lane is nil if the message has none with this handler.
	Lane *Lane
	// Claim asks for the row to be claimed by the batch's Claimer. It is only for rows without a lane, since only Claim
	// can judge lanes, and without NotBefore. It is ignored for a message that was known before.
	Claim bool
	// NotBefore becomes the row's next_attempt_at if it is past the time at which the row is created. It is in
	// microseconds, and zero for a row that is due at once.
	NotBefore time.Time
}

// Accepted is the result for one message.
type Accepted struct {
	// Inserted is true for a new message, false for a duplicate or conflict.
	Inserted bool
	// StatusesAdded counts the status rows this accept inserted.
	StatusesAdded int
	// Conflict is true if the ID is known with another type or source, which StoredType and StoredSource hold. Under
	// RejectDiffering it is also true if the content differs, and then ContentDiffers is true as well. Nothing was
	// added in either case.
	Conflict                 bool
	StoredType, StoredSource string
	// ContentDiffers is true for a message of a known ID, type and source whose content is not the stored one.
	ContentDiffers bool
	// Claims are its statuses that were inserted claimed, each as Claim would have returned it. Once they are
	// committed, the caller has to run them or give them back.
	Claims []Claim
}
