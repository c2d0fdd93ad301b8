// Package telemetry holds everything that an inbox counts and measures, and the names used for it: metrics and traces
// through OpenTelemetry's API, and the fields of the log (contract 12).
package telemetry

import (
	"cmp"
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
	Dispatched
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

// Counters count the events of one inbox of this process since it was made. They are safe for concurrent use. The truth
// is in the database. The zero value counts, too, but distinguishes no handlers and no channels.
type Counters struct {
	totals [events]atomic.Int64

	handlers, channels           counterSets
	otherHandlers, otherChannels counterSet // of undeclared handlers and channels
}

// counterSets are counters by handler key or channel. Several names may share one part.
type counterSets map[string]*counterSet

type counterSet struct {
	label  string
	counts [events]atomic.Int64
}

// NewCounters returns Counters for these channels and handlers. Each handler is given by its keys and is shown under
// its first one.
func NewCounters(channels []string, handlerKeys [][]string) *Counters {
	c := &Counters{handlers: counterSets{}, channels: counterSets{}}
	for _, channel := range channels {
		c.channels[channel] = &counterSet{label: channel}
	}
	for _, keys := range handlerKeys {
		its := &counterSet{label: keys[0]}
		for _, key := range keys {
			c.handlers[key] = its
		}
	}
	return c
}

// OfChannel counts n more events of a channel.
func (c *Counters) OfChannel(e Event, channel string, n int) {
	c.count(e, cmp.Or(c.channels[channel], &c.otherChannels), n)
}

// OfHandler counts n more events of the handler with that key.
func (c *Counters) OfHandler(e Event, handlerKey string, n int) {
	c.count(e, cmp.Or(c.handlers[handlerKey], &c.otherHandlers), n)
}

func (c *Counters) count(e Event, its *counterSet, n int) {
	c.totals[e].Add(int64(n))
	its.counts[e].Add(int64(n))
}

// OfInbox counts n more events that are neither a channel's nor a handler's.
func (c *Counters) OfInbox(e Event, n int) { c.totals[e].Add(int64(n)) }

// Load returns how many events of a kind there were.
func (c *Counters) Load(e Event) int64 { return c.totals[e].Load() }

// each calls observe with the number of events of each channel or each handler, in the order of their names. Events of
// undeclared ones follow as Other, unless there are none.
func (c *Counters) each(e Event, observe func(label string, n int64)) {
	of, other := c.channels, &c.otherChannels
	switch eventInstruments[e].by {
	case wholeInbox:
		observe("", c.Load(e))
		return
	case perHandler:
		of, other = c.handlers, &c.otherHandlers
	}
	seen := map[*counterSet]bool{}
	for _, name := range slices.Sorted(maps.Keys(of)) {
		its := of[name]
		if seen[its] {
			continue
		}
		seen[its] = true
		observe(its.label, its.counts[e].Load())
	}
	if n := other.counts[e].Load(); n > 0 {
		observe(Other, n)
	}
}

// By returns how many events of a kind each declared handler (by its first key) or channel has. The kind decides
// whether events are counted by handler or by channel. Events of undeclared ones, if any, are under Other.
func (c *Counters) By(e Event) map[string]int64 {
	of := map[string]int64{}
	c.each(e, func(label string, n int64) { of[label] = n })
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
