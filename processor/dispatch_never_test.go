package processor_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

// also adds a channel of its own for a handler, beside channel "c".
func also(h *inbox.HandlerSpec) inbox.Option {
	return inbox.Channel("also", inbox.On("t", h))
}

// acceptAlso accepts on both channels at once; the first handler's messages are dispatched locally.
func acceptAlso(t *testing.T, ib *inbox.Inbox, i int) (id string) {
	t.Helper()
	id = fmt.Sprintf("also %d", i)
	one, two := inboxtest.Message(fmt.Sprintf("plain %d", i)), inboxtest.Message(id)
	two.Channel, two.OrderingKey = "also", []byte("lane")
	_, err := ib.Accept(context.Background(), one, two)
	require.NoError(t, err)
	return id
}

func TestHandlersThatNeedAClaimAreNotDispatchedLocally(t *testing.T) {
	for name, option := range map[string]handler.Option{"ordered": handler.Ordered(),
		"with legacy keys": handler.LegacyKeys("before")} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				ran := newLedger()
				ib := startDispatching(t, d.DB, inboxtest.Handlers(inboxtest.Do("plain", inboxtest.Nothing)),
					also(inboxtest.Do("judged", ran.note, option)))
				before := ib.Counters().Dispatched
				for i := range 10 {
					id := acceptAlso(t, ib, i)
					inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "both are completed")
					require.EqualValues(t, 3, inboxtest.Status(t, ib, id, "judged").Version, "inserted, claimed, completed")
				}
				require.Positive(t, ib.Counters().Dispatched-before, "the other handler's are")
				ran.requireOnce(t, 10)
			})
		})
	}
}

func TestPausedHandlerIsNotDispatchedLocally(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := startDispatching(t, d.DB, inboxtest.Handlers(inboxtest.Do("plain", inboxtest.Nothing)),
			also(inboxtest.Do("paused", inboxtest.Nothing)))
		operations, err := ib.Ops()
		require.NoError(t, err)
		require.NoError(t, operations.Pause(t.Context(), "ada", "paused")) // at once in this process
		for i := range 10 {
			id := acceptAlso(t, ib, i)
			require.EqualValues(t, 1, inboxtest.Status(t, ib, id, "paused").Version, "never claimed, not even to be released")
			require.Nil(t, inboxtest.Status(t, ib, id, "paused").ProcessingStartedAt)
		}
		completed(t, ib, "plain 9", "plain")
	})
}

func TestHandlerWithAHalfOpenCircuitIsNotDispatchedLocally(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		fails := make(chan bool, 1)
		ib := startDispatching(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Processor.MaxRetries = 1 }),
			inboxtest.Handlers(inboxtest.Do("plain", inboxtest.Nothing)),
			also(inboxtest.Do("broken", func(context.Context, inboxtest.Bytes) error {
				if <-fails {
					return errBoom
				}
				return nil
			}, handler.CircuitBreaker(handler.Breaker{Failures: 1, OpenFor: 50 * time.Millisecond}))))
		for i := range 5 {
			fails <- true
			id := acceptAlso(t, ib, 2*i)
			inboxtest.Eventually(t, func() bool {
				return inboxtest.Status(t, ib, id, "broken").IsPoisoned
			}, "it has failed, and no other is due")
			inboxtest.Eventually(t, func() bool { return len(ib.Health().Processor.OpenCircuits) == 0 }, "a probe may be tried")
			pause(t, 100*time.Millisecond) // a claim finds none
			fails <- false
			id = acceptAlso(t, ib, 2*i+1)
			require.EqualValues(t, 3, completed(t, ib, id, "broken").Version, "inserted, claimed, completed")
		}
	})
}

