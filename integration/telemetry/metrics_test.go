package telemetry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// mixed returns an inbox whose messages say what their handlers do.
func mixed(t *testing.T, d *inboxtest.Database, opts ...inbox.Option) (*inbox.Inbox, *fxtest.Clock) {
	t.Helper()
	do := func(_ context.Context, m inboxtest.Bytes) error {
		switch word, _, _ := strings.Cut(m.ID, "-"); word {
		case "fail":
			return errors.New("it failed")
		case "panic":
			panic("it panicked")
		case "poison":
			return handler.Poison(errors.New("it is bad"))
		case "snooze":
			return handler.Snooze(time.Hour)
		}
		return nil
	}
	clock := fxtest.NewClock(inboxtest.Noon)
	opts = append([]inbox.Option{inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
		inbox.Channel("c", inbox.On("t",
			inboxtest.Do("mail", do, handler.LegacyKeys("post")),
			inboxtest.Tx("stock", func(ctx context.Context, _ *gorm.DB, m inboxtest.Bytes) error { return do(ctx, m) }))),
		inbox.Channel("quiet", inbox.On("t", inboxtest.Do("idle", inboxtest.Nothing)))}, opts...)
	return inboxtest.New(t, d.DB, opts...), clock
}

var mix = []string{"good-1", "good-2", "fail-1", "panic-1", "poison-1", "snooze-1"}

func TestMetricsAgreeWithTheCounters(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		m, provider := newMeter(t)
		ib, _ := mixed(t, d, provider)
		inboxtest.Accept(t, ib, mix...)
		inboxtest.Accept(t, ib, "good-1")
		other := inboxtest.Message("good-2")
		other.Content = []byte("other")
		for _, message := range []handler.RawMessage{other, {Channel: "c", Type: "who", ID: "unrouted"},
			{Channel: "c", Type: "t"}, {Channel: "where", Type: "t", ID: "w"}} {
			_, _ = ib.Accept(t.Context(), message)
		}
		inboxtest.Process(t, ib)

		collected, counted := m.collect(t), ib.Counters()
		for _, metric := range telemetry.Metrics() {
			if metric.Counts != "" {
				require.EqualValues(t, field(counted, metric.Counts), sum(collected[metric.Name]), metric.Name)
			}
		}
		require.Equal(t, map[string]float64{"c": 6, "quiet": 0}, by(collected["inbox.messages.accepted"], "inbox.channel"))
		require.Equal(t, map[string]float64{"c": 2, "quiet": 0}, by(collected["inbox.messages.duplicates"], "inbox.channel"))
		require.Equal(t, map[string]float64{"c": 1, "quiet": 0}, by(collected["inbox.messages.unrouted"], "inbox.channel"))
		require.Equal(t, map[string]float64{"c": 1, "quiet": 0, "_OTHER": 1},
			by(collected["inbox.messages.invalid"], "inbox.channel"), "a channel that is not declared has no series")
		require.Equal(t, map[string]float64{"mail": 2, "stock": 2, "idle": 0},
			by(collected["inbox.attempts.processed"], "inbox.handler.key"))
		require.Equal(t, map[string]float64{"mail": 3, "stock": 3, "idle": 0},
			by(collected["inbox.attempts.failed"], "inbox.handler.key"))
		require.Equal(t, map[string]float64{"mail": 1, "stock": 1, "idle": 0},
			by(collected["inbox.statuses.poisoned"], "inbox.handler.key"))
		require.Equal(t, map[string]float64{"mail": 1, "stock": 1, "idle": 0},
			by(collected["inbox.attempts.snoozed"], "inbox.handler.key"))
	})
}

func TestMetricsHaveNoAttributesFromMessages(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		m, provider := newMeter(t)
		ib, _ := mixed(t, d, provider)
		for _, id := range mix {
			message := inboxtest.Message(id)
			message.Transport, message.Source = "strange transport", "strange source"
			_, err := ib.Accept(t.Context(), message)
			require.NoError(t, err)
		}
		inboxtest.Process(t, ib)
		allowed := map[string][]string{
			"inbox.name": {"test"}, "inbox.channel": {"c", "quiet"}, "inbox.handler.key": {"mail", "stock", "idle"},
			"inbox.outcome": {"completed", "failed", "poisoned", "snoozed"}, "error.type": {"_OTHER", "panic"},
			"messaging.system": {"inbox"}, "messaging.operation.name": {"process"},
			"inbox.cleanup.table": {"messages", "statuses", "markers", "audit", "rejected", "workers", "leases"},
		}
		for name, points := range m.collect(t) {
			for _, p := range points {
				for _, a := range p.attributes.ToSlice() {
					require.Contains(t, allowed[string(a.Key)], a.Value.String(), "%s: %s", name, a.Key)
				}
			}
		}
	})
}

