package processor_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

// step returns message n of a lane; its ID names both.
func step(lane string, n int) handler.RawMessage {
	m := inboxtest.Message(fmt.Sprintf("%s%d", lane, n))
	m.OrderingKey = []byte(lane)
	return m
}

// acceptSteps accepts messages 1 to n of each lane, alternating between the lanes.
func acceptSteps(t *testing.T, ib *inbox.Inbox, n int, lanes ...string) {
	t.Helper()
	var messages []handler.RawMessage
	for i := range n {
		for _, lane := range lanes {
			messages = append(messages, step(lane, i+1))
		}
	}
	_, err := ib.Accept(context.Background(), messages...)
	require.NoError(t, err)
}

// course records the order in which messages ran, by lane.
type course struct {
	mu  sync.Mutex
	ids []string
}

func (c *course) passed(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids = append(c.ids, id)
}

func (c *course) of(lane string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := ""
	for _, id := range c.ids {
		if n, found := strings.CutPrefix(id, lane); found {
			text += n
		}
	}
	return text
}

// discard changes a row as an operator's discard does.
func discard(t *testing.T, d *inboxtest.Database, id string) {
	t.Helper()
	inboxtest.Exec(t, d.DB,
		`UPDATE inbox_handler_statuses SET completed_at = created_at, outcome = 'discarded', is_poisoned = false, version = version + 1 WHERE message_id = ?`, id)
}

// retry changes a row as an operator's retry does.
func retry(t *testing.T, d *inboxtest.Database, id string) {
	t.Helper()
	inboxtest.Exec(t, d.DB,
		`UPDATE inbox_handler_statuses SET error_count = 0, is_poisoned = false, requeued_count = requeued_count + 1, version = version + 1 WHERE message_id = ?`, id)
}

func TestLaneKeepsItsOrderWhileItsHeadFailsAndSnoozes(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var through course
		clock := fxtest.NewClock(inboxtest.Noon)
		fn := func(m inboxtest.Bytes) error {
			switch {
			case m.ID == "a2" && m.Attempt <= 2:
				return errBoom
			case m.ID == "b3" && clock.Now().Before(inboxtest.Noon.Add(time.Hour)):
				return handler.Snooze(time.Hour)
			}
			through.passed(m.HandlerKey + m.ID)
			return nil
		}
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }), inboxtest.Handlers(
			inboxtest.Do("plain ", func(_ context.Context, m inboxtest.Bytes) error { return fn(m) }, handler.Ordered()),
			inboxtest.Tx("tx ", func(_ context.Context, _ *gorm.DB, m inboxtest.Bytes) error { return fn(m) }, handler.Ordered(),
				handler.TxGroup(3))))
		acceptSteps(t, ib, 5, "a", "b", "c")
		inboxtest.Process(t, ib)
		for _, key := range []string{"plain ", "tx "} {
			require.Equal(t, "1", through.of(key+"a"), "its head has failed")
			require.Equal(t, "12", through.of(key+"b"), "its head is snoozed")
			require.Equal(t, "12345", through.of(key+"c"), "nothing holds it up")
		}
		for range 3 {
			clock.Advance(5 * time.Minute)
			inboxtest.Process(t, ib)
		}
		require.Equal(t, "12345", through.of("plain a"))
		require.Equal(t, "12", through.of("plain b"))
		clock.Advance(time.Hour)
		inboxtest.Process(t, ib)
		require.Equal(t, "12345", through.of("plain b"))
		require.Equal(t, "12345", through.of("tx b"))
		require.True(t, inboxtest.AllCompleted(t, ib))
	})
}

