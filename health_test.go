package inbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/processor"
)

// summary is the state and the codes of its reasons.
func summary(ib *inbox.Inbox) string {
	h := ib.Health()
	words := []string{string(h.State)}
	for _, r := range h.Reasons {
		if word := r.Code + r.HandlerKey; !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

// becomes waits until a sample taken from now on makes health so, and checks that
// the next ones leave it at that.
func becomes(t *testing.T, ib *inbox.Inbox, want string) inbox.Health {
	t.Helper()
	inboxtest.Eventually(t, func() bool {
		return summary(ib) == want
	}, fmt.Sprintf("health is %q, not %q", want, summary(ib)))
	return ib.Health()
}

// stays checks that health is so, also after further samples.
func stays(t *testing.T, ib *inbox.Inbox, clock *fxtest.Clock, want string) inbox.Health {
	t.Helper()
	clock.Advance(time.Millisecond)
	at := clock.Now()
	inboxtest.Eventually(t, func() bool { return !ib.Health().SampledAt.Before(at) }, "a sample was taken")
	require.Equal(t, want, summary(ib))
	return ib.Health()
}

// blocking runs until it is let go, each call once.
type blocking struct{ entered, leave chan struct{} }

func newBlocking() *blocking {
	return &blocking{make(chan struct{}, 100), make(chan struct{})}
}

func (b *blocking) handle(ctx context.Context, _ inboxtest.Bytes) error {
	b.entered <- struct{}{}
	select {
	case <-b.leave:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watchedInbox is one whose handlers may run for long by its clock: their calls are
// held by the test.
func watchedInbox(t *testing.T, d *inboxtest.Database, opts ...inbox.Option) (*inbox.Inbox, *fxtest.Clock) {
	t.Helper()
	clock := fxtest.NewClock(inboxtest.Noon)
	return inboxtest.New(t, d.DB, append([]inbox.Option{inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
		o.Clock = clock
		o.SampleInterval = 5 * time.Millisecond
		o.LongRunning = 0
	})},
		opts...)...), clock
}

func TestInactivityWhileWorkIsDueDegradesHealth(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		b := newBlocking()
		ib, clock := watchedInbox(t, d, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 1
			o.Processor.Prefetch = 0
			o.HealthMaxDueAge = 0
		}),
			inboxtest.Handlers(inboxtest.Do("h", b.handle)))
		require.Equal(t, "healthy", summary(ib))
		require.False(t, ib.Health().Ready(), "not started")
		require.True(t, ib.Health().Live())
		inboxtest.Accept(t, ib, "m1", "m2", "m3")
		clock.Advance(24 * time.Hour)
		inboxtest.Start(t, ib)
		inboxtest.Receive(t, b.entered, "m1")

		require.True(t, stays(t, ib, clock, "healthy").Ready(), "it has only just started")
		clock.Advance(2*time.Minute - 10*time.Millisecond)
		stays(t, ib, clock, "healthy")
		clock.Advance(time.Minute)
		degraded := becomes(t, ib, "degraded no_progress")
		require.True(t, degraded.Ready() && degraded.Live())
		require.Equal(t, 1, degraded.Processor.Busy)
		require.Equal(t, 2, degraded.Backlog[0].Due)
		require.Equal(t, 1, degraded.Backlog[0].Processing)
		clock.Advance(2*time.Minute + time.Second)
		unhealthy := becomes(t, ib, "unhealthy no_progress")
		require.False(t, unhealthy.Ready())
		require.True(t, unhealthy.Live(), "a handler runs: a restart would end it and fix nothing")

		b.leave <- struct{}{}
		inboxtest.Receive(t, b.entered, "m2")
		require.True(t, becomes(t, ib, "healthy").Ready(), "an attempt has ended")
		close(b.leave)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all is completed")
		clock.Advance(time.Hour)
		stays(t, ib, clock, "healthy")
	})
}

