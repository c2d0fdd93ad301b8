package telemetry

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest/observer"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// hanging calls do not return until they are released, even if their context ends.
type hanging struct {
	entered, leave chan struct{}
	letGo          func() // may be called repeatedly
}

func newHanging() hanging {
	leave := make(chan struct{})
	return hanging{make(chan struct{}, 10), leave, sync.OnceFunc(func() { close(leave) })}
}

func (h hanging) plain(context.Context, inboxtest.Bytes) error {
	h.entered <- struct{}{}
	<-h.leave
	return nil
}

func (h hanging) tx(ctx context.Context, _ *gorm.DB, m inboxtest.Bytes) error { return h.plain(ctx, m) }

func reasonOf(ib *inbox.Inbox, code string) *ops.HealthReason {
	reasons := ib.Health().Reasons
	if i := slices.IndexFunc(reasons, func(r ops.HealthReason) bool { return r.Code == code }); i >= 0 {
		return &reasons[i]
	}
	return nil
}

func linesOf(logs *observer.ObservedLogs) []string {
	var lines []string
	for _, entry := range logs.FilterMessageSnippet("inbox: handler progress").All() {
		lines = append(lines, entry.Level.String()+" "+entry.Message)
	}
	return lines
}

// TestHangingCallIsVisibleUntilItReturns proves contract 5.4, 11.5 and 12: a call that does not
// return is visible, by its age and by name, until it returns. That holds whatever blocks the call
// and whatever waits for it.
func TestHangingCallIsVisibleUntilItReturns(t *testing.T) {
	for name, mode := range map[string]struct {
		channel []inbox.ChannelOption
		handler []handler.Option
	}{
		"inbox":  {nil, []handler.Option{handler.Ordered()}},
		"inline": {[]inbox.ChannelOption{inbox.Inline()}, nil},
		"direct": {[]inbox.ChannelOption{inbox.Direct()}, nil},
	} {
		for _, kind := range []string{"plain", "transactional"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
					m, provider := newMeter(t)
					log, logs := inboxtest.Observe()
					clock := fxtest.NewClock(inboxtest.Noon)
					kafka := kafkatest.Start(t, kafkatest.Topic("orders", 1))
					held := newHanging()
					h := inboxtest.Do("h", held.plain, mode.handler...)
					if kind == "transactional" {
						h = inboxtest.Tx("h", held.tx, mode.handler...)
					}
					ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
						provider, log,
						inbox.Configure(func(o *inbox.Options) { o.SampleInterval = 5 * time.Millisecond }),
						inbox.Channel("c", append(mode.channel, consuming(kafka), inbox.On("t", h),
							inbox.On("idle", inboxtest.Do("idle", inboxtest.Nothing)))...))
					ages := func() map[string]float64 {
						return by(m.collect(t)["inbox.handler.oldest_running.age"], "inbox.handler.key")
					}
					require.Empty(t, ages(), "not before the start")
					inboxtest.Start(t, ib)
					t.Cleanup(held.letGo)
					for range 2 { // the second waits for the first, in its lane or partition
						require.NoError(t, kafka.Produce("orders", kafkatest.Record{Key: []byte("k"), Value: []byte("1")}))
					}
					inboxtest.Receive(t, held.entered, "the call")
					var worker models.Worker
					inboxtest.Eventually(t, func() bool {
						return d.DB.Limit(1).Find(&worker).RowsAffected == 1
					}, "the worker has registered, for which an Inline channel does not wait")
					require.Equal(t, map[string]float64{"h": 0, "idle": 0}, ages())
					clock.Advance(5*time.Minute - time.Second)
					require.Equal(t, map[string]float64{"h": 299, "idle": 0}, ages())
					require.Nil(t, reasonOf(ib, health.LongRunning))
					require.Empty(t, linesOf(logs))

					clock.Advance(time.Second)
					r := reasonOf(ib, health.LongRunning)
					require.NotNil(t, r)
					require.Equal(t, inbox.HealthDegraded, r.State)
					require.Equal(t, "h", r.HandlerKey)
					require.Len(t, r.MessageIDs, 1)
					for _, part := range []string{r.MessageIDs[0], "for 5m", worker.ID, "HandlerTimeout"} {
						require.Contains(t, r.Detail, part)
					}
					require.ErrorContains(t, ib.Health().Degraded(), r.MessageIDs[0])
					require.True(t, ib.Health().Live(), "a restart helps only until the next such message")

					const text = "inbox: handler progress failing: a call does not return"
					inboxtest.Eventually(t, func() bool { return len(linesOf(logs)) > 0 }, "it is logged")
					line := logs.FilterMessage(text).All()[0].ContextMap()
					require.Equal(t, []any{"h", r.MessageIDs[0], worker.ID},
						[]any{line["handler_key"], line["message_id"], line["worker"]})
					clock.Advance(5*time.Minute - time.Second)
					at := clock.Now()
					inboxtest.Eventually(t, func() bool { return ib.Health().SampledAt.Equal(at) }, "it is sampled again")
					require.Equal(t, []string{"warn " + text}, linesOf(logs), "once")
					clock.Advance(time.Second)
					inboxtest.Eventually(t, func() bool { return len(linesOf(logs)) == 2 }, "there is a reminder")

					held.letGo()
					inboxtest.Eventually(t, func() bool { return ib.Counters().Processed == 2 }, "both are processed")
					require.Nil(t, reasonOf(ib, health.LongRunning))
					require.Equal(t, map[string]float64{"h": 0, "idle": 0}, ages())
					inboxtest.Eventually(t, func() bool { return len(linesOf(logs)) == 3 }, "its end is logged")
					require.Equal(t, []string{"warn " + text, "warn inbox: handler progress still failing: a call does not return",
						"info inbox: handler progress recovered"}, linesOf(logs))
					require.Equal(t, "h", logs.FilterMessageSnippet("handler progress recovered").All()[0].ContextMap()["handler_key"])
				})
			})
		}
	}
}