func TestDurationsAreMeasuredInSeconds(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		m, provider := newMeter(t)
		ib, clock := mixed(t, d, provider)
		inboxtest.Accept(t, ib, mix...)
		clock.Advance(90 * time.Second)
		inboxtest.Process(t, ib)
		collected := m.collect(t)

		accepts := collected["inbox.accept.duration"]
		require.Len(t, accepts, 1)
		require.Equal(t, "c", accepts[0].of("inbox.channel"))
		require.EqualValues(t, 1, accepts[0].count, "one accept of six messages")
		require.Greater(t, accepts[0].value, 0.0)
		require.Less(t, accepts[0].value, 30.0)

		for _, p := range collected["inbox.wait.duration"] {
			require.EqualValues(t, 6, p.count)
			require.InDelta(t, 6*90, p.value, 0.1, "of each of six messages")
		}
		require.Len(t, collected["inbox.wait.duration"], 2)
		runs := map[string]uint64{}
		for _, p := range collected["messaging.process.duration"] {
			runs[p.of("inbox.handler.key")+" "+p.of("inbox.outcome")+" "+p.of("error.type")] += p.count
			require.Contains(t, p.bounds, 0.005)
			require.Contains(t, p.bounds, 300.0)
		}
		require.Equal(t, map[string]uint64{
			"mail completed ": 2, "mail failed _OTHER": 1, "mail failed panic": 1, "mail poisoned _OTHER": 1, "mail snoozed ": 1,
			"stock completed ": 2, "stock failed _OTHER": 1, "stock failed panic": 1, "stock poisoned _OTHER": 1,
			"stock snoozed ": 1,
		}, runs)

		clock.Advance(5 * time.Second) // includes the backoff: a retry's age counts from when it was due
		inboxtest.Process(t, ib)
		for _, p := range m.collect(t)["inbox.wait.duration"] {
			require.EqualValues(t, 8, p.count)
			require.InDelta(t, 6*90+2*4, p.value, 2.1)
		}
	})
}

// TestCompletionsAreMeasuredFromAcceptance proves contract 12: retries are part of the time, and what does not complete
// has none.
func TestCompletionsAreMeasuredFromAcceptance(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		m, provider := newMeter(t)
		clock := fxtest.NewClock(inboxtest.Noon)
		failing := true
		ib := inboxtest.New(t, d.DB, provider, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(
				inboxtest.Do("plain", func(context.Context, inboxtest.Bytes) error {
					if failing {
						return errors.New("not yet")
					}
					return nil
				}, handler.LegacyKeys("old")),
				inboxtest.Tx("tx", func(context.Context, *gorm.DB, inboxtest.Bytes) error { return nil })))
		inboxtest.Accept(t, ib, "m1", "m2")
		clock.Advance(time.Minute)
		inboxtest.Process(t, ib)
		byHandler := func() (seconds, counts map[string]float64) {
			points := m.collect(t)["inbox.completion.duration"]
			counts = map[string]float64{}
			for _, p := range points {
				counts[p.of("inbox.handler.key")] += float64(p.count)
				require.Contains(t, p.bounds, 3600.0)
			}
			return by(points, "inbox.handler.key"), counts
		}
		seconds, counts := byHandler()
		require.Equal(t, map[string]float64{"tx": 2}, counts)
		require.InDelta(t, 2*60, seconds["tx"], 0.1)

		failing = false
		clock.Advance(time.Hour)
		inboxtest.Process(t, ib)
		seconds, counts = byHandler()
		require.Equal(t, map[string]float64{"tx": 2, "plain": 2}, counts)
		require.InDelta(t, 2*3660, seconds["plain"], 0.1)
	})
}

func TestCompletionsOfLocallyDispatchedMessagesAreMeasured(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		m, provider := newMeter(t)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), provider, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Start(t, ib)
		accepted := 0
		inboxtest.Eventually(t, func() bool {
			accepted++
			inboxtest.Accept(t, ib, fmt.Sprint(accepted))
			return ib.Counters().Dispatched > 0
		}, "an accept is dispatched locally")
		inboxtest.Eventually(t, func() bool { return ib.Counters().Processed == int64(accepted) }, "all are processed")
		points := m.collect(t)["inbox.completion.duration"]
		require.Len(t, points, 1)
		require.EqualValues(t, accepted, points[0].count)
		require.Less(t, points[0].value/float64(accepted), inboxtest.Patience.Seconds())
	})
}

func TestFailedAcceptsAreMeasuredSeparately(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		m, provider := newMeter(t)
		ib, _ := mixed(t, d, provider)
		inboxtest.Accept(t, ib, "good-1")
		inboxtest.Exec(t, d.DB, `ALTER TABLE inbox_messages RENAME TO away`)
		_, err := ib.Accept(t.Context(), inboxtest.Message("m1"))
		require.Error(t, err)
		var failed []string
		for _, accept := range m.collect(t)["inbox.accept.duration"] {
			failed = append(failed, accept.of("error.type"))
		}
		require.ElementsMatch(t, []string{"", "_OTHER"}, failed)
	})
}

