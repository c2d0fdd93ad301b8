package envelope

import "time"

// ReadAgain says which records of a topic are read again, and how (contract 7.11). What the channel's consumer has yet
// to read is left to it.
type ReadAgain struct {
	// Channel is the name of an Inbox channel, and Topic one of its topics. Both are required.
	Channel string `json:"channel"`
	Topic   string `json:"topic"`
	// Partitions are read one after the other. None means all that the channel's group reads.
	Partitions []int `json:"partitions,omitempty"`
	// From is required unless there are Ranges. In each partition reading begins with the first record whose timestamp
	// is From or later. It ends before the first one whose timestamp is To or later or, if To is zero or there is none,
	// at the end of the partition when the call began. Timestamps count in whole milliseconds and are the producer's,
	// unless the topic has log append time. Where they do not ascend, later offsets may have earlier times: choose a
	// wider period.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// Ranges are read instead, if there are any: pass ReadAgainResult.Left to go on. There must be one for a partition
	// at most, and neither Partitions nor times beside them.
	Ranges []Range `json:"ranges,omitempty"`
	// DryRun only counts: each transaction is rolled back, and nothing is published. A message that comes twice may be
	// counted as accepted twice. It costs the database as much as accepting.
	DryRun bool `json:"dry_run,omitempty"`
	// MaxRecords ends the call after so many records, without an error. 0 is no limit.
	MaxRecords int64 `json:"max_records,omitempty"`
	// Progress, if not nil, is called after each accept in the caller's goroutine.
	Progress func(ReadAgainResult) `json:"-"`
}

// Range is a part of a partition: the offsets From to To-1.
type Range struct {
	Partition int   `json:"partition"`
	From      int64 `json:"from"`
	// To is the end of the partition when the call begins, if it is 0.
	To int64 `json:"to"`
	// Log names the topic's log of which they are offsets. If the topic was created again since, the call fails. Empty
	// means the current one.
	Log string `json:"log,omitempty"`
}

// ReadAgainResult counts what was read, up to where Left begins.
type ReadAgainResult struct {
	// Read counts records. Bad and Empty are those that are bad, and those that hold no message.
	Read  int64 `json:"read"`
	Bad   int64 `json:"bad"`
	Empty int64 `json:"empty"`
	// Accepted, Duplicates and Unrouted count messages.
	Accepted   int64 `json:"accepted"`
	Duplicates int64 `json:"duplicates"`
	Unrouted   int64 `json:"unrouted"`
	// ByType counts them by message type, of the first 50 types. Those of later ones are under OtherTypes.
	ByType map[string]TypeCounts `json:"by_type,omitempty"`
	// Gaps are the records that could not be read, because the log no longer has them. From is -1 where the log begins
	// within the period that was asked for, or may do so: it is unknown whether records of the period were deleted.
	Gaps []Gap `json:"gaps,omitempty"`
	// Unconsumed is what was asked for and left to the consumer: the channel's group had not committed it when the call
	// began. It is empty where the group has no committed offset.
	Unconsumed []Range `json:"unconsumed,omitempty"`
	// Left is what is not read yet. It is empty once all is.
	Left []Range `json:"left,omitempty"`
}

// OtherTypes is where ReadAgainResult.ByType counts messages of types beyond the first 50.
const OtherTypes = "(other types)"

// TypeCounts counts messages of one type. An ID conflict is none of the three: its record is bad.
type TypeCounts struct {
	Accepted   int64 `json:"accepted"`
	Duplicates int64 `json:"duplicates"`
	Unrouted   int64 `json:"unrouted"`
}
