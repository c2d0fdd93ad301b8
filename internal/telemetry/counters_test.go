package telemetry

import (
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
)

// fieldOf repeats which field of handler.Counts belongs to which event.
var fieldOf = [events]string{
	Accepted: "Accepted", Duplicates: "Duplicates", DuplicateContentDiffers: "DuplicateContentDiffers",
	Unrouted: "Unrouted", Rejected: "Rejected",
	DeadLettered: "DeadLettered", Invalid: "Invalid", Gaps: "Gaps", EmptyRecords: "EmptyRecords",
	DuplicateSkipped: "DuplicateSkipped", MissingKey: "MissingKey",
	Dispatched: "Dispatched", Processed: "Processed", Failed: "Failed", Poisoned: "Poisoned", Snoozed: "Snoozed",
	Released:   "Released",
	Superseded: "Superseded", Fenced: "Fenced", Recovered: "Recovered", LockLost: "LockLost",
}

func TestEveryCounterHasASeparateInstrument(t *testing.T) {
	c := NewCounters([]string{"orders"}, [][]string{{"mail", "post"}})
	fields := reflect.TypeFor[handler.Counts]()
	require.EqualValues(t, events, fields.NumField())
	names := map[string]bool{}
	for e := range events {
		c.OfHandler(e, "mail", int(e)+1)
		d := eventInstruments[e]
		require.Equal(t, fieldOf[e], d.field)
		require.EqualValues(t, int(e)+1, reflect.ValueOf(c.Snapshot()).FieldByName(d.field).Int(), d.field)
		require.NotEmpty(t, d.name)
		require.NotEmpty(t, d.unit)
		require.NotEmpty(t, d.description)
		require.False(t, names[d.name], d.name)
		names[d.name] = true
	}
}

func TestPartsAddUpToTheTotal(t *testing.T) {
	counts := func(c *Counters, e Event) map[string]int64 {
		parts := map[string]int64{}
		c.each(e, func(label string, n int64) { parts[label] = n })
		return parts
	}
	c := NewCounters([]string{"orders", "events"}, [][]string{{"mail", "post"}, {"stock"}})
	require.Equal(t, map[string]int64{"mail": 0, "stock": 0}, counts(c, Processed), "series begin at zero")
	c.OfHandler(Processed, "mail", 1)
	c.OfHandler(Processed, "post", 2)
	c.OfHandler(Processed, "who", 4)
	require.Equal(t, map[string]int64{"mail": 3, "stock": 0, Other: 4}, counts(c, Processed),
		"a legacy key is its handler's")
	require.EqualValues(t, 7, c.Snapshot().Processed)

	c.OfChannel(DuplicateSkipped, "orders", 1)
	require.Equal(t, map[string]int64{"orders": 1, "events": 0}, counts(c, DuplicateSkipped))
	require.EqualValues(t, 1, c.Snapshot().DuplicateSkipped)
	c.OfInbox(LockLost, 2)
	require.Equal(t, map[string]int64{"": 2}, counts(c, LockLost))

	var zero Counters
	zero.OfHandler(Failed, "mail", 1)
	zero.OfChannel(Accepted, "orders", 1)
	require.Equal(t, map[string]int64{Other: 1}, counts(&zero, Failed))
	require.Equal(t, map[string]int64{Other: 1}, counts(&zero, Accepted))
}

func TestMetricsListsEveryInstrumentOnce(t *testing.T) {
	var names []string
	for _, m := range Metrics() {
		names = append(names, m.Name)
		require.Regexp(t, `^(inbox|messaging)\.[a-z_.]+$`, m.Name)
		require.Equal(t, m.Kind == "counter" && m.Name != cleanupDeleted.name, m.Counts != "")
	}
	slices.Sort(names)
	require.Len(t, slices.Compact(slices.Clone(names)), len(names))
}

func TestCountsAreByFirstHandlerKeyOrByChannel(t *testing.T) {
	c := NewCounters([]string{"orders"}, [][]string{{"mail", "post"}, {"stock"}})
	c.OfHandler(Processed, "post", 2)
	require.Equal(t, map[string]int64{"mail": 2, "stock": 0}, c.By(Processed))
	c.OfChannel(Unrouted, "orders", 3)
	require.Equal(t, map[string]int64{"orders": 3}, c.By(Unrouted))
}