func TestGaugesShowTheBacklogWhileTheInboxRuns(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		m, provider := newMeter(t)
		entered, leave := make(chan struct{}, 10), make(chan struct{})
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) { o.Clock = clock }), provider,
			inbox.Configure(func(o *inbox.Options) {
				o.SampleInterval = 5 * time.Millisecond
				o.Processor.Prefetch = 0
			}),
			inbox.Channel("c", inbox.On("t", inboxtest.Do("h", func(ctx context.Context, _ inboxtest.Bytes) error {
				entered <- struct{}{}
				select {
				case <-leave:
				case <-ctx.Done():
				}
				return ctx.Err()
			}, handler.Concurrency(1))), inbox.On("bad", inboxtest.Do("bad", func(context.Context, inboxtest.Bytes) error {
				return handler.Poison(errors.New("bad"))
			}))))
		require.NotContains(t, m.collect(t), "inbox.backlog.due", "not before the start")
		inboxtest.Accept(t, ib, "m1", "m2", "m3")
		_, err := ib.Accept(t.Context(), handler.RawMessage{Channel: "c", Type: "bad", ID: "bad"})
		require.NoError(t, err)
		require.NoError(t, ib.Start(t.Context()))
		inboxtest.Receive(t, entered, "the first")
		clock.Advance(90 * time.Second)
		gauges := func() map[string]map[string]float64 {
			collected := m.collect(t)
			shown := map[string]map[string]float64{}
			for _, name := range []string{"inbox.backlog.due", "inbox.backlog.processing", "inbox.backlog.poisoned",
				"inbox.backlog.waiting", "inbox.backlog.oldest_due.age"} {
				shown[name] = by(collected[name], "inbox.handler.key")
			}
			for _, name := range []string{"inbox.workers", "inbox.health"} {
				shown[name] = by(collected[name], "inbox.name")
			}
			return shown
		}
		want := map[string]map[string]float64{
			"inbox.backlog.due": {"h": 2, "bad": 0}, "inbox.backlog.processing": {"h": 1, "bad": 0},
			"inbox.backlog.poisoned": {"h": 0, "bad": 1},
			"inbox.backlog.waiting":  {"h": 0, "bad": 0}, "inbox.backlog.oldest_due.age": {"h": 90, "bad": 0},
			"inbox.workers": {"test": 1}, "inbox.health": {"test": 0},
		}
		require.Eventually(t, func() bool {
			return reflectEqual(want, gauges())
		}, inboxtest.Patience, 5*time.Millisecond, "%v", gauges())
		clock.Advance(10 * time.Second)
		require.EqualValues(t, 100, gauges()["inbox.backlog.oldest_due.age"]["h"], "ages grow between samples")
		close(leave)
		inboxtest.Eventually(t, func() bool { return gauges()["inbox.backlog.due"]["h"] == 0 }, "nothing is due")

		inboxtest.Exec(t, d.DB, `ALTER TABLE inbox_handler_statuses RENAME TO away`)
		inboxtest.Eventually(t, func() bool {
			_, shown := m.collect(t)["inbox.backlog.due"]
			return !shown
		}, "what is not known is not shown")
		clock.Advance(time.Minute)
		require.GreaterOrEqual(t, m.collect(t)["inbox.sample.age"][0].value, 60.0)
		inboxtest.Exec(t, d.DB, `ALTER TABLE away RENAME TO inbox_handler_statuses`)

		inboxtest.Eventually(t, func() bool { return ib.Counters().Processed == 3 }, "all is processed")
		require.NoError(t, ib.Stop(t.Context()))
		collected := m.collect(t)
		require.NotContains(t, collected, "inbox.backlog.due", "not after the stop")
		require.EqualValues(t, 3, sum(collected["inbox.attempts.processed"]), "counts stay for what is collected last")
	})
}

// TestOldestDueAgeIsTheDatabases proves contract 3.5: the clock of the process may be wrong.
func TestOldestDueAgeIsTheDatabases(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		metrics, metered := newMeter(t)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), metered, inbox.Configure(func(o *inbox.Options) {
			o.Clock, o.SampleInterval = clock.Offset(time.Hour), 10*time.Millisecond
		}), inboxtest.Handlers(inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error { return nil })))
		require.NoError(t, ib.Pause(t.Context(), "h"))
		inboxtest.Accept(t, ib, "m")
		inboxtest.Start(t, ib)
		age := func() float64 { return sum(metrics.collect(t)["inbox.backlog.oldest_due.age"]) }
		inboxtest.Eventually(t, func() bool { return age() > 0 }, "it is due")
		require.Less(t, age(), time.Minute.Seconds())
	})
}

