package processor_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/processor"
)

func TestOpenCircuitChargesNothingAndTriesOneProbeAtATime(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var down atomic.Bool
		var running, most, called atomic.Int64
		down.Store(true)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 4
			o.Processor.MaxRetries = 100
		}), inboxtest.Handlers(
			inboxtest.Do("shaky", func(context.Context, inboxtest.Bytes) error {
				called.Add(1)
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				if down.Load() {
					return errBoom
				}
				return nil
			}, handler.Concurrency(1), handler.CircuitBreaker(handler.Breaker{Failures: 3, OpenFor: 300 * time.Millisecond})),
			inboxtest.Do("sound", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, many(20)...)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return len(ib.Health().Processor.OpenCircuits) == 1 }, "the circuit opened")
		require.True(t, ib.Health().Degraded() != nil)
		require.EqualValues(t, 3, called.Load(), "three failures in a row open it")
		inboxtest.Eventually(t, func() bool { return called.Load() >= 5 }, "two probes failed")
		charged := 0
		for _, s := range inboxtest.Statuses(t, ib) {
			if s.HandlerKey == "shaky" {
				charged += s.ErrorCount
			}
		}
		require.LessOrEqual(t, charged, int(called.Load()), "only what was tried is charged")
		inboxtest.Eventually(t, func() bool {
			var left int64
			require.NoError(t,
				d.DB.Table(ib.Tables().HandlerStatuses()).Where("handler_key = 'sound' AND completed_at IS NULL").Count(&left).Error)
			return left == 0
		}, "the other handler goes on")
		down.Store(false)
		inboxtest.Eventually(t, func() bool {
			return inboxtest.AllCompleted(t, ib)
		}, "a probe closed it and all went through")
		require.EqualValues(t, 1, most.Load())
		require.Empty(t, ib.Health().Processor.OpenCircuits)
	})
}

func TestStatusesQueuedForAnOpenCircuitAreReleased(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 1
			o.Processor.Prefetch = 50
		}), inboxtest.Handlers(
			inboxtest.Do("down", func(context.Context, inboxtest.Bytes) error { return errBoom },
				handler.CircuitBreaker(handler.Breaker{Failures: 2, OpenFor: time.Hour}))))
		inboxtest.Accept(t, ib, many(10)...)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return len(ib.Health().Processor.OpenCircuits) == 1 }, "the circuit opens")
		inboxtest.Eventually(t, func() bool {
			for _, s := range inboxtest.Statuses(t, ib) {
				if s.ProcessingStartedAt != nil {
					return false
				}
			}
			return true
		}, "another worker could claim all")
		charged := 0
		for _, s := range inboxtest.Statuses(t, ib) {
			charged += s.ErrorCount
			require.LessOrEqual(t, s.ErrorCount, 1)
		}
		require.Equal(t, 2, charged)
	})
}

func TestMessageErrorsDoNotOpenTheCircuit(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = fxtest.NewClock(inboxtest.Noon)
			o.Processor.Concurrency = 1
		}),
			inbox.Channel("c", inbox.On("t",
				inbox.Func("h", func(_ context.Context, m handler.Message[string]) error {
					switch m.Payload {
					case "poison":
						return handler.Poison(errBoom)
					case "snooze":
						return handler.Snooze(time.Hour)
					}
					return nil
				}, handler.CircuitBreaker(handler.Breaker{Failures: 1, OpenFor: time.Hour})))))
		for i, body := range []string{`{`, `"poison"`, `"snooze"`, `"fine"`} {
			_, err := ib.Accept(context.Background(), handler.RawMessage{Channel: "c", Type: "t", ID: many(9)[i],
				Content: []byte(body)})
			require.NoError(t, err)
		}
		require.Equal(t, processor.Drained{Picked: 4, Completed: 1, Poisoned: 2, Released: 1}, inboxtest.Process(t, ib))
	})
}

func TestDrainSkipsAHandlerWithAnOpenCircuit(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		called := 0
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = fxtest.NewClock(inboxtest.Noon)
			o.Processor.Concurrency = 1
		}),
			inboxtest.Handlers(
				inboxtest.Do("down", func(context.Context, inboxtest.Bytes) error { called++; return errBoom },
					handler.CircuitBreaker(handler.Breaker{Failures: 2, OpenFor: time.Hour}))))
		inboxtest.Accept(t, ib, many(5)...)
		require.Equal(t, 2, inboxtest.Process(t, ib).Failed)
		require.Equal(t, processor.Drained{}, inboxtest.Process(t, ib))
		require.Equal(t, 2, called)
	})
}
