// Package telemetry is the one place for what an inbox counts and measures, and
// for the names it goes by: metrics and traces through OpenTelemetry's API, and
// the fields of the log (contract 12).
package telemetry

import (
	"maps"
	"slices"
	"sync/atomic"
)

// Event is something that is counted.
type Event int

// The events, which Counters has by these names.
const (
	Accepted Event = iota
	Duplicates
	DuplicateContentDiffers
	Unrouted
	Rejected
	DeadLettered
	Invalid
	Gaps
	EmptyRecords
	DuplicateSkipped
	MissingKey
	HandedOff
	Processed
	Failed
	Poisoned
	Snoozed
	Released
	Superseded
	Fenced
	Recovered
	LockLost

	events
)

// Counters count what one inbox of this process did since it was made. They
// are safe for concurrent use. They are not a ledger: after a crash they start
// from zero, the database is the truth. The zero value counts, too, but knows no
// handlers and no channels to tell apart.
type Counters struct {
	Accepted                atomic.Int64 // messages stored for the first time
	Duplicates              atomic.Int64 // known messages received again
	DuplicateContentDiffers atomic.Int64 // known IDs that came with other content (contract 4.3)
	Unrouted                atomic.Int64 // messages no handler takes (contract 4.6)
	Rejected                atomic.Int64 // bad records kept or halted at (contract 7.4)
	DeadLettered            atomic.Int64 // bad records that a dead-letter topic acknowledged (contract 7.4)
	Invalid                 atomic.Int64 // messages refused by Accept (contract 4.1)
	Gaps                    atomic.Int64 // gaps in partitions that were passed (contract 7.5)
	EmptyRecords            atomic.Int64 // records that hold no message: empty batches (contract 4.5)

	// Of channels that remember inline what was processed (contract 8.6).
	DuplicateSkipped atomic.Int64 // a handler's messages that it had processed before
	MissingKey       atomic.Int64 // times one had no ID to remember it by: refused before handlers run, else at each attempt of each

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

	handlers, channels           parts
	otherHandlers, otherChannels part // what is not declared
}

// parts are the counters of what is told apart, by name. Names may share one.
type parts map[string]*part

type part struct {
	label  string
	counts [events]atomic.Int64
}

// NewCounters makes Counters that tell the channels apart, and the handlers,
// each of which is known by its first key and may have others.
func NewCounters(channels []string, handlerKeys [][]string) *Counters {
	c := &Counters{handlers: parts{}, channels: parts{}}
	for _, channel := range channels {
		c.channels[channel] = &part{label: channel}
	}
	for _, keys := range handlerKeys {
		its := &part{label: keys[0]}
		for _, key := range keys {
			c.handlers[key] = its
		}
	}
	return c
}

// OfChannel counts n more events of a channel.
func (c *Counters) OfChannel(e Event, channel string, n int) {
	c.total(e).Add(int64(n))
	its := c.channels[channel]
	if its == nil {
		its = &c.otherChannels
	}
	its.counts[e].Add(int64(n))
}

// OfHandler counts n more events of the handler with that key.
func (c *Counters) OfHandler(e Event, handlerKey string, n int) {
	c.total(e).Add(int64(n))
	its := c.handlers[handlerKey]
	if its == nil {
		its = &c.otherHandlers
	}
	its.counts[e].Add(int64(n))
}

func (c *Counters) total(e Event) *atomic.Int64 {
	switch e {
	case Accepted:
		return &c.Accepted
	case Duplicates:
		return &c.Duplicates
	case DuplicateContentDiffers:
		return &c.DuplicateContentDiffers
	case Unrouted:
		return &c.Unrouted
	case Rejected:
		return &c.Rejected
	case DeadLettered:
		return &c.DeadLettered
	case Invalid:
		return &c.Invalid
	case Gaps:
		return &c.Gaps
	case EmptyRecords:
		return &c.EmptyRecords
	case DuplicateSkipped:
		return &c.DuplicateSkipped
	case MissingKey:
		return &c.MissingKey
	case HandedOff:
		return &c.HandedOff
	case Processed:
		return &c.Processed
	case Failed:
		return &c.Failed
	case Poisoned:
		return &c.Poisoned
	case Snoozed:
		return &c.Snoozed
	case Released:
		return &c.Released
	case Superseded:
		return &c.Superseded
	case Fenced:
		return &c.Fenced
	case Recovered:
		return &c.Recovered
	default:
		return &c.LockLost
	}
}

// load reads one total.
func (c *Counters) load(e Event) int64 {
	return c.total(e).Load()
}

// each tells, in the order of their labels, how many events each channel or each
// handler has, and those that are not declared, as Other, unless that is 0.
func (c *Counters) each(e Event, tell func(label string, n int64)) {
	of, other := c.channels, &c.otherChannels
	switch eventInstruments[e].by {
	case wholeInbox:
		tell("", c.load(e))
		return
	case perHandler:
		of, other = c.handlers, &c.otherHandlers
	}
	told := map[*part]bool{}
	for _, name := range slices.Sorted(maps.Keys(of)) {
		its := of[name]
		if told[its] {
			continue
		}
		told[its] = true
		tell(its.label, its.counts[e].Load())
	}
	if n := other.counts[e].Load(); n > 0 {
		tell(Other, n)
	}
}

// ByHandler is how many events of a kind each declared handler has, by its first
// key; what is not declared, if anything, is of Other.
func (c *Counters) ByHandler(e Event) map[string]int64 {
	of := map[string]int64{}
	if eventInstruments[e].by == perHandler {
		c.each(e, func(handlerKey string, n int64) { of[handlerKey] = n })
	}
	return of
}

// Snapshot is a copy of the counters at one moment.
type Snapshot struct {
	Accepted, Duplicates, DuplicateContentDiffers, Unrouted, Rejected, Invalid    int64
	DeadLettered, EmptyRecords                                                    int64
	Processed, Failed, Poisoned, Snoozed, Released, Superseded, Fenced, Recovered int64
	LockLost, Gaps, HandedOff                                                     int64
	DuplicateSkipped, MissingKey                                                  int64
}

// Snapshot reads all counters, one after the other.
func (c *Counters) Snapshot() Snapshot {
	return Snapshot{
		Accepted: c.load(Accepted), Duplicates: c.load(Duplicates), DuplicateContentDiffers: c.load(DuplicateContentDiffers),
		Unrouted: c.load(Unrouted), Rejected: c.load(Rejected), DeadLettered: c.load(DeadLettered), Invalid: c.load(Invalid),
		Processed: c.load(Processed), Failed: c.load(Failed), Poisoned: c.load(Poisoned), Snoozed: c.load(Snoozed),
		Released: c.load(Released), Superseded: c.load(Superseded), Fenced: c.load(Fenced), Recovered: c.load(Recovered),
		LockLost: c.load(LockLost), Gaps: c.load(Gaps), EmptyRecords: c.load(EmptyRecords), HandedOff: c.load(HandedOff),
		DuplicateSkipped: c.load(DuplicateSkipped), MissingKey: c.load(MissingKey),
	}
}
