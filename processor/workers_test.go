package processor_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

// ledger counts the runs of each (message ID, handler key).
type ledger struct {
	mu   sync.Mutex
	runs map[string]int
}

func newLedger() *ledger { return &ledger{runs: map[string]int{}} }

func (l *ledger) note(_ context.Context, m inboxtest.Bytes) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[m.ID+"/"+m.HandlerKey]++
	return nil
}

func (l *ledger) requireOnce(t *testing.T, want int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Len(t, l.runs, want)
	for what, n := range l.runs {
		require.Equal(t, 1, n, what)
	}
}

func TestTwoWorkersRunEveryRowOnce(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const messages = 300
		ran := newLedger()
		var inboxes []*inbox.Inbox
		for _, db := range []*gorm.DB{d.DB, d.Another(t)} {
			inboxes = append(inboxes, inboxtest.New(t, db, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
				o.Processor.Mode = processor.ModeCompeting
				o.Processor.BatchSize = 20
			}),
				inboxtest.Handlers(inboxtest.Do("a", ran.note), inboxtest.Do("b", ran.note))))
		}
		for _, ib := range inboxes {
			inboxtest.Start(t, ib)
		}
		ids := many(messages)
		for i := 0; i < messages; i += 50 {
			inboxtest.Accept(t, inboxes[i/50%2], ids[i:i+50]...)
		}
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, inboxes[0]) }, "all were completed")
		ran.requireOnce(t, 2*messages)
		require.Zero(t, inboxes[0].Counters().Fenced+inboxes[1].Counters().Fenced)
		inboxtest.Eventually(t, func() bool {
			return inboxes[0].Counters().Processed+inboxes[1].Counters().Processed == 2*messages
		}, "all were counted")
	})
}

func TestTwoDrainsRunEveryRowOnce(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const messages = 200
		ran := newLedger()
		drain := func(db *gorm.DB) *inbox.Inbox {
			return inboxtest.New(t, db, inbox.Configure(func(o *inbox.Options) {
				o.Processor.BatchSize = 10
			}), inboxtest.Handlers(inboxtest.Do("a", ran.note)))
		}
		one, two := drain(d.DB), drain(d.Another(t))
		inboxtest.Accept(t, one, many(messages)...)
		drained := make(chan processor.Drained, 2)
		for _, ib := range []*inbox.Inbox{one, two} {
			go func() {
				got, err := ib.ProcessPending(context.Background())
				if err != nil {
					t.Error(err)
				}
				drained <- got
			}()
		}
		picked := inboxtest.Receive(t, drained, "a drain").Picked + inboxtest.Receive(t, drained, "a drain").Picked
		require.Equal(t, messages, picked)
		ran.requireOnce(t, messages)
	})
}

func TestVersionConflictLeavesTheRestOfTheGroup(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		take := func(ctx context.Context, m inboxtest.Bytes, end error) error {
			// Another worker takes over the claim while the handler runs.
			if err := handler.DB(ctx).Exec("UPDATE inbox_handler_statuses SET version = version + 1 WHERE message_id = ? AND handler_key = ?", m.ID, m.HandlerKey).Error; err != nil {
				return err
			}
			return end
		}
		ib := inboxtest.New(t, d.DB, log, inboxtest.Handlers(
			inboxtest.Do("completes", func(ctx context.Context, m inboxtest.Bytes) error {
				if m.ID == "taken" {
					return take(ctx, m, nil)
				}
				return nil
			}),
			inboxtest.Do("fails", func(ctx context.Context, m inboxtest.Bytes) error {
				if m.ID == "taken" {
					return take(ctx, m, errBoom)
				}
				return errBoom
			}),
		))
		inboxtest.Accept(t, ib, "1", "taken", "2")
		require.Equal(t, processor.Drained{Picked: 6, Completed: 2, Failed: 2, Unstored: 2}, inboxtest.Process(t, ib))
		for _, id := range []string{"1", "2"} {
			require.NotNil(t, inboxtest.Status(t, ib, id, "completes").CompletedAt)
			require.Equal(t, 1, inboxtest.Status(t, ib, id, "fails").ErrorCount)
		}
		for _, key := range []string{"completes", "fails"} {
			s := inboxtest.Status(t, ib, "taken", key)
			require.Nil(t, s.CompletedAt)
			require.NotNil(t, s.ProcessingStartedAt)
			require.Zero(t, s.ErrorCount)
			require.EqualValues(t, 3, s.Version, "claimed, taken over, nothing more")
		}
		require.EqualValues(t, 2, ib.Counters().Fenced)
		require.Equal(t, 2, logs.FilterMessageSnippet("stale claim changed nothing").Len())
	})
}

func TestRunningInboxProcessesAcceptedMessagesImmediately(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := make(chan string, 100)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = time.Hour
		}),
			inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error { ran <- m.ID; return nil })))
		inboxtest.Start(t, ib)
		for i := range 20 { // each after the loop has found nothing and waits
			id := fmt.Sprint(i)
			inboxtest.Accept(t, ib, id)
			require.Equal(t, id, inboxtest.Receive(t, ran, "message "+id))
			inboxtest.Eventually(t, func() bool {
				return inboxtest.Status(t, ib, id, "h").CompletedAt != nil
			}, "its result is stored")
		}
	})
}

func TestRetriesRunWhenTheyAreDueWithoutAPoll(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := make(chan int, 100)
		retry := inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
			ran <- m.Attempt
			if m.Attempt < 3 {
				return handler.RetryAfter(20*time.Millisecond, errBoom)
			}
			return nil
		})
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = time.Hour
		}), inboxtest.Handlers(retry))
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "1")
		for attempt := 1; attempt <= 3; attempt++ {
			require.Equal(t, attempt, inboxtest.Receive(t, ran, "an attempt"))
		}
	})
}

func TestStartFindsEarlierMessages(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := newLedger()
		build := func() *inbox.Inbox {
			return inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
				o.Processor.PollingInterval = time.Hour
			}),
				inboxtest.Handlers(inboxtest.Do("a", ran.note)))
		}
		inboxtest.Accept(t, build(), many(250)...)
		ib := build()
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "the backlog was worked off")
		ran.requireOnce(t, 250)
	})
}