func TestPausedHandlersDoNotDegradeHealth(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib, clock := watchedInbox(t, d, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		require.NoError(t, ib.Pause(t.Context(), "h"))
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool {
			b := ib.Health().Backlog
			return len(b) == 1 && b[0].Paused
		}, "the pause is known")
		inboxtest.Accept(t, ib, "m1")
		inboxtest.Eventually(t, func() bool { return ib.Health().Backlog[0].Due == 1 }, "it is seen to be due")
		clock.Advance(time.Hour)
		require.Equal(t, 1, stays(t, ib, clock, "healthy").Backlog[0].Due)
	})
}

func TestOldDueStatusDegradesHealthWhileOthersProgress(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		b := newBlocking()
		defer close(b.leave)
		done := make(chan string, 10)
		ib, clock := watchedInbox(t, d, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Prefetch = 0
		}), inbox.Channel("c",
			inbox.On("slow", inboxtest.Do("slow", b.handle, handler.Concurrency(1))),
			inbox.On("t", inboxtest.Do("quick", func(_ context.Context, m inboxtest.Bytes) error { done <- m.ID; return nil }))))
		inboxtest.Start(t, ib)
		for _, id := range []string{"s1", "s2"} {
			_, err := ib.Accept(t.Context(), handler.RawMessage{Channel: "c", Type: "slow", ID: id})
			require.NoError(t, err)
		}
		inboxtest.Receive(t, b.entered, "s1")
		for i := range 15 {
			stays(t, ib, clock, "healthy")
			clock.Advance(time.Minute)
			inboxtest.Accept(t, ib, fmt.Sprint("q", i))
			inboxtest.Receive(t, done, "a quick one")
			// The attempt counts as progress only once its result is stored. Until then health may still be judged by an
			// older sample, which is healthy, and the next minute would be one too many without progress.
			inboxtest.Eventually(t, func() bool { return ib.Counters().Processed == int64(i+1) }, "its result is stored")
		}
		h := becomes(t, ib, "degraded oldest_due_ageslow")
		require.True(t, h.Ready(), "others would get its share")
	})
}

func TestPoisonRateDegradesHealthForItsWindow(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		bad := errors.New("bad")
		ib, clock := watchedInbox(t, d, inboxtest.Handlers(inboxtest.Do("h",
			func(_ context.Context, m inboxtest.Bytes) error {
				if strings.HasPrefix(m.ID, "bad") {
					return handler.Poison(bad)
				}
				return nil
			})))
		inboxtest.Start(t, ib)
		stays(t, ib, clock, "healthy")
		poison := func(from, to int) {
			for i := from; i < to; i++ {
				inboxtest.Accept(t, ib, fmt.Sprint("bad", i))
			}
			inboxtest.Eventually(t, func() bool { return ib.Counters().Poisoned == int64(to) }, "they are poisoned")
		}
		poison(0, 9)
		stays(t, ib, clock, "healthy") // so few are no rate
		poison(9, 10)
		require.True(t, stays(t, ib, clock, "degraded poison_rate").Ready())
		for i := range 100 {
			inboxtest.Accept(t, ib, fmt.Sprint("good", i))
		}
		inboxtest.Eventually(t, func() bool { return ib.Counters().Processed == 100 }, "they are processed")
		stays(t, ib, clock, "healthy") // a tenth may be
		poison(10, 20)
		stays(t, ib, clock, "degraded poison_rate")
		clock.Advance(5 * time.Minute)
		stays(t, ib, clock, "healthy")
	})
}

// Contract 11.5: where statuses are tried many times before they are poisoned,
// those attempts are no statuses that ended well.
func TestPoisonRateCountsStatusesNotAttempts(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib, clock := watchedInbox(t, d, inboxtest.Handlers(inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error {
			return handler.RetryAfter(time.Second, errors.New("away"))
		}, handler.MaxRetries(10))), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = 10 * time.Millisecond
			o.HealthMaxPoisonRate = 0.1
		}))
		inboxtest.Start(t, ib)
		for i := range 10 {
			inboxtest.Accept(t, ib, fmt.Sprint("m", i))
		}
		for n := range 10 {
			inboxtest.Eventually(t, func() bool { return ib.Counters().Failed == int64(10*(n+1)) }, "each has failed once more")
			clock.Advance(time.Second)
		}
		require.EqualValues(t, 10, ib.Counters().Poisoned)
		require.EqualValues(t, 100, ib.Counters().Failed)
		require.Contains(t, stays(t, ib, clock, "degraded poison_rate").Reasons[0].Detail, "10 of 10 statuses")
	})
}

