// Package telemetry is the one place for what an inbox counts and measures, and
// for the names it goes by: metrics and traces through OpenTelemetry's API, and
// the fields of the log (contract 12).
package telemetry

import (
	"maps"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/gorm-inbox/inbox/handler"
)

// Event is something that is counted.
type Event int

// The events, by the names of the fields of handler.Counts.
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
	totals [events]atomic.Int64

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
	c.totals[e].Add(int64(n))
	its := c.channels[channel]
	if its == nil {
		its = &c.otherChannels
	}
	its.counts[e].Add(int64(n))
}

// OfHandler counts n more events of the handler with that key.
func (c *Counters) OfHandler(e Event, handlerKey string, n int) {
	c.totals[e].Add(int64(n))
	its := c.handlers[handlerKey]
	if its == nil {
		its = &c.otherHandlers
	}
	its.counts[e].Add(int64(n))
}

// OfInbox counts n more events that are neither a channel's nor a handler's.
func (c *Counters) OfInbox(e Event, n int) { c.totals[e].Add(int64(n)) }

// Load is how many events of a kind there were.
func (c *Counters) Load(e Event) int64 { return c.totals[e].Load() }

// each tells, in the order of their labels, how many events each channel or each
// handler has, and those that are not declared, as Other, unless that is 0.
func (c *Counters) each(e Event, tell func(label string, n int64)) {
	of, other := c.channels, &c.otherChannels
	switch eventInstruments[e].by {
	case wholeInbox:
		tell("", c.Load(e))
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

// Snapshot reads all counters, one after the other.
func (c *Counters) Snapshot() (s handler.Counts) {
	fields := reflect.ValueOf(&s).Elem()
	for e, d := range eventInstruments {
		fields.FieldByName(d.field).SetInt(c.Load(Event(e)))
	}
	return s
}
