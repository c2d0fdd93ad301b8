package idempotent

import "sync/atomic"

// Counts count the messages of this process since the receiver was made, by what became of them. They are not durable;
// the store is.
type Counts struct {
	// Processed counts messages that were handled and are remembered.
	Processed int64
	// DuplicateSkipped counts messages that had been processed before, under any option Duplicates.
	DuplicateSkipped int64
	// MissingKey counts how often a message without an ID came to a handler, whether or not AllowMissingID let it pass.
	// A repeated attempt counts again.
	MissingKey int64
	// InvalidKey counts messages refused for another reason of their ID: it is too long or not valid UTF-8, or KeyBy
	// failed.
	InvalidKey int64
	// Failed counts calls of the handler that ended with an error, a panic or the end of their goroutine.
	Failed int64
	// InProgress counts messages that were being handled elsewhere.
	InProgress int64
	// Lost counts calls that ended with ErrLost: the handler may run again.
	Lost int64
	// StoreFailed counts calls that ended with an error of the store itself.
	StoreFailed int64
	// Undeduplicated counts messages that were handled but are not remembered, because there is no store or no ID.
	Undeduplicated int64
}

// counters are the counters of one receiver.
type counters struct {
	processed, duplicateSkipped, missingKey, invalidKey, failed, inProgress, lost, storeFailed, undeduplicated atomic.Int64
}

// snapshot reads all counters, one after the other.
func (c *counters) snapshot() Counts {
	return Counts{
		Processed: c.processed.Load(), DuplicateSkipped: c.duplicateSkipped.Load(), MissingKey: c.missingKey.Load(),
		InvalidKey: c.invalidKey.Load(),
		Failed:     c.failed.Load(), InProgress: c.inProgress.Load(), Lost: c.lost.Load(), StoreFailed: c.storeFailed.Load(),
		Undeduplicated: c.undeduplicated.Load(),
	}
}