func TestSeveralWorkersKeepTheOrderOfEachLane(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var through course
		var lanes []string
		for i := range 20 {
			lanes = append(lanes, fmt.Sprintf("lane %d-", i))
		}
		var ibs []*inbox.Inbox
		for range 3 {
			ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
				o.Processor.Mode = processor.ModeCompeting
				o.Processor.Concurrency = 4
				o.Processor.MaxRetryDelay = 10 * time.Millisecond
				o.Processor.PollingInterval = 100 * time.Millisecond
				o.Processor.MaxRetries = 10
			}), inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
				if m.Attempt == 1 && strings.HasSuffix(m.ID, "3") {
					return errBoom
				}
				through.passed(m.ID)
				return nil
			}, handler.Ordered())))
			ibs = append(ibs, ib)
			inboxtest.Start(t, ib)
		}
		acceptSteps(t, ibs[0], 9, lanes...)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ibs[0]) }, "all completed")
		for _, lane := range lanes {
			require.Equal(t, "123456789", through.of(lane))
		}
	})
}

func TestPoisonedHeadParksItsLaneUntilAnOperatorActs(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var through course
		fixed := false
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = fxtest.NewClock(inboxtest.Noon)
		}), inboxtest.Handlers(
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
				if strings.HasSuffix(m.ID, "2") && !fixed {
					return handler.Poison(errBoom)
				}
				through.passed(m.ID)
				return nil
			}, handler.Ordered())))
		acceptSteps(t, ib, 4, "a", "b", "c")
		require.Equal(t, processor.Drained{Picked: 6, Completed: 3, Poisoned: 3}, inboxtest.Process(t, ib))
		require.Equal(t, processor.Drained{}, inboxtest.Process(t, ib), "parked")

		fixed = true
		retry(t, d, "a2")
		discard(t, d, "b2")
		require.Equal(t, 3+2, inboxtest.Process(t, ib).Completed)
		require.Equal(t, "1234", through.of("a"), "a replay keeps the order")
		require.Equal(t, "134", through.of("b"), "a discarded one frees its lane")
		require.Equal(t, "1", through.of("c"))
	})
}

func TestSkippedPoisonedHeadLetsItsLaneContinue(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var through course
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = fxtest.NewClock(inboxtest.Noon)
		}), inboxtest.Handlers(
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
				if m.ID == "a2" && len(through.ids) == 1 {
					return handler.Poison(errBoom)
				}
				through.passed(m.ID)
				return nil
			}, handler.Ordered(), handler.SkipPoisoned())))
		acceptSteps(t, ib, 4, "a")
		require.Equal(t, processor.Drained{Picked: 4, Completed: 3, Poisoned: 1}, inboxtest.Process(t, ib))
		require.Equal(t, "134", through.of("a"))
		retry(t, d, "a2")
		require.Equal(t, 1, inboxtest.Process(t, ib).Completed)
		require.Equal(t, "1342", through.of("a"))
	})
}

func TestLaneSpansAllKeysOfItsHandler(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var through course
		note := func(_ context.Context, m inboxtest.Bytes) error { through.passed(m.ID); return nil }
		clock := inbox.Configure(func(o *inbox.Options) { o.Clock = fxtest.NewClock(inboxtest.Noon) })
		first := inboxtest.New(t, d.DB, clock, inboxtest.Handlers(inboxtest.Do("old", note, handler.Ordered())))
		acceptSteps(t, first, 3, "a")
		// The keys are in an order that LegacyKeys warns about: new rows name the lane differently
		// from those before the rename.
		renamed := inboxtest.New(t, d.DB, clock, inboxtest.Handlers(inboxtest.Do("new", note, handler.Ordered(),
			handler.LegacyKeys("old", "never used"))))
		_, err := renamed.Accept(context.Background(), step("a", 4), step("a", 5))
		require.NoError(t, err)
		require.Equal(t, 5, inboxtest.Process(t, renamed).Completed)
		require.Equal(t, "12345", through.of("a"))
	})
}