// A meter provider that waits for what it collects must not hold up the stop.
func TestBlockedMeterProviderDoesNotDelayStop(t *testing.T) {
	testenv.Long(t)
	provider := hangingMeters{release: make(chan struct{})}
	defer close(provider.release)
	ib := inboxtest.New(t, fxtest.OpenDB(t), inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
		o.MeterProvider = provider
	}),
		inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
	require.NoError(t, ib.Start(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- ib.Stop(ctx) }()
	require.ErrorContains(t, inboxtest.Receive(t, stopped, "the stop"), "the meter provider does not end the gauges")
	require.NoError(t, ctx.Err(), "there was time left for the rest")
}

// hangingMeters' registrations cannot be ended before release is closed.
type hangingMeters struct {
	noop.MeterProvider
	release chan struct{}
}

type hangingMeter struct {
	noop.Meter
	release chan struct{}
}

type hangingRegistration struct {
	noop.Registration
	release chan struct{}
}

func (p hangingMeters) Meter(string, ...metric.MeterOption) metric.Meter {
	return hangingMeter{release: p.release}
}

func (m hangingMeter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return hangingRegistration{release: m.release}, nil
}

func (r hangingRegistration) Unregister() error {
	<-r.release
	return nil
}

// SQLite has one writer and no locks on rows; and there the test's clock would
// end the lease.
func TestProcessWithoutProgressIsNotLive(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		ib, clock := watchedInbox(t, d, inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = 50 * time.Millisecond
		}),
			inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "m1")
		locked := d.DB.Begin()
		defer locked.Rollback()
		require.NoError(t, locked.Exec(`SELECT FROM inbox_handler_statuses FOR UPDATE`).Error)
		inboxtest.Start(t, ib)
		stays(t, ib, clock, "healthy")
		clock.Advance(5 * time.Minute)
		h := becomes(t, ib, "unhealthy no_progress")
		require.False(t, h.Live(), "nothing runs although work is due, and nothing is known to be in the way")
		get := func(h http.Handler) (int, string) {
			answer := httptest.NewRecorder()
			h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
			require.Equal(t, "application/json", answer.Header().Get("Content-Type"))
			return answer.Code, answer.Body.String()
		}
		for _, endpoint := range []http.Handler{ib.LiveHandler(), ib.ReadyHandler()} {
			code, body := get(endpoint)
			require.Equal(t, http.StatusServiceUnavailable, code)
			var got struct {
				Inbox, State string
				Live, Ready  bool
				Reasons      []ops.HealthReason
			}
			require.NoError(t, json.Unmarshal([]byte(body), &got))
			require.Equal(t, "test unhealthy false false",
				fmt.Sprint(got.Inbox, " ", got.State, " ", got.Live, " ", got.Ready))
			require.Equal(t, h.Reasons, got.Reasons)
			require.Contains(t, got.Reasons[0].Detail, "no attempt has ended since 2")
		}
		require.NoError(t, locked.Rollback().Error)
		becomes(t, ib, "healthy")
		code, body := get(ib.LiveHandler())
		require.Equal(t, http.StatusOK, code)
		require.JSONEq(t, `{"inbox":"test","state":"healthy","live":true,"ready":true,"reasons":[]}`, body)
	})
}