// TestAgeOfTheSampleBeginsWithTheStart checks that the age of the sample counts from the start,
// even if no sample has ever succeeded.
func TestAgeOfTheSampleBeginsWithTheStart(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		m, provider := newMeter(t)
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) { o.Clock = clock }), provider,
			inbox.Configure(func(o *inbox.Options) {
				o.SampleInterval = 5 * time.Millisecond
			}), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		clock.Advance(time.Hour)
		// A row with a time that cannot be read, so that samples fail. MySQL takes no infinity.
		insert, started, heartbeat := "INSERT", "'infinity'", "CURRENT_TIMESTAMP"
		if d.DB.Name() == "mysql" {
			insert, started, heartbeat = "INSERT IGNORE", "UTC_TIMESTAMP(6)", "'0000-00-00'"
		}
		inboxtest.Exec(t, d.DB, fmt.Sprintf(`%s INTO inbox_workers
			(id, host, pid, handler_keys, started_at, heartbeat_at, health, consumers, database_role)
			VALUES ('00000000-0000-0000-0000-000000000001', 'h', 1, '{}', %s, %s, '[]', '[]', '')`, insert, started, heartbeat))
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return ib.Health().SampleErr != nil }, "the first sample fails")
		clock.Advance(10 * time.Minute)
		require.Zero(t, ib.Health().SampledAt)
		require.Equal(t, map[string]float64{"test": 600}, by(m.collect(t)["inbox.sample.age"], "inbox.name"))
		inboxtest.Exec(t, d.DB, `DELETE FROM inbox_workers WHERE host = 'h'`)
		inboxtest.Eventually(t, func() bool {
			return by(m.collect(t)["inbox.sample.age"], "inbox.name")["test"] == 0
		}, "the sample succeeds")
	})
}

func TestCountsAreForgottenWithTheInbox(t *testing.T) {
	m, provider := newMeter(t)
	func() {
		ib := inboxtest.New(t, fxtest.OpenDB(t), provider, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "m1")
		require.Contains(t, m.collect(t), "inbox.messages.accepted")
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		_, shown := m.collect(t)["inbox.messages.accepted"]
		return !shown
	}, inboxtest.Patience, 10*time.Millisecond)
}

func TestAcceptOfSeveralChannelsHasNoChannelLabel(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		m, provider := newMeter(t)
		ib, _ := mixed(t, d, provider)
		results, err := ib.Accept(t.Context(), inboxtest.Message("good-1"),
			handler.RawMessage{Channel: "quiet", Type: "t", ID: "good-2"})
		require.NoError(t, err)
		require.Len(t, results, 2)
		require.Equal(t, []string{"_OTHER"}, slices.Collect(maps.Keys(by(m.collect(t)["inbox.accept.duration"],
			"inbox.channel"))))
	})
}

// TestUndeclaredNamesGetNoTimeSeries checks that senders of messages cannot fill the metrics'
// storage with series. Names that the application has not declared get no series.
func TestUndeclaredNamesGetNoTimeSeries(t *testing.T) {
	reader := metric.NewManualReader()
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	counters := telemetry.NewCounters([]string{"c"}, [][]string{{"h"}})
	i, err := telemetry.New(telemetry.Config{Inbox: "test", Counters: counters, MeterProvider: provider})
	require.NoError(t, err)
	for _, name := range []string{"c", "sent 1", "sent 2"} {
		i.Accepted(t.Context(), name, time.Second, false)
		i.Accepted(t.Context(), name, time.Second, true)
		counters.OfChannel(telemetry.Unrouted, name, 1)
	}
	for _, key := range []string{"h", "gone 1", "gone 2"} {
		i.Waited(t.Context(), key, time.Second)
		i.Completed(t.Context(), key, time.Second)
		i.Ran(t.Context(), key, "kafka", "completed", "", time.Second)
		i.Ran(t.Context(), key, "kafka", "failed", "timeout", time.Second)
		counters.OfHandler(telemetry.Poisoned, key, 1)
	}
	all := meter{reader}.collect(t)
	for _, name := range []string{"inbox.accept.duration", "inbox.messages.unrouted"} {
		require.ElementsMatch(t, []string{"c", "_OTHER"}, slices.Collect(maps.Keys(by(all[name], "inbox.channel"))), name)
	}
	for _, name := range []string{"inbox.wait.duration", "inbox.completion.duration", "messaging.process.duration",
		"inbox.statuses.poisoned"} {
		require.ElementsMatch(t, []string{"h", "_OTHER"}, slices.Collect(maps.Keys(by(all[name], "inbox.handler.key"))), name)
	}
}