func TestMessagesWithoutAnOrderingKeyHaveNoOrder(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		h := newHanging()
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 5
		}),
			inboxtest.Handlers(inboxtest.Do("h", h.run, handler.Ordered())))
		inboxtest.Accept(t, ib, many(5)...) // no key
		acceptSteps(t, ib, 5, "a")
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return h.running.Load() == 5 }, "those without a lane run beside each other")
		close(h.letGo)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all completed")
	})
}

func TestHandlerMaySetTheOrderingKey(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var through course
		byContent := handler.OrderedBy(func(m handler.RawMessage) []byte {
			if m.ID == "bad" {
				panic("no key")
			}
			return m.Content[:1]
		})
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = fxtest.NewClock(inboxtest.Noon)
			o.Processor.Concurrency = 8
		}),
			inboxtest.Handlers(
				inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
					if m.ID == "x1" {
						return errBoom
					}
					through.passed(m.ID)
					return nil
				}, byContent)))
		results, err := ib.Accept(context.Background(), inboxtest.Message("x1"), inboxtest.Message("bad"),
			inboxtest.Message("x2"), inboxtest.Message("y1"))
		require.ErrorContains(t, err, `handler "h": its ordering key panicked: no key`)
		require.Equal(t, handler.OutcomeInvalid, results[1].Outcome, "and the others are stored")
		inboxtest.Process(t, ib)
		require.Equal(t, "", through.of("x"))
		require.Equal(t, "1", through.of("y"))
	})
}

func TestWaitingMessagesOfAFormerlyOrderedHandlerAreReleased(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := inbox.Configure(func(o *inbox.Options) { o.Clock = fxtest.NewClock(inboxtest.Noon) })
		poisons := func(_ context.Context, m inboxtest.Bytes) error {
			if m.ID == "a1" {
				return handler.Poison(errBoom)
			}
			return nil
		}
		ordered := inboxtest.New(t, d.DB, clock, inbox.Configure(func(o *inbox.Options) { o.Processor.Concurrency = 1 }),
			inboxtest.Handlers(inboxtest.Do("h", poisons, handler.Ordered())))
		acceptSteps(t, ordered, 6, "a")
		require.Equal(t, 1, inboxtest.Process(t, ordered).Poisoned)
		var waiting int64
		require.NoError(t, d.DB.Table(ordered.Tables().HandlerStatuses()).Where("is_waiting").Count(&waiting).Error)
		require.Positive(t, waiting)
		free := inboxtest.New(t, d.DB, clock, inboxtest.Handlers(inboxtest.Do("h", poisons)))
		require.Equal(t, 5, inboxtest.Process(t, free).Completed)
	})
}

func TestLaneContinuesAfterItsProcessDiedBeforeAdvancing(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var through course
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
				through.passed(m.ID)
				return nil
			}, handler.Ordered())))
		acceptSteps(t, ib, 4, "a")
		// The state that a dead worker leaves: the head is completed, the next row is still
		// waiting.
		discard(t, d, "a1")
		inboxtest.Exec(t, d.DB, "UPDATE inbox_handler_statuses SET is_waiting = true WHERE completed_at IS NULL")
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "the lane went on")
		require.Equal(t, "234", through.of("a"))
	})
}

func TestBatchNeverHasTwoMessagesOfOneLane(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var seen calls
		var through course
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inbox.Batch("h", 50,
			func(_ context.Context, batch []inboxtest.Bytes) error {
				seen.note(idsOf(batch)...)
				for _, m := range batch {
					through.passed(m.ID)
				}
				return nil
			}, handler.Ordered())))
		acceptSteps(t, ib, 6, "a", "b", "c", "d")
		require.Equal(t, 24, inboxtest.Process(t, ib).Completed)
		for _, call := range seen.all {
			lanes := map[byte]bool{}
			for _, id := range call {
				require.False(t, lanes[id[0]], "%v", call)
				lanes[id[0]] = true
			}
		}
		require.Equal(t, "123456", through.of("a"))
		require.Less(t, len(seen.all), 24, "the lanes' heads come together")
	})
}
