package health_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

var (
	noon   = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	errBad = errors.New("boom")
)

// well returns the facts of a healthy process that has run for a day and was sampled just now.
func well() *health.Facts {
	return &health.Facts{Now: noon, Running: true, ProgressAt: noon.Add(-time.Hour),
		Limits: health.Limits{DegradedAfter: 2 * time.Minute, UnhealthyAfter: 5 * time.Minute, MaxDueAge: 15 * time.Minute,
			MaxPoisonRate: 0.1, PoisonWindow: 5 * time.Minute, LongRunning: 5 * time.Minute},
		Sample: health.Sample{Began: noon.Add(-24 * time.Hour), At: noon}}
}

// judged returns the reasons of the facts that change makes of a healthy process, one line each.
func judged(change func(f *health.Facts)) []string {
	f := well()
	change(f)
	lines := []string{}
	reasons, _ := health.Judge(f)
	for _, r := range reasons {
		state := map[bool]string{false: "degraded", true: "unhealthy"}[r.Unhealthy]
		lines = append(lines, fmt.Sprintf("%s %s %s%s %v: %s", state, r.Code, r.Channel, r.HandlerKey, r.MessageIDs, r.Detail))
	}
	return lines
}

// due makes work due for so long without the end of an attempt.
func due(long time.Duration) func(f *health.Facts) {
	return func(f *health.Facts) { f.Sample.DueSince, f.ProgressAt = noon.Add(-long), noon.Add(-2*long) }
}

// standing makes a partition of an Inline channel stand still for so long.
func standing(f *health.Facts, long time.Duration) {
	f.Consumers = []health.Channel{{Name: "c", Err: errBad, Stalled: []time.Time{noon, noon.Add(-long)}}}
}

