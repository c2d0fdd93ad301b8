package handler

// Counts are the counters of an inbox at one moment, since the process began.
type Counts struct {
	Accepted                int64 // messages stored for the first time
	Duplicates              int64 // known messages received again
	DuplicateContentDiffers int64 // known IDs received with other content (contract 4.3)
	Unrouted                int64 // messages no handler takes (contract 4.6)
	Rejected                int64 // bad records kept or halted at (contract 7.4)
	DeadLettered            int64 // bad records that a dead-letter topic acknowledged (contract 7.4)
	Invalid                 int64 // messages refused by Accept (contract 4.1)
	Gaps                    int64 // gaps in partitions that were passed (contract 7.5)
	EmptyRecords            int64 // records that hold no message: empty batches (contract 4.5)

	// For channels that remember inline what was processed (contract 8.6).
	DuplicateSkipped int64 // a handler's messages that it had processed before
	// how often a message had no ID to be remembered by: counted once if it is refused before handlers run, otherwise
	// at each attempt of each handler
	MissingKey int64

	Dispatched int64 // statuses accepted already claimed and run from memory (contract 5.17)
	Processed  int64 // attempts completed
	Failed     int64 // attempts failed, poisoned ones included
	Poisoned   int64 // statuses poisoned
	Snoozed    int64 // attempts postponed uncharged
	Released   int64 // claims released uncharged
	Superseded int64 // statuses ended in favour of a sibling (contract 4.2)
	Fenced     int64 // results of stale claims, which changed nothing (contract 5.10)
	Recovered  int64 // claims of vanished workers released (contract 5.9)
	LockLost   int64 // times the lock of Exclusive mode was lost (contract 5.3)
}
