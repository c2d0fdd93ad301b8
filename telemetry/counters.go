// Package telemetry is the one place for what an inbox counts and measures
// (contract 12).
package telemetry

import "sync/atomic"

// Counters count what one inbox of this process did since it was made. They
// are safe for concurrent use. They are not a ledger: after a crash they start
// from zero, the database is the truth.
type Counters struct {
	Accepted                atomic.Int64 // messages stored for the first time
	Duplicates              atomic.Int64 // known messages received again
	DuplicateContentDiffers atomic.Int64 // of these, with other content (contract 4.3)
	Unrouted                atomic.Int64 // messages no handler takes (contract 4.6)
	Rejected                atomic.Int64 // bad records kept or halted at (contract 7.4)
	DeadLettered            atomic.Int64 // bad records that a dead-letter topic acknowledged (contract 7.4)
	Invalid                 atomic.Int64 // messages refused by Accept (contract 4.1)
	Gaps                    atomic.Int64 // gaps in partitions that were passed (contract 7.5)

	// Of channels that remember inline what was processed (contract 8.6).
	DuplicateSkipped atomic.Int64 // a handler's messages that it had processed before
	MissingKey       atomic.Int64 // messages that had no ID to remember them by

	HandedOff  atomic.Int64 // statuses accepted already claimed and run from memory (contract 5.17)
	Processed  atomic.Int64 // attempts completed
	Failed     atomic.Int64 // attempts failed, poisoned ones included
	Poisoned   atomic.Int64 // statuses poisoned
	Snoozed    atomic.Int64 // attempts put off uncharged
	Released   atomic.Int64 // claims given back uncharged
	Superseded atomic.Int64 // statuses ended in favour of a sibling (contract 4.2)
	Fenced     atomic.Int64 // results of stale claims, which changed nothing (contract 5.10)
	Recovered  atomic.Int64 // claims of vanished workers released (contract 5.9)
	LockLost   atomic.Int64 // times the lock of Exclusive mode was lost (contract 5.3)
}

// Snapshot is a copy of the counters at one moment.
type Snapshot struct {
	Accepted, Duplicates, DuplicateContentDiffers, Unrouted, Rejected, Invalid    int64
	DeadLettered                                                                  int64
	Processed, Failed, Poisoned, Snoozed, Released, Superseded, Fenced, Recovered int64
	LockLost, Gaps, HandedOff                                                     int64
	DuplicateSkipped, MissingKey                                                  int64
}

// Snapshot reads all counters, one after the other.
func (c *Counters) Snapshot() Snapshot {
	return Snapshot{
		Accepted: c.Accepted.Load(), Duplicates: c.Duplicates.Load(), DuplicateContentDiffers: c.DuplicateContentDiffers.Load(),
		Unrouted: c.Unrouted.Load(), Rejected: c.Rejected.Load(), DeadLettered: c.DeadLettered.Load(), Invalid: c.Invalid.Load(),
		Processed: c.Processed.Load(), Failed: c.Failed.Load(), Poisoned: c.Poisoned.Load(), Snoozed: c.Snoozed.Load(),
		Released: c.Released.Load(), Superseded: c.Superseded.Load(), Fenced: c.Fenced.Load(), Recovered: c.Recovered.Load(),
		LockLost: c.LockLost.Load(), Gaps: c.Gaps.Load(), HandedOff: c.HandedOff.Load(),
		DuplicateSkipped: c.DuplicateSkipped.Load(), MissingKey: c.MissingKey.Load(),
	}
}
