package acceptor

import (
	"errors"
	"fmt"
	"slices"
)

// UnroutedPolicy decides what happens to messages that no handler takes (contract 4.6).
type UnroutedPolicy string

// The policies for unrouted messages.
const (
	// UnroutedIgnore counts them and warns once per type.
	UnroutedIgnore UnroutedPolicy = "ignore"
	// UnroutedReject keeps their record as rejected, under any BadRecords.
	UnroutedReject UnroutedPolicy = "reject"
	// UnroutedHalt stops the partition before their record.
	UnroutedHalt UnroutedPolicy = "halt"
)

// DifferingContentPolicy decides what happens to a message whose ID, type and source are known with
// other content (contract 4.3).
type DifferingContentPolicy string

// The policies for differing content. With both, the content stored first counts, and each such
// message is counted and logged with its ID.
const (
	// DifferingContentLog treats it as a duplicate.
	DifferingContentLog DifferingContentPolicy = "log"
	// DifferingContentReject makes its record bad, and BadRecords applies.
	DifferingContentReject DifferingContentPolicy = "reject"
)

// BadRecordPolicy decides what happens to bad records (contract 7.4).
type BadRecordPolicy string

// The policies for bad records.
const (
	// BadRecordStore keeps the raw record as rejected, before the offset of its batch is committed.
	BadRecordStore BadRecordPolicy = "store"
	// BadRecordDeadLetter publishes the raw record to the channel's dead-letter topic, which must
	// acknowledge it before its offset may be committed.
	BadRecordDeadLetter BadRecordPolicy = "dead_letter_topic"
	// BadRecordHalt stops the partition before the record.
	BadRecordHalt BadRecordPolicy = "halt"
)

// GapPolicy decides what happens where the records that should be read next no longer exist (contract 7.5).
type GapPolicy string

// The policies for gaps.
const (
	// GapHalt stops the partition before the gap. If the topic was created again, the halt may not survive a restart or a
	// rebalance: brokers forget a group's offsets when its topic is deleted, and reading then begins at StartOffset.
	GapHalt GapPolicy = "halt"
	// GapContinue stores a row that says what is missing and continues after the gap.
	GapContinue GapPolicy = "continue"
)

// Options say what an inbox, or one of its channels, does with records that are not a message for one
// of its handlers. Start from DefaultOptions.
type Options struct {
	// Unrouted says what happens to messages that no handler takes: UnroutedIgnore, UnroutedReject or UnroutedHalt. Do not
	// use Reject on topics that carry other teams' types: every one of them would be kept. It is apart from BadRecords:
	// Reject keeps a rejected row also where bad records go to a dead-letter topic. In Direct channels a record with
	// several messages, of which some are unrouted and others were given up by a handler, is treated once: by BadRecords,
	// and its reason says both. Default UnroutedIgnore.
	Unrouted UnroutedPolicy `yaml:"unrouted" env:"UNROUTED"`
	// DifferingContent says what happens to a message whose ID, type and source are known with other content:
	// DifferingContentLog, which takes it for a duplicate, or DifferingContentReject, which makes its record bad, to be
	// treated by BadRecords. The content stored first counts in either case, and each is counted and logged with its ID.
	// Do not use Reject where a producer may build a message again when it sends it again, with a time of sending in it,
	// say: each would be kept. Default DifferingContentLog (contract 4.3).
	DifferingContent DifferingContentPolicy `yaml:"differing_content" env:"DIFFERING_CONTENT"`
	// BadRecords says what happens to records of which no message can be made: BadRecordStore, BadRecordDeadLetter,
	// which needs a DeadLetterTopic in the Kafka config of each channel that has it, or BadRecordHalt. Do not use Halt
	// unless someone is there to act: the partition stands still until then. Do not use DeadLetter to be rid of them:
	// AcceptRejected only knows stored records. Default BadRecordStore (contract 7.4).
	BadRecords BadRecordPolicy `yaml:"bad_records" env:"BAD_RECORDS"`
	// HaltAtBadRecords is how many records of one partition in one batch must be bad, and more than half of its records
	// there with them, to halt the partition under any BadRecords: so many mean a wrong schema or configuration, which
	// is better fixed before the rest is read. The other partitions of the batch go on. Unrouted records don't count as
	// bad, and rejected tombstones (envelope.TombstoneReject) do not count at all. Default 20; 0 never halts for that. Do
	// not set it to a few: on a quiet topic a batch is a record or two. Do not rely on it in Direct channels, whose
	// batches are always one record (contract 7.1).
	HaltAtBadRecords int `yaml:"halt_at_bad_records" env:"HALT_AT_BAD_RECORDS"`
	// OnGap says what happens where records that should be read next are gone, because retention removed them or the
	// topic was deleted and created again: GapHalt, or GapContinue, which keeps a row (Inbox.Gaps) and continues with
	// the first record of the log. A topic that was created again, or whose log was truncated, is then read from its
	// start, and records that were read before are known by their IDs: Retention must be longer than the topic keeps
	// its records, or they are processed again. Do not use Continue where missing records must be looked into before
	// the later ones are processed. Default GapHalt (contract 7.5).
	//
	// A halt at a topic that was created again may not survive a restart or a rebalance: brokers forget a group's offsets
	// when its topic is deleted, and reading then begins at StartOffset.
	OnGap GapPolicy `yaml:"on_gap" env:"ON_GAP"`
}

// DefaultOptions returns the defaults of the contract.
func DefaultOptions() Options {
	return Options{Unrouted: UnroutedIgnore, DifferingContent: DifferingContentLog, BadRecords: BadRecordStore,
		HaltAtBadRecords: 20, OnGap: GapHalt}
}

// Validate joins an error for every option that is out of range. Each one names the option, its
// value and what is allowed.
func (o Options) Validate() error {
	problems := []error{
		oneOf("Unrouted", o.Unrouted, "ignore, reject or halt", UnroutedIgnore, UnroutedReject, UnroutedHalt),
		oneOf("DifferingContent", o.DifferingContent, "log or reject", DifferingContentLog, DifferingContentReject),
		oneOf("BadRecords", o.BadRecords, "store, dead_letter_topic or halt", BadRecordStore, BadRecordDeadLetter,
			BadRecordHalt),
	}
	if o.HaltAtBadRecords < 0 {
		problems = append(problems, fmt.Errorf("option HaltAtBadRecords = %d: must be 0 (never) or more", o.HaltAtBadRecords))
	}
	problems = append(problems, oneOf("OnGap", o.OnGap, "halt or continue", GapHalt, GapContinue))
	return errors.Join(problems...)
}

func oneOf[T ~string](option string, value T, allowed string, values ...T) error {
	if slices.Contains(values, value) {
		return nil
	}
	return fmt.Errorf("option %s = %q: must be %s", option, value, allowed)
}