// Leases go by the database's clock there, and not by the test's.
func TestExclusiveWorkerWithoutTheLockIsHealthy(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		b := newBlocking()
		defer close(b.leave)
		alone := []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Processor.Mode = processor.ModeExclusive
			o.Processor.Concurrency = 1
			o.Processor.Prefetch = 0
			o.Processor.StopBudget = 100 * time.Millisecond // its handlers wait to be cancelled
		}),
			inboxtest.Handlers(inboxtest.Do("h", b.handle))}
		active, clock := watchedInbox(t, d, alone...)
		inboxtest.Start(t, active)
		inboxtest.Accept(t, active, "m1", "m2")
		inboxtest.Receive(t, b.entered, "m1")
		passive, _ := watchedInbox(t, d, append(alone, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }))...)
		inboxtest.Start(t, passive)
		stays(t, active, clock, "healthy")
		stays(t, passive, clock, "healthy")
		clock.Advance(time.Hour)
		becomes(t, active, "unhealthy no_progress oldest_due_ageh")
		h := stays(t, passive, clock, "healthy")
		require.True(t, h.Ready() && h.Live())
		require.Equal(t, 2, h.Workers)

		ctx, cancel := context.WithTimeout(t.Context(), inboxtest.Patience)
		defer cancel()
		require.NoError(t, active.Stop(ctx))
		inboxtest.Eventually(t, func() bool { return passive.Health().Processor.HoldsLock }, "it takes over")
		inboxtest.Receive(t, b.entered, "and goes on with it")
		stays(t, passive, clock, "degraded oldest_due_ageh") // what was due before is none of its fault
		clock.Advance(5 * time.Minute)
		becomes(t, passive, "unhealthy no_progress oldest_due_ageh")
	})
}

// Contract 11.5: what happened since the last sample is unknown.
func TestHealthJudgesASampleAsOfItsTime(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		b := newBlocking()
		defer close(b.leave)
		ib, clock := watchedInbox(t, d, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Mode = processor.ModeCompeting
			o.Processor.Concurrency = 1
			o.Processor.Prefetch = 0
		}),
			inboxtest.Handlers(inboxtest.Do("h", b.handle)),
			inbox.Configure(func(o *inbox.Options) {
				o.SampleInterval = time.Hour
				o.HealthDegradedAfter, o.HealthUnhealthyAfter = 2*time.Hour, 5*time.Hour
				o.HealthMaxPoisonRate = 0.1
			}))
		inboxtest.Accept(t, ib, "m1", "m2", "m3")
		inboxtest.Start(t, ib)
		inboxtest.Receive(t, b.entered, "m1")
		inboxtest.Eventually(t, func() bool { return !ib.Health().SampledAt.IsZero() }, "a sample was taken")
		require.NotZero(t, ib.Health().Backlog[0].Due)
		clock.Advance(24 * time.Hour)
		require.Equal(t, "healthy", summary(ib))
	})
}

func TestHealthNeedsNoDatabase(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ib, clock := watchedInbox(t, d, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Start(t, ib)
		stays(t, ib, clock, "healthy")
		inboxtest.Exec(t, d.DB, `ALTER TABLE inbox_handlers RENAME TO away`) // pauses are read with each heartbeat
		inboxtest.Eventually(t, func() bool { return summary(ib) == "degraded database" }, "the trouble shows")
		clock.Advance(time.Hour)
		h := ib.Health()
		require.True(t, h.Ready() && h.Live(), "a restart would not fix it")
		inboxtest.Exec(t, d.DB, `ALTER TABLE away RENAME TO inbox_handlers`)
		becomes(t, ib, "healthy")
		// Another name than above: a SQLite connection that last read the schema while a table was called away would
		// find that table and inbox_handler_statuses in it, and refuse to rename one to the other.
		inboxtest.Exec(t, d.DB, `ALTER TABLE inbox_handler_statuses RENAME TO also_away`)
		inboxtest.Eventually(t, func() bool { return ib.Health().SampleErr != nil }, "the sample fails")
		inboxtest.Exec(t, d.DB, `ALTER TABLE also_away RENAME TO inbox_handler_statuses`)
		becomes(t, ib, "healthy")
	})
}