// TestFactsAreJudged proves contract 11.5: for each reason when it is there, how bad it is, and what it says.
func TestFactsAreJudged(t *testing.T) {
	call := health.Call{HandlerKey: "h", MessageIDs: []string{"m1", "m2"}, Since: noon.Add(-time.Hour)}
	failing := health.FailingHandler{Topic: "t", Partition: 2, HandlerKey: "h", MessageID: "m", Failures: 1, Err: errBad}
	type facts = func(f *health.Facts)
	backlog := func(b telemetry.HandlerSample) facts {
		return func(f *health.Facts) { f.Sample.Handlers = []telemetry.HandlerSample{b} }
	}
	old := telemetry.HandlerSample{HandlerKey: "h", Due: 1, OldestDue: noon.Add(-15 * time.Minute)}
	found := map[string]bool{}
	for _, c := range []struct {
		name   string
		change facts
		want   []string // state, code, channel or handler key, message IDs and the beginning of the detail
	}{
		{"nothing", func(*health.Facts) {}, nil},

		{"closed pool", func(f *health.Facts) { f.Sample.Err = errors.New("sql: database is closed") }, []string{
			"unhealthy closed_pool  []: the application has closed the database's pool",
			"degraded database  []: the backlog cannot be read since 0001-01-01T00:00:00Z: sql: database is closed"}},
		{"closed pool that the processor met", func(f *health.Facts) {
			f.Errors = map[string]error{"claiming": errors.New("sql: database is closed")}
		}, []string{"unhealthy closed_pool  []: ", "degraded database  []: claiming: sql: database is closed"}},
		{"closed pool that a consumer met", func(f *health.Facts) {
			f.Consumers = []health.Channel{{Name: "c", Err: errors.New("sql: database is closed")}}
		}, []string{"unhealthy closed_pool  []: ", "degraded consumer c []: sql: database is closed"}},

		{"halted partitions", func(f *health.Facts) {
			f.Consumers = []health.Channel{{Name: "c", Halted: []error{errBad}, Halts: 10_000}}
		}, []string{"unhealthy halted_partition c []: boom",
			"unhealthy halted_partition c []: 9999 more partitions are halted"}},

		{"errors of the processor", func(f *health.Facts) {
			f.Errors = map[string]error{"listening": errBad, "claiming": errBad}
		}, []string{"degraded database  []: claiming: boom", "degraded database  []: listening: boom"}},
		{"failed sample", func(f *health.Facts) { f.Sample.Err, f.Sample.ErrSince = errBad, noon },
			[]string{"degraded database  []: the backlog cannot be read since 2026-01-01T12:00:00Z: boom"}},
		{"failed sample of a process that does not run", func(f *health.Facts) { f.Running, f.Sample.Err = false, errBad }, nil},

		{"outage", func(f *health.Facts) { f.Synchronous = map[string]health.Synchronous{"c": {Outage: errBad}} },
			[]string{"degraded outage c []: attempts cannot be made or finished: boom"}},

		{"no progress for less than the limit", due(2*time.Minute - 1), nil},
		{"no progress", due(2 * time.Minute), []string{
			"degraded no_progress  []: work is due and no attempt has ended since 2026-01-01T11:58:00Z; 0 calls are running"}},
		{"no progress for long", due(5 * time.Minute), []string{"unhealthy no_progress  []: "}},
		{"progress just now", func(f *health.Facts) { due(time.Hour)(f); f.ProgressAt = noon }, nil},
		{"no progress since the start just now", func(f *health.Facts) { due(time.Hour)(f); f.Sample.Began = noon }, nil},
		{"no progress of a process that stands by", func(f *health.Facts) { due(time.Hour)(f); f.Standby = true }, nil},
		{"no progress of a process that does not run", func(f *health.Facts) { due(time.Hour)(f); f.Running = false }, nil},

		{"consumer", func(f *health.Facts) { f.Consumers = []health.Channel{{Name: "c", Err: errBad}} },
			[]string{"degraded consumer c []: boom"}},
		{"consumer that stands still", func(f *health.Facts) { standing(f, 5*time.Minute-1) },
			[]string{"degraded consumer c []: boom"}},
		{"consumer that stands still for long", func(f *health.Facts) { standing(f, 5*time.Minute) },
			[]string{"unhealthy consumer c []: boom"}},
		{"consumer that stands still because of an outage", func(f *health.Facts) {
			standing(f, time.Hour)
			f.Synchronous = map[string]health.Synchronous{"c": {Outage: errBad}}
		}, []string{"degraded outage c []: ", "degraded consumer c []: boom"}},
		{"consumer whose outage has just ended", func(f *health.Facts) {
			standing(f, time.Hour)
			f.Synchronous = map[string]health.Synchronous{"c": {ExcusedUntil: noon}}
		}, []string{"degraded consumer c []: boom"}},
		{"consumer that waits for a paused handler", func(f *health.Facts) {
			standing(f, time.Hour)
			f.Synchronous = map[string]health.Synchronous{"c": {ExcusedUntil: noon, Paused: []string{"h"}}}
		}, []string{`degraded consumer c []: boom; its partitions wait for paused handlers ["h"]`}},

		{"open circuit", func(f *health.Facts) {
			f.OpenCircuits = []health.OpenCircuit{{HandlerKey: "h", Since: noon, ProbeAt: noon.Add(time.Minute), Err: errBad}}
		}, []string{
			"degraded open_circuit h []: its circuit breaker is open since 2026-01-01T12:00:00Z, the next probe is at 2026-01-01T12:01:00Z; last failure: boom"}},
		{"circuit with a probe", func(f *health.Facts) {
			f.OpenCircuits = []health.OpenCircuit{{HandlerKey: "h", Since: noon, Err: errBad}}
		}, []string{
			"degraded open_circuit h []: its circuit breaker is open since 2026-01-01T12:00:00Z, a probe is running; last failure: boom"}},
		{"stuck calls", func(f *health.Facts) { f.Stuck = map[string]int{"h": 3} },
			[]string{"degraded stuck_handler h []: 3 calls ignore their cancelled context"}},

		{"call that runs for less than the limit", func(f *health.Facts) {
			f.Calls = []health.Call{{HandlerKey: "h", MessageIDs: []string{"m"}, Since: noon.Add(1 - 5*time.Minute)}}
		}, nil},
		{"call that does not return", func(f *health.Facts) { f.Calls, f.WorkerID = []health.Call{call}, "w" }, []string{
			`degraded long_running h [m1 m2]: a call with message "m1" and 1 more has not returned for 1h, since 2026-01-01T11:00:00Z, in worker w; it has no timeout: `}},
		{"calls that do not return", func(f *health.Facts) {
			f.Calls = []health.Call{{HandlerKey: "h", MessageIDs: []string{"m0"}, Since: noon.Add(-2 * time.Hour), Timeout: time.Hour},
				call, {HandlerKey: "slow", MessageIDs: []string{"s"}, Since: noon.Add(-time.Hour), Timeout: 2 * time.Hour}}
		}, []string{
			`degraded long_running h [m0 m1 m2]: a call with message "m0" has not returned for 2h, since 2026-01-01T10:00:00Z, nor have 1 other calls; its timeout of 1h is over: `}},
		{"call that does not return, without a limit", func(f *health.Facts) {
			f.Calls, f.Limits.LongRunning = []health.Call{call}, 0
		}, nil},

		{"failing handler", func(f *health.Facts) {
			f.Synchronous = map[string]health.Synchronous{"c": {Failing: []health.FailingHandler{failing, failing}}}
		}, []string{
			`degraded failing_handler ch []: fails with 1 other messages, too; t/2: failed once with message "m", running again: boom`}},

		{"old due status", backlog(old), []string{
			"degraded oldest_due_age h []: its oldest due status is due since 2026-01-01T11:45:00Z"}},
		{"old due status of a paused handler", func(f *health.Facts) {
			paused := old
			paused.Paused = true
			backlog(paused)(f)
		}, nil},
		{"old due status in a process that is new", func(f *health.Facts) {
			backlog(old)(f)
			f.Sample.Began = noon.Add(-time.Minute)
		}, nil},
		{"old due status without a limit", func(f *health.Facts) { backlog(old)(f); f.Limits.MaxDueAge = 0 }, nil},

		{"few poisoned", func(f *health.Facts) { f.Poisoned, f.Ended = 9, 9 }, nil},
		{"a tenth poisoned", func(f *health.Facts) { f.Poisoned, f.Ended = 10, 100 }, nil},
		{"many poisoned", func(f *health.Facts) { f.Poisoned, f.Ended = 10, 99 },
			[]string{"degraded poison_rate  []: 10 of 99 statuses that ended within 5m are poisoned"}},

		{"unknown handler", func(f *health.Facts) { f.UnknownKeys = []string{"h"} },
			[]string{"degraded unknown_handler h []: statuses are pending, and no program lists the handler"}},
		{"barred role", func(f *health.Facts) { f.BarredRoles, f.Role = []string{"a", "b"}, "me" },
			[]string{"degraded barred_role  []: workers use the database role a, b, whose sessions"}},
		{"clock ahead", func(f *health.Facts) { f.ClockAhead = 2 * time.Hour },
			[]string{"degraded clock_skew  []: this machine's clock is 2h ahead of the database's"}},
		{"clock behind", func(f *health.Facts) { f.ClockAhead = -2 * time.Hour },
			[]string{"degraded clock_skew  []: this machine's clock is 2h behind the database's"}},
		{"cleanup", func(f *health.Facts) { f.CleanupHeld, f.CleanupHeldSince, f.CleanupErr = errBad, noon, errBad },
			[]string{"degraded cleanup  []: cleanup is held since 2026-01-01T12:00:00Z: boom", "degraded cleanup  []: boom"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			reasons := judged(c.change)
			require.Len(t, reasons, len(c.want), reasons)
			for i, want := range c.want {
				require.Contains(t, reasons[i], want)
			}
			for _, line := range reasons {
				found[strings.Fields(line)[1]] = true
			}
		})
	}
	require.ElementsMatch(t, health.Codes(), slices.Collect(maps.Keys(found)), "each reason is judged above")
}

