package acceptor

import (
	"errors"
	"fmt"
	"time"
)

// UnroutedPolicy decides what happens to messages that no handler takes (contract 4.6).
type UnroutedPolicy string

// The policies for unrouted messages.
const (
	// UnroutedIgnore counts them and warns once per type.
	UnroutedIgnore UnroutedPolicy = "ignore"
	// UnroutedReject keeps their record as rejected, whatever BadRecords says.
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

// GapPolicy decides what happens where the records that should be read next no longer exist
// (contract 7.5).
type GapPolicy string

// The policies for gaps.
const (
	// GapHalt stops the partition before the gap. If the topic was created again, the halt does not
	// survive a restart or a rebalance: brokers forget a group's offsets when its topic is deleted,
	// and reading then begins anew at StartOffset.
	GapHalt GapPolicy = "halt"
	// GapContinue stores a row that says what is missing and continues after the gap.
	GapContinue GapPolicy = "continue"
)

// Options configure an Acceptor.
type Options struct {
	// Unrouted is what to do with messages that no handler takes. Default UnroutedIgnore.
	Unrouted UnroutedPolicy `yaml:"unrouted" env:"UNROUTED"`
	// DifferingContent is what to do with other content under a known ID. Default
	// DifferingContentLog.
	DifferingContent DifferingContentPolicy `yaml:"differing_content" env:"DIFFERING_CONTENT"`
	// BadRecords is what to do with bad records. Default BadRecordStore.
	BadRecords BadRecordPolicy `yaml:"bad_records" env:"BAD_RECORDS"`
	// HaltAtBadRecords is how many records of one partition in one accept must be bad to halt the
	// partition, instead of storing or dead-lettering them (contract 7.1). They must also be more
	// than half of the partition's records in that accept. The schema is then taken to be wrong and
	// not the records. Unrouted records do not count as bad, and bad tombstones without headers do
	// not count at all. Default 20. With 0 a partition never halts for this reason.
	HaltAtBadRecords int `yaml:"halt_at_bad_records" env:"HALT_AT_BAD_RECORDS"`
	// OnGap is what to do where records were removed before they were read, or a log begins anew.
	// Default GapHalt. With GapContinue, keep messages for longer (Retention) than the topic keeps
	// its records: records of a log that is read again from its start are recognized by stored IDs.
	OnGap GapPolicy `yaml:"on_gap" env:"ON_GAP"`
	// StatementTimeout bounds each transaction. Default 10 s.
	StatementTimeout time.Duration `yaml:"-" env:"-"`
	// Retention is the inbox's retention. Zero keeps messages indefinitely (contract 4.2).
	Retention time.Duration `yaml:"-" env:"-"`
}

// DefaultOptions returns the defaults of the contract.
func DefaultOptions() Options {
	return Options{Unrouted: UnroutedIgnore, DifferingContent: DifferingContentLog, BadRecords: BadRecordStore,
		HaltAtBadRecords: 20, OnGap: GapHalt,
		StatementTimeout: 10 * time.Second}
}

// Validate joins an error for every option that is out of range. Each one names the option, its
// value and what is allowed.
func (o Options) Validate() error {
	var all []error
	switch o.Unrouted {
	case UnroutedIgnore, UnroutedReject, UnroutedHalt:
	default:
		all = append(all, fmt.Errorf("option Unrouted is %q, allowed are ignore, reject and halt", o.Unrouted))
	}
	switch o.DifferingContent {
	case DifferingContentLog, DifferingContentReject:
	default:
		all = append(all, fmt.Errorf("option DifferingContent is %q, allowed are log and reject", o.DifferingContent))
	}
	switch o.BadRecords {
	case BadRecordStore, BadRecordDeadLetter, BadRecordHalt:
	default:
		all = append(all, fmt.Errorf("option BadRecords is %q, allowed are store, dead_letter_topic and halt", o.BadRecords))
	}
	if o.HaltAtBadRecords < 0 {
		all = append(all, fmt.Errorf("option HaltAtBadRecords is %d, allowed is 0 (never) or more", o.HaltAtBadRecords))
	}
	switch o.OnGap {
	case GapHalt, GapContinue:
	default:
		all = append(all, fmt.Errorf("option OnGap is %q, allowed are halt and continue", o.OnGap))
	}
	return errors.Join(all...)
}