func TestHealthOptionsAreChecked(t *testing.T) {
	d := inbox.DefaultOptions()
	require.Equal(t, []any{15 * time.Second, 2 * time.Minute, 5 * time.Minute, 15 * time.Minute, 0.1},
		[]any{d.SampleInterval, d.HealthDegradedAfter, d.HealthUnhealthyAfter, d.HealthMaxDueAge, d.HealthMaxPoisonRate})
	for problem, set := range map[string]func(o *inbox.Options){
		"option SampleInterval = 0s: must be more than 0": func(o *inbox.Options) { o.SampleInterval = 0 },
		"option HealthDegradedAfter = 15s: must be more than SampleInterval (15s)": func(o *inbox.Options) {
			o.HealthDegradedAfter = 15 * time.Second
		},
		"option HealthUnhealthyAfter = 1m0s: must be HealthDegradedAfter (2m0s) or more": func(o *inbox.Options) {
			o.HealthUnhealthyAfter = time.Minute
		},
		"option HealthMaxDueAge = -1s: must be 0 (no limit) or more": func(o *inbox.Options) {
			o.HealthMaxDueAge = -time.Second
		},
		"option HealthMaxPoisonRate = 0: must be more than 0 and at most 1": func(o *inbox.Options) {
			o.HealthMaxPoisonRate = 0
		},
	} {
		_, err := inbox.New("test", fxtest.OpenDB(t), inbox.Configure(set), inboxtest.Handlers(nothing("h")))
		require.ErrorContains(t, err, problem)
	}
}

func TestMessagesQueuedInMemoryCountAsDue(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		b := newBlocking()
		ib, clock := watchedInbox(t, d, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 1
			o.Processor.Mode = processor.ModeExclusive // otherwise what waits is released for other workers
		}),
			inboxtest.Handlers(inboxtest.Do("h", b.handle)))
		inboxtest.Accept(t, ib, "m1", "m2")
		inboxtest.Start(t, ib)
		inboxtest.Receive(t, b.entered, "m1")
		inboxtest.Eventually(t, func() bool { return ib.Health().Processor.Queued == 1 }, "the other is claimed")
		inboxtest.Eventually(t, func() bool {
			return stays(t, ib, clock, "healthy").Backlog[0].Due == 0
		}, "a look finds it claimed")
		clock.Advance(3 * time.Minute)
		becomes(t, ib, "degraded no_progress")
		close(b.leave)
		becomes(t, ib, "healthy")
	})
}

// Contract 11.1: whether work flows is what an operator asks first.
func TestOverviewShowsResultsOfTheLastHour(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib, clock := watchedInbox(t, d, inboxtest.Handlers(inboxtest.Do("h",
			func(_ context.Context, m inboxtest.Bytes) error {
				if m.ID == "bad" {
					return handler.Poison(errors.New("no"))
				}
				return nil
			})))
		o, err := ib.Ops()
		require.NoError(t, err)
		overview := func() ops.Overview {
			seen, err := o.Overview(t.Context())
			require.NoError(t, err)
			return seen
		}
		require.True(t, overview().EndedSince.IsZero(), "it does not run")
		inboxtest.Start(t, ib)
		began := clock.Now()
		inboxtest.Accept(t, ib, "m1", "m2", "bad")
		inboxtest.Eventually(t, func() bool {
			h := overview().Handlers
			return len(h) == 1 && h[0].Ended == ops.Ended{Completed: 2, Failed: 1, Poisoned: 1}
		}, "what has ended is seen at once")
		require.Equal(t, began, overview().EndedSince)

		for range 2 {
			clock.Advance(25 * time.Minute)
			stays(t, ib, clock, "healthy")
		}
		inboxtest.Accept(t, ib, "m3")
		inboxtest.Eventually(t, func() bool { return overview().Handlers[0].Ended.Completed == 3 }, "the third")
		clock.Advance(40 * time.Minute)
		stays(t, ib, clock, "healthy")
		inboxtest.Eventually(t, func() bool {
			return overview().Handlers[0].Ended == ops.Ended{Completed: 1}
		}, "the others ended longer ago")
		require.True(t, began.Before(overview().EndedSince))

		without, err := ops.New(d.DB)
		require.NoError(t, err)
		seen, err := without.Overview(t.Context())
		require.NoError(t, err)
		require.Zero(t, seen.EndedSince)
		require.Zero(t, seen.Handlers[0].Ended)
	})
}

func TestLateStopOmitsComponentsThatEndImmediately(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("h")))
		require.NoError(t, ib.Start(t.Context()))
		over, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, ib.Stop(over))
	})
}