// TestReportedCallIsCancelledAndItsRecordTriedAgain proves contract 11.1, 7.6: a call without a status.
func TestReportedCallIsCancelledAndItsRecordTriedAgain(t *testing.T) {
	for name, mode := range map[string]inbox.ChannelOption{"inline": inbox.Inline(), "direct": inbox.Direct()} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				clock := fxtest.NewClock(inboxtest.Noon)
				kafka := kafkatest.Start(t, kafkatest.Topic("orders", 1))
				causes := make(chan error, 10)
				var calls atomic.Int32
				h := inboxtest.Do("h", func(ctx context.Context, _ inboxtest.Bytes) error {
					if calls.Add(1) > 1 {
						return nil
					}
					<-ctx.Done()
					causes <- context.Cause(ctx)
					return ctx.Err()
				}, handler.Backoff(func(int) time.Duration { return time.Millisecond }))
				ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
					inbox.Channel("c", mode, consuming(kafka), inbox.On("t", h)))
				inboxtest.Start(t, ib)
				require.NoError(t, kafka.Produce("orders", kafkatest.Record{Key: []byte("k"), Value: []byte("1")}))
				inboxtest.Eventually(t, func() bool { return calls.Load() == 1 }, "the call")
				o, err := ops.New(d.DB, func(o *ops.Options) { o.Clock = clock })
				require.NoError(t, err)
				clock.Advance(5 * time.Minute)
				ref := ops.HandlerRef{Message: ops.MessageRef{ID: reasonOf(ib, health.LongRunning).MessageIDs[0]}, HandlerKey: "h"}
				inboxtest.Eventually(t, func() bool {
					_, err := o.CancelCall(t.Context(), "ada", ref)
					return err == nil
				}, "the worker to report it")
				require.EqualError(t, inboxtest.Receive(t, causes, "the end of the call"), "cancelled by operator ada")
				inboxtest.Eventually(t, func() bool { return ib.Counters().Processed == 1 }, "the record's next attempt")
				require.EqualValues(t, 1, ib.Counters().Failed)
			})
		})
	}
}

// TestLongerTimeoutReplacesLongRunning proves contract 5.4: a timeout limits how long a
// handler may run, and a handler that ignores it is reported anyway.
func TestLongerTimeoutReplacesLongRunning(t *testing.T) {
	clock := fxtest.NewClock(inboxtest.Noon)
	held := newHanging()
	ib := inboxtest.New(t, fxtest.OpenDB(t), inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
		o.Clock = clock
		o.Processor.StuckMessageThreshold = 24 * time.Hour
		o.Processor.HandlerTimeout = time.Hour
		o.Processor.StuckHandlerGrace = 10 * time.Millisecond
	}),
		inboxtest.Handlers(inboxtest.Do("patient", held.plain),
			inboxtest.Do("brief", held.plain, handler.Timeout(10*time.Millisecond))))
	inboxtest.Accept(t, ib, "m")
	inboxtest.Start(t, ib)
	t.Cleanup(held.letGo)
	for range 2 {
		inboxtest.Receive(t, held.entered, "a call")
	}
	keys := func() (keys []string) {
		for _, r := range ib.Health().Reasons {
			if r.Code == health.LongRunning {
				keys = append(keys, r.HandlerKey)
				require.Contains(t, r.Detail, "have it obey its context", "it has a timeout already")
			}
		}
		return keys
	}
	inboxtest.Eventually(t, func() bool { return ib.Counters().Failed == 1 }, "the brief one is given up, and still runs")
	clock.Advance(5 * time.Minute)
	require.Equal(t, []string{"brief"}, keys())
	clock.Advance(55 * time.Minute)
	require.Equal(t, []string{"brief", "patient"}, keys())
}

// TestZeroLongRunningKeepsTheAgeMetric proves contract 9.
func TestZeroLongRunningKeepsTheAgeMetric(t *testing.T) {
	m, provider := newMeter(t)
	log, logs := inboxtest.Observe()
	clock := fxtest.NewClock(inboxtest.Noon)
	held := newHanging()
	ib := inboxtest.New(t, fxtest.OpenDB(t), inboxtest.Brisk(),
		inbox.Configure(func(o *inbox.Options) { o.Clock = clock }), provider, log,
		inbox.Configure(func(o *inbox.Options) {
			o.LongRunning = 0
			o.SampleInterval = 5 * time.Millisecond
		}),
		inboxtest.Handlers(inboxtest.Do("h", held.plain)))
	inboxtest.Accept(t, ib, "m")
	inboxtest.Start(t, ib)
	t.Cleanup(held.letGo)
	inboxtest.Receive(t, held.entered, "the call")
	clock.Advance(time.Hour)
	at := clock.Now()
	inboxtest.Eventually(t, func() bool { return ib.Health().SampledAt.Equal(at) }, "it is sampled")
	require.EqualValues(t, 3600, m.collect(t)["inbox.handler.oldest_running.age"][0].value)
	require.Nil(t, reasonOf(ib, health.LongRunning))
	require.Empty(t, linesOf(logs))
}
