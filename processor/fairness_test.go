package processor_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
)

// hanging is a handler whose calls wait until they are released. It counts the waiting calls.
type hanging struct {
	running atomic.Int64
	letGo   chan struct{}
}

func newHanging() *hanging { return &hanging{letGo: make(chan struct{})} }

func (h *hanging) run(ctx context.Context, _ inboxtest.Bytes) error {
	h.running.Add(1)
	defer h.running.Add(-1)
	select {
	case <-h.letGo:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestBacklogAndHangingCallsLeaveOtherHandlersTheirSlots(t *testing.T) {
	for _, tc := range []struct{ concurrency, handlers int }{{4, 2}, {6, 3}, {2, 5}} {
		t.Run(fmt.Sprintf("%d slots, %d handlers", tc.concurrency, tc.handlers), func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				// All handlers but the last have a backlog of calls that hang.
				share := int64(max(1, tc.concurrency/tc.handlers))
				var specs []*inbox.HandlerSpec
				var hang []*hanging
				for i := range tc.handlers {
					hang = append(hang, newHanging())
					specs = append(specs, inboxtest.Do(fmt.Sprint("h", i), hang[i].run))
				}
				last := tc.handlers - 1
				backlog := inbox.Channel("backlog", inbox.On("t", specs[:last]...))
				late := inbox.Channel("late", inbox.On("t", specs[last]))
				ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
					o.Processor.Concurrency = tc.concurrency
				}), backlog, late)
				accept := func(channel string, n int) {
					messages := make([]handler.RawMessage, n)
					for i := range messages {
						messages[i] = inboxtest.Message(fmt.Sprintf("%s-%d", channel, i))
						messages[i].Channel = channel
					}
					_, err := ib.Accept(context.Background(), messages...)
					require.NoError(t, err)
				}
				accept("backlog", 60)
				inboxtest.Start(t, ib)
				for i := range last {
					inboxtest.Eventually(t, func() bool {
						return hang[i].running.Load() >= share
					}, "a handler of the backlog has its share")
				}
				inboxtest.Eventually(t, func() bool {
					var running int64
					for _, h := range hang {
						running += h.running.Load()
					}
					return running >= int64(tc.concurrency)
				}, "all slots are taken")

				accept("late", 20)
				inboxtest.Eventually(t, func() bool {
					return hang[last].running.Load() >= share
				}, "the late handler reached its share")
				close(hang[last].letGo)
				inboxtest.Eventually(t, func() bool {
					var left int64
					require.NoError(t, d.DB.Table(ib.Tables().HandlerStatuses()).Where("handler_key = ? AND completed_at IS NULL",
						fmt.Sprint("h", last)).Count(&left).Error)
					return left == 0
				}, "the late handler worked its messages off")
				for i := range last {
					require.GreaterOrEqual(t, hang[i].running.Load(), share, "the others still hang")
				}
			})
		})
	}
}

func TestOneHandlerAloneHasAllSlots(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		h := newHanging()
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 5
		}), inboxtest.Handlers(inboxtest.Do("busy", h.run)),
			inbox.Channel("idle", inbox.On("t", inboxtest.Do("idle", inboxtest.Nothing))))
		inboxtest.Accept(t, ib, many(20)...)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return h.running.Load() == 5 }, "it has all slots")
		close(h.letGo)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
	})
}

// Contract 5.2: claims of a backlog begin where the last one ended, but once a second, and before
// the handler is taken for done, they begin at the status due longest.
func TestReleasedStatusWaitsAtMostASecondInABacklog(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const messages = 100
		clock := fxtest.NewClock(inboxtest.Noon)
		ran := make(chan string)
		// In exclusive mode, because otherwise what waits too long in a slow test is released.
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), exclusiveMode(), inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Processor.Concurrency, o.Processor.Prefetch, o.Processor.BatchSize = 1, 5, 5
		}), inboxtest.Handlers(inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
			select {
			case ran <- m.ID:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})))
		inboxtest.Accept(t, ib, many(messages)...)
		elsewhere := claim(t, d, clock, "", 2, "h")
		release := func(c store.Claim) {
			applied, err := inboxtest.Store(t, d.DB).Settle(context.Background(), []store.Settlement{{StatusID: c.StatusID,
				HandlerKey: c.HandlerKey, Version: c.Version}}, store.AwaitLocked)
			require.NoError(t, err)
			require.Equal(t, []bool{true}, applied)
		}
		next := func(n int) (ids []string) {
			for range n {
				ids = append(ids, inboxtest.Receive(t, ran, "a call"))
			}
			return ids
		}
		inboxtest.Start(t, ib)
		next(20)
		release(elsewhere[0])
		if ids := next(20); d.Dialect != "sqlite" {
			require.NotContains(t, ids, elsewhere[0].MessageID, "no claim resumes where the last one ended")
			clock.Advance(time.Second)
			require.Contains(t, next(20), elsewhere[0].MessageID)
		} else {
			require.Contains(t, ids, elsewhere[0].MessageID, "a single worker's claims always begin at the longest due")
			next(20)
		}
		release(elsewhere[1])
		require.Contains(t, next(messages-60), elsewhere[1].MessageID)
	})
}

// Contract 5.2: a worker whose calls hang keeps no messages that another worker could run.
func TestStatusesWaitingTooLongForASlotRunElsewhere(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // on SQLite one worker at a time claims
		h := newHanging()
		defer close(h.letGo)
		busy := inboxtest.New(t, d.DB, inboxtest.Brisk(), slots(2, 5), inboxtest.Handlers(inboxtest.Do("a", h.run)))
		inboxtest.Accept(t, busy, many(4)...)
		inboxtest.Start(t, busy)
		inboxtest.Eventually(t, func() bool { return h.running.Load() == 2 }, "two run")
		a, got := arrivals()
		free := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), inboxtest.Handlers(a))
		inboxtest.Start(t, free)
		for range 2 {
			inboxtest.Receive(t, got, "what has waited")
		}
		inboxtest.Eventually(t, func() bool { return free.Counters().Processed == 2 }, "each is run once")
		require.EqualValues(t, 2, h.running.Load())
		for _, s := range inboxtest.Statuses(t, busy) {
			require.Zero(t, s.ErrorCount)
			require.Zero(t, s.AbandonedCount)
		}
	})
}
