package store

import (
	"errors"
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
	// Live makes the walk read partitions that have not expired as a whole, too. Otherwise it leaves them for the time
	// when they can be dropped. It has no effect on tables without partitions.
	Live bool
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

// ErrPartitionsLeft says that there are too many partitions, or too many messages that were kept of earlier ones, to
// make one table of them.
var ErrPartitionsLeft = errors.New("partitions are left")

// ErrPartitionsBusy says that transactions were open for longer than a change of partitions lets others wait. It can be
// tried again.
var ErrPartitionsBusy = errors.New("the tables are in use by long transactions")

// PartitionsRequest is what is to be done about partitions.
type PartitionsRequest struct {
	// Before is the time of which all messages of a partition must be older to be dropped with it. The zero time drops
	// nothing.
	Before time.Time
	// Every is how long a partition takes rows until the next one begins. 0 begins none.
	Every time.Duration
	// Now is the time by the clock that gave messages their time.
	Now time.Time
	// Limit is how many messages are read at once, at least 1, and After the Next of the call before.
	Limit int
	After int64
}

// PartitionsResult is what was done about partitions.
type PartitionsResult struct {
	Dropped int
	// Moved counts the messages that stay and were moved out of dropped partitions.
	Moved int
	// Crowded counts the expired partitions that stay because too many of their messages do, or too large ones. Deleted
	// counts the messages that were deleted from them, row by row. Next is not 0 if there are more to read.
	Crowded int
	Deleted int64
	Next    int64
	Began   int
}

// Add adds up what several calls did. Partitions that stay are counted by the last.
func (r *PartitionsResult) Add(later PartitionsResult) {
	r.Dropped, r.Moved, r.Began = r.Dropped+later.Dropped, r.Moved+later.Moved, r.Began+later.Began
	r.Deleted, r.Crowded, r.Next = r.Deleted+later.Deleted, later.Crowded, later.Next
}

// Earliest returns the earliest of the cutoffs: that of the longest retention. Zero times, which keep all, do not
// count.
func (r CleanupRequest) Earliest() time.Time {
	earliest := r.Cutoff
	for _, own := range r.HandlerCutoffs {
		if earliest.IsZero() || !own.Cutoff.IsZero() && own.Cutoff.Before(earliest) {
			earliest = own.Cutoff
		}
	}
	return earliest
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