// TestReasonsAreRanked proves contract 11.5: the worst come first, then those that may cause others.
func TestReasonsAreRanked(t *testing.T) {
	f := well()
	due(5 * time.Minute)(f)
	standing(f, 0)
	f.Consumers = append(f.Consumers, health.Channel{Name: "d", Halts: 1})
	f.Errors = map[string]error{"claiming": errBad}
	f.OpenCircuits, f.UnknownKeys = []health.OpenCircuit{{HandlerKey: "h"}}, []string{"old"}
	f.CleanupErr = errBad
	f.Poisoned, f.Ended = 10, 10
	reasons, _ := health.Judge(f)
	var codes []string
	for _, r := range reasons {
		codes = append(codes, r.Code)
	}
	require.Equal(t, []string{health.Halted, health.NoProgress, health.Database, health.Consumer, health.Circuit,
		health.PoisonRate, health.UnknownHandler, health.Cleanup}, codes)
	require.Less(t, health.Rank(health.Cleanup), health.Rank("newer"))
	require.Equal(t, "a call does not return", health.Note(health.LongRunning))
	require.Empty(t, health.Note(health.Cleanup)+health.Note("newer"))
}

// TestRestartIsRequestedOnlyIfItHelps proves contract 11.5.
func TestRestartIsRequestedOnlyIfItHelps(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *health.Facts)
		live   bool
	}{
		"healthy":      {func(*health.Facts) {}, true},
		"closed pool":  {func(f *health.Facts) { f.Sample.Err = errors.New("sql: database is closed"); f.Busy = 1 }, false},
		"no progress":  {func(*health.Facts) {}, false},
		"for a while":  {due(2 * time.Minute), true},
		"calls run":    {func(f *health.Facts) { f.Busy = 1 }, true},
		"known error":  {func(f *health.Facts) { f.Errors = map[string]error{"claiming": errBad} }, true},
		"stuck":        {func(f *health.Facts) { f.Stuck = map[string]int{"h": 1} }, true},
		"halted":       {func(f *health.Facts) { f.Consumers = []health.Channel{{Halts: 1}}; f.ProgressAt = noon }, true},
		"stands still": {func(f *health.Facts) { standing(f, time.Hour); f.ProgressAt = noon }, true},
	} {
		f := well()
		if name != "healthy" {
			due(5 * time.Minute)(f)
		}
		c.change(f)
		_, live := health.Judge(f)
		require.Equal(t, c.live, live, name)
	}
}

