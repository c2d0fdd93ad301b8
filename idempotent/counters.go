package idempotent

import "sync/atomic"

// Counts are what became of messages in this process, since the handler was
// wrapped. They are no ledger: the store is.
type Counts struct {
	// Processed messages were handled, and that is remembered.
	Processed int64
	// DuplicateSkipped messages had been processed before, whatever Duplicates
	// says.
	DuplicateSkipped int64
	// MissingKey is how often a message came to a handler without an ID, whether
	// or not AllowMissingID let it in: a repeated attempt counts again.
	MissingKey int64
	// InvalidKey messages were refused for another reason of their ID's: it is
	// too long, no valid UTF-8, or KeyBy failed.
	InvalidKey int64
	// Failed calls of the handler ended with an error, a panic or the end of
	// their goroutine.
	Failed int64
	// InProgress messages were being handled elsewhere.
	InProgress int64
	// Lost claims are those of ErrLost: the handler may run again.
	Lost int64
	// StoreFailed calls ended with an error of the store's own.
	StoreFailed int64
	// Undeduplicated messages were handled, but nobody remembers: there is no
	// store, or no ID.
	Undeduplicated int64
}

func (c Counts) add(d Counts) Counts {
	return Counts{
		Processed: c.Processed + d.Processed, DuplicateSkipped: c.DuplicateSkipped + d.DuplicateSkipped,
		MissingKey: c.MissingKey + d.MissingKey,
		InvalidKey: c.InvalidKey + d.InvalidKey, Failed: c.Failed + d.Failed, InProgress: c.InProgress + d.InProgress,
		Lost:        c.Lost + d.Lost,
		StoreFailed: c.StoreFailed + d.StoreFailed, Undeduplicated: c.Undeduplicated + d.Undeduplicated,
	}
}

// counters are those of one handler.
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