func TestHandlerWithAnOpenCircuitIsNotDispatchedLocally(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := startDispatching(t, d.DB, inboxtest.Handlers(inboxtest.Do("plain", inboxtest.Nothing)),
			also(inboxtest.Do("broken", func(context.Context, inboxtest.Bytes) error { return errBoom },
				handler.CircuitBreaker(handler.Breaker{Failures: 1, OpenFor: time.Hour}))))
		acceptAlso(t, ib, 0)
		inboxtest.Eventually(t, func() bool { return len(ib.Health().Processor.OpenCircuits) == 1 }, "the circuit is open")
		for i := 1; i < 10; i++ {
			id := acceptAlso(t, ib, i)
			require.EqualValues(t, 1, inboxtest.Status(t, ib, id, "broken").Version, "never claimed, not even to be released")
		}
	})
}

func TestAcceptTxDispatchesNothingLocally(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := newLedger()
		ib := startDispatching(t, d.DB, inboxtest.Handlers(inboxtest.Do("h", ran.note)))
		before := ib.Counters().Dispatched
		rolledBack := d.DB.Begin()
		_, err := ib.AcceptTx(context.Background(), rolledBack, inboxtest.Message("rolled back"))
		require.NoError(t, err)
		require.NoError(t, rolledBack.Rollback().Error)
		tx := d.DB.Begin()
		receipt, err := ib.AcceptTx(context.Background(), tx, inboxtest.Message("1"))
		require.NoError(t, err)
		var claimed int64
		require.NoError(t,
			tx.Table(ib.Tables().HandlerStatuses()).Where("message_id = '1' AND processing_started_at IS NOT NULL").Count(&claimed).Error)
		require.Zero(t, claimed)
		require.NoError(t, tx.Commit().Error)
		receipt.Wake()
		require.EqualValues(t, 3, completed(t, ib, "1", "h").Version, "inserted, claimed, completed")
		require.Equal(t, before, ib.Counters().Dispatched)
		require.NotContains(t, ran.runs, "rolled back/h")
	})
}

func TestKnownMessageIsNotDispatchedLocallyAgain(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := newLedger()
		older := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("h", ran.note)))
		inboxtest.Accept(t, older, "1")
		inboxtest.Process(t, older)
		ib := startDispatching(t, d.DB, inboxtest.Handlers(inboxtest.Do("h", ran.note),
			inboxtest.Do("later", ran.note)))
		before := ib.Counters().Dispatched
		require.Equal(t, handler.OutcomeDuplicate, inboxtest.Accept(t, ib, "1")[0].Outcome)
		require.EqualValues(t, 3, completed(t, ib, "1", "later").Version)
		require.Equal(t, before, ib.Counters().Dispatched)
		require.Equal(t, 1, ran.runs["1/h"])
	})
}

func TestLocalDispatchRequiresTheLock(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ran := newLedger()
		handlers := inboxtest.Handlers(inboxtest.Do("h", ran.note))
		holder := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Mode = processor.ModeExclusive
			o.Processor.PollingInterval = 20 * time.Millisecond
		}), handlers)
		inboxtest.Start(t, holder)
		inboxtest.Eventually(t, func() bool { return holder.Health().Processor.HoldsLock }, "it holds the lock")
		standby := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), exclusiveMode(), handlers)
		inboxtest.Start(t, standby)
		inboxtest.Eventually(t, func() bool { return len(workers(t, d)) == 2 }, "both are registered")
		for i := range 20 {
			inboxtest.Accept(t, standby, fmt.Sprint(i))
		}
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, standby) }, "all were completed")
		require.Zero(t, standby.Counters().Dispatched)
		require.Zero(t, standby.Counters().Released, "none was claimed and released")
		ran.requireOnce(t, 20)
	})
}

func TestLocalDispatchRequiresAStart(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, unhurried(), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		pending := func(id string) {
			t.Helper()
			inboxtest.Accept(t, ib, id)
			s := inboxtest.Status(t, ib, id, "h")
			require.EqualValues(t, 1, s.Version)
			require.Nil(t, s.ProcessingStartedAt)
		}
		pending("before")
		require.NoError(t, ib.Start(context.Background()))
		settleDown(t, ib)
		require.NoError(t, ib.Stop(context.Background()))
		pending("after")
		require.Equal(t, 1, inboxtest.Process(t, ib).Completed)
	})
}