// TestProgressIsExpectedOnlyOfClaimableWork proves contract 11.5.
func TestProgressIsExpectedOnlyOfClaimableWork(t *testing.T) {
	s := health.Sample{Began: noon}
	take := func(minute int, queued int, standby bool, b ...telemetry.HandlerSample) time.Time {
		s.Succeed(noon.Add(time.Duration(minute)*time.Minute), b, queued, standby)
		return s.DueSince
	}
	require.Zero(t, take(1, 0, false, telemetry.HandlerSample{}, telemetry.HandlerSample{Due: 1, Paused: true},
		telemetry.HandlerSample{Due: 1, Broken: true}))
	require.Equal(t, noon.Add(2*time.Minute), take(2, 0, false, telemetry.HandlerSample{Due: 1}))
	require.Equal(t, noon.Add(2*time.Minute), take(3, 1, false), "what waits in memory counts, too")
	require.Zero(t, take(4, 1, true, telemetry.HandlerSample{Due: 1}), "it stands by")
	require.Equal(t, noon.Add(5*time.Minute), take(5, 0, false, telemetry.HandlerSample{Due: 1}), "since its takeover")
	s.Fail(noon.Add(6*time.Minute), errBad)
	s.Fail(noon.Add(7*time.Minute), errBad)
	require.Zero(t, s.DueSince, "nobody knows")
	require.Equal(t, noon.Add(6*time.Minute), s.ErrSince)
	require.Equal(t, noon.Add(5*time.Minute), s.At)
	require.Equal(t, noon.Add(8*time.Minute), take(8, 0, false, telemetry.HandlerSample{Due: 1}))
	require.NoError(t, s.Err)
}
