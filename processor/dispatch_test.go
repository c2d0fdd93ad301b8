package processor_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/processor"
)

// unhurried returns brisk options without polls, so that every claim has another reason.
func unhurried() inbox.Option {
	return inbox.Configure(func(o *inbox.Options) {
		inboxtest.Defaults(o)
		p := &o.Processor
		p.HeartbeatInterval, p.SweepInterval = 100*time.Millisecond, 500*time.Millisecond
		p.StopBudget, p.PollingInterval, p.Listen = time.Second, time.Hour, false
		o.SampleInterval = time.Minute
	})
}

// startDispatching starts an unhurried inbox that dispatches locally.
func startDispatching(t *testing.T, db *gorm.DB, opts ...inbox.Option) *inbox.Inbox {
	t.Helper()
	ib := inboxtest.New(t, db, append([]inbox.Option{unhurried()}, opts...)...)
	startSampled(t, ib)
	settleDown(t, ib)
	return ib
}

func slots(concurrency, prefetch int) inbox.Option {
	return inbox.Configure(func(o *inbox.Options) {
		o.Processor.Concurrency, o.Processor.Prefetch = concurrency, prefetch
	})
}

func statementTimeout(d time.Duration) inbox.Option {
	return inbox.Configure(func(o *inbox.Options) { o.Processor.StatementTimeout = d })
}

func stopBudget(d time.Duration) inbox.Option {
	return inbox.Configure(func(o *inbox.Options) { o.Processor.StopBudget = d })
}

func exclusiveMode() inbox.Option {
	return inbox.Configure(func(o *inbox.Options) { o.Processor.Mode = processor.ModeExclusive })
}

// completed waits until a status is completed, and returns it.
func completed(t *testing.T, ib *inbox.Inbox, messageID, handlerKey string) (s models.HandlerStatus) {
	t.Helper()
	inboxtest.Eventually(t, func() bool {
		s = inboxtest.Status(t, ib, messageID, handlerKey)
		return s.CompletedAt != nil
	}, fmt.Sprintf("%s/%s is completed", messageID, handlerKey))
	return s
}

// settleDown accepts probes until the inbox dispatches locally, and waits until the probes have
// ended.
func settleDown(t *testing.T, ib *inbox.Inbox) {
	t.Helper()
	probe(t, ib, "c")
}

func probe(t *testing.T, ib *inbox.Inbox, channel string) {
	t.Helper()
	for n := 0; ; n++ {
		before := ib.Counters().Dispatched
		m := inboxtest.Message(fmt.Sprintf("probe %s %d %d", channel, before, n))
		m.Channel = channel
		if _, err := ib.Accept(context.Background(), m); err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded, "the inbox's own, where the test sets it short")
			require.Less(t, n, 1000, "nothing is accepted")
			continue
		}
		inboxtest.Eventually(t, func() bool {
			var left int64
			require.NoError(t, ib.DB().Table(ib.Tables().HandlerStatuses()).Where("message_id = ? AND completed_at IS NULL",
				m.ID).Count(&left).Error)
			return left == 0
		}, "the probe is completed")
		if ib.Counters().Dispatched > before {
			// The result may be stored before the loop knows that the slot is free, which a test
			// cannot observe.
			pause(t, 50*time.Millisecond)
			return
		}
		require.Less(t, n, 1000, "nothing is dispatched locally")
	}
}

// isProbe reports whether the message is one of settleDown's.
func isProbe(m inboxtest.Bytes) bool { return strings.HasPrefix(m.ID, "probe ") }

func TestLocallyDispatchedStatusRunsWithoutAClaim(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := newLedger()
		ib := startDispatching(t, d.DB, inboxtest.Handlers(
			inboxtest.Do("a", func(ctx context.Context, m inboxtest.Bytes) error {
				var stored int64 // read by another connection, so it is committed
				if err := d.DB.Model(&models.HandlerStatus{}).Where("message_id = ? AND handler_key = 'a'",
					m.ID).Count(&stored).Error; err != nil || stored != 1 {
					return fmt.Errorf("%d stored: %w", stored, err)
				}
				return ran.note(ctx, m)
			}),
			inboxtest.Do("b", ran.note)))
		before := ib.Counters()
		for i := range 20 {
			id := fmt.Sprint(i)
			inboxtest.Accept(t, ib, id)
			inboxtest.Eventually(t, func() bool {
				return inboxtest.Status(t, ib, id, "a").CompletedAt != nil && inboxtest.Status(t, ib, id, "b").CompletedAt != nil
			}, "it is completed")
			for _, key := range []string{"a", "b"} {
				s := inboxtest.Status(t, ib, id, key)
				require.EqualValues(t, 2, s.Version, "inserted claimed, completed")
				require.Nil(t, s.WorkerID)
				require.Nil(t, s.ProcessingStartedAt)
			}
		}
		all := int64(len(inboxtest.Statuses(t, ib)))
		inboxtest.Eventually(t, func() bool { return ib.Counters().Processed == all }, "all are counted")
		require.Equal(t, all, ib.Counters().Processed)
		require.EqualValues(t, 40, ib.Counters().Dispatched-before.Dispatched)
		require.EqualValues(t, 20, ib.Counters().Accepted-before.Accepted)
		for what, n := range ran.runs {
			require.Equal(t, 1, n, what)
		}
	})
}

