package store

import (
	"time"

	"github.com/gorm-inbox/inbox/models"
)

// CleanupRequest asks for one batch of a cleanup.
type CleanupRequest struct {
	// Cutoff makes statuses go that were completed before it. The zero time keeps all.
	Cutoff time.Time
	// HandlerCutoffs replace Cutoff for single handler keys (contract 6.2). Keys are distinct.
	HandlerCutoffs []HandlerCutoff
	// Until ends the walk: messages received at or after it are not read. Zero means the latest of the cutoffs, and a
	// later time than that counts as zero: nothing received after all cutoffs can be old enough.
	Until time.Time
	After CleanupCursor
	// Limit is how many messages the batch reads, at least 1.
	Limit int
}

// HandlerCutoff is one handler key's own cutoff. The zero time keeps all.
type HandlerCutoff struct {
	HandlerKey string
	Cutoff     time.Time
}

// CleanupCursor is the last message that a batch has read. The zero value is the beginning. One without a number comes
// right before everything received at that time.
type CleanupCursor struct {
	ReceivedAt    time.Time
	MessageNumber int64
}

// CleanupResult counts what one batch deleted.
type CleanupResult struct {
	Messages int64
	Statuses int64
	// Passed counts messages with something to delete that were left alone because they were locked or had changed.
	Passed int64
	Next   CleanupCursor
	// Done is true when no message before the end of the walk is left to read.
	Done bool
}

// ExpiredBatch names the messages of which one batch of a walk would delete something.
type ExpiredBatch struct {
	// MessageNumbers are messages with something to delete, in the order of the walk.
	MessageNumbers []int64
	Next           CleanupCursor
	Done           bool
}

// ExpiredMessage is a message with its rows to delete.
type ExpiredMessage struct {
	Message models.Message
	// Statuses are those to delete, in the order of acceptance.
	Statuses []models.HandlerStatus
	// Stays is true if the message has other statuses, which keep it.
	Stays bool
}

// Latest returns the latest of the cutoffs.
func (r CleanupRequest) Latest() time.Time {
	latest := r.Cutoff
	for _, own := range r.HandlerCutoffs {
		if own.Cutoff.After(latest) {
			latest = own.Cutoff
		}
	}
	return latest
}