func TestDispatchedAndClaimedAttemptsGetTheSameInput(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		got := make(chan inboxtest.Bytes, 100)
		handlers := inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
			if !isProbe(m) {
				got <- m
			}
			return nil
		}))
		messages := map[string]func(m *handler.RawMessage){
			"plain":                          func(*handler.RawMessage) {},
			"no content, empty ordering key": func(m *handler.RawMessage) { m.Content, m.OrderingKey = nil, []byte{} },
			"everything": func(m *handler.RawMessage) {
				m.Content, m.OrderingKey, m.Source, m.ContentType, m.Transport = []byte{0, 255, 7}, []byte("lane"), "/shop",
					"application/json", "kafka"
				m.Properties.Headers = []handler.Header{{Key: "k", Value: []byte{1, 2}}, {Key: "empty", Value: []byte{}},
					{Key: "none"}}
			},
		}
		accept := func(ib *inbox.Inbox, how, name string) inboxtest.Bytes {
			m := inboxtest.Message(how + name)
			messages[name](&m)
			_, err := ib.Accept(context.Background(), m)
			require.NoError(t, err)
			if how == "claimed " {
				require.Equal(t, 1, inboxtest.Process(t, ib).Completed)
			}
			return inboxtest.Receive(t, got, "the message")
		}
		claimed := map[string]inboxtest.Bytes{}
		ib := inboxtest.New(t, d.DB, unhurried(), handlers)
		for name := range messages {
			claimed[name] = accept(ib, "claimed ", name)
		}
		inboxtest.Start(t, ib)
		settleDown(t, ib)
		before := ib.Counters().Dispatched
		for name := range messages {
			one, two := claimed[name], accept(ib, "dispatched ", name)
			for _, m := range []inboxtest.Bytes{one, two} {
				var row models.Message
				require.NoError(t, ib.DB().Clauses(ib.Tables()).Where("id = ?", m.ID).Take(&row).Error)
				require.Equal(t, row.ReceivedAt.UTC(), m.ReceivedAt)
				require.Equal(t, time.UTC, m.ReceivedAt.Location())
			}
			one.ID, one.ReceivedAt, two.ID, two.ReceivedAt = "", time.Time{}, "", time.Time{}
			if string(one.Payload) == "claimed plain" {
				one.Payload, two.Payload = nil, nil
			}
			require.Equal(t, one, two, name)
		}
		require.EqualValues(t, len(messages), ib.Counters().Dispatched-before)
	})
}

func TestLocalDispatchTakesNoMoreThanTheFreeSlots(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := newLedger()
		begun, let := make(chan struct{}, 200), make(chan struct{})
		ib := startDispatching(t, d.DB, slots(2, 0), inboxtest.Handlers(
			inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
				if isProbe(m) {
					return nil
				}
				begun <- struct{}{}
				<-let
				return ran.note(ctx, m)
			})))
		before := ib.Counters().Dispatched
		claimed := func() (n int64) {
			require.NoError(t, ib.DB().Table(ib.Tables().HandlerStatuses()).Where("processing_started_at IS NOT NULL").Count(&n).Error)
			return n
		}
		inboxtest.Accept(t, ib, many(50)...)
		require.LessOrEqual(t, claimed(), int64(2))
		inboxtest.Receive(t, begun, "the first")
		inboxtest.Receive(t, begun, "the second")
		for i := range 50 {
			inboxtest.Accept(t, ib, fmt.Sprint("late ", i))
		}
		require.EqualValues(t, 2, claimed())
		require.LessOrEqual(t, ib.Counters().Dispatched-before, int64(2))
		close(let)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
		ran.requireOnce(t, 100)
	})
}

func TestLocalDispatchNeverOvertakesABacklog(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		const old = 40
		ran, let := make(chan string, 200), make(chan struct{})
		ib := inboxtest.New(t, d.DB, unhurried(), slots(1, 10), inboxtest.Handlers(
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error { ran <- m.ID; <-let; return nil })))
		inboxtest.Accept(t, ib, many(old)...)
		inboxtest.Start(t, ib)
		for i := range old {
			require.Equal(t, fmt.Sprintf("m%05d", i), inboxtest.Receive(t, ran, "the next of the backlog"))
			inboxtest.Accept(t, ib, fmt.Sprintf("new %d", i)) // there are slots that no claim has asked for yet
			let <- struct{}{}
		}
		for range old {
			require.Contains(t, inboxtest.Receive(t, ran, "a new one"), "new ")
			let <- struct{}{}
		}
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
	})
}

func TestLocalDispatchOfOneHandlerLeavesOthersTheirSlots(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran, let := make(chan string, 200), make(chan struct{})
		ib := inboxtest.New(t, d.DB, unhurried(), slots(4, 4),
			inbox.Channel("hangs", inbox.On("t", inboxtest.Do("hangs", func(_ context.Context, m inboxtest.Bytes) error {
				if !isProbe(m) {
					<-let
				}
				return nil
			}))),
			inbox.Channel("quick", inbox.On("t", inboxtest.Do("quick", func(_ context.Context, m inboxtest.Bytes) error {
				ran <- m.ID
				return nil
			}))))
		inboxtest.Start(t, ib)
		defer close(let)
		probe(t, ib, "hangs")
		before := ib.Counters().Dispatched
		for i := range 30 {
			m := inboxtest.Message(fmt.Sprint("hangs ", i))
			m.Channel = "hangs"
			_, err := ib.Accept(context.Background(), m)
			require.NoError(t, err)
		}
		require.LessOrEqual(t, ib.Counters().Dispatched-before, int64(8))
		for i := range 20 {
			m := inboxtest.Message(fmt.Sprint("quick ", i))
			m.Channel = "quick"
			_, err := ib.Accept(context.Background(), m)
			require.NoError(t, err)
			require.Equal(t, m.ID, inboxtest.Receive(t, ran, "the quick one"))
		}
	})
}
