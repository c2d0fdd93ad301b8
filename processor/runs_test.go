package processor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
	"github.com/gorm-inbox/inbox/outgoing"
)

// sink is a destination that takes everything, unless answer says otherwise.
type sink struct {
	mu     sync.Mutex
	left   []string // message IDs
	calls  [][]string
	answer func(id string) error
}

func (s *sink) publish(_ context.Context, messages []outgoing.Message) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	results := make([]error, len(messages))
	for i, m := range messages {
		ids = append(ids, m.ID)
		if s.answer != nil {
			results[i] = s.answer(m.ID)
		}
		if results[i] == nil {
			s.left = append(s.left, m.ID)
		}
	}
	s.calls = append(s.calls, ids)
	return results
}

func (s *sink) channel(opts ...handler.Option) inbox.Option {
	return inbox.Outgoing("out", inbox.To(s.publish), inbox.PublishWith(opts...))
}

// acceptOut stores messages of one lane of the channel, and returns their IDs.
func acceptOut(t *testing.T, ib *inbox.Inbox, key string, n int) []string {
	t.Helper()
	var ids []string
	var messages []handler.RawMessage
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s-%03d", key, i))
		messages = append(messages, handler.RawMessage{Channel: "out", Type: "t", ID: ids[i], OrderingKey: []byte(key),
			Content: []byte("{}")})
	}
	_, err := ib.Accept(t.Context(), messages...)
	require.NoError(t, err)
	return ids
}

func TestCallHasARunOfEachLane(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var s sink
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), s.channel())
		a, b := acceptOut(t, ib, "a", 40), acceptOut(t, ib, "b", 5)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all have left")
		of := func(first byte) []string {
			return slices.DeleteFunc(slices.Clone(s.left), func(id string) bool { return id[0] != first })
		}
		require.Equal(t, a, of('a'))
		require.Equal(t, b, of('b'))
		require.Less(t, len(s.calls), 10)
		require.Zero(t, ib.Counters().Fenced)
		require.Zero(t, ib.Counters().Released)
	})
}

func TestMessagesBehindAFailureAreReleasedUncharged(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var s sink
		failures := 1
		s.answer = func(id string) error {
			if id == "a-002" && failures > 0 {
				failures--
				return errors.New("not now")
			}
			return nil // also for those behind it, which must come again
		}
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), s.channel(handler.Backoff(func(int) time.Duration { return 0 })))
		ids := acceptOut(t, ib, "a", 6)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all have left")
		require.Equal(t, []string{"a-000", "a-001", "a-003", "a-004", "a-005"}, s.left[:5])
		require.Equal(t, ids[2:], s.left[len(s.left)-4:], "in order, again")
		for _, row := range inboxtest.Statuses(t, ib) {
			want := 0
			if row.MessageID == "a-002" {
				want = 1
			}
			require.Equal(t, want, row.ErrorCount, row.MessageID)
		}
	})
}

// TestRunOfADeadWorkerLeavesInOrder proves contract 5.9 and 5.11 for runs: their claims are released one by one, and
// each has its next call alone.
func TestRunOfADeadWorkerLeavesInOrder(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var s sink
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), s.channel())
		ids := acceptOut(t, ib, "a", 8)
		inboxtest.Exec(t, d.DB, `UPDATE inbox_handler_statuses SET worker_id = ?, processing_started_at = created_at,
			version = version + 1, holds_lane = message_id = 'a-000' WHERE message_id < 'a-005'`, uuid.NewString())
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all have left")
		require.Equal(t, ids, s.left)
		for _, call := range s.calls {
			require.True(t, len(call) == 1 || !slices.Contains(ids[:5], call[0]) && call[0] >= "a-005", "%v", call)
		}
	})
}

func TestLostClaimOfARunIsFound(t *testing.T) {
	d, proxy, db := behindProxy(t)
	var s sink
	ib := inboxtest.New(t, db, unhurried(), noRoutineReconcile, inbox.Configure(func(o *inbox.Options) {
		o.Processor.StatementTimeout = 2 * time.Second
	}), s.channel())
	ids := acceptOut(t, inboxtest.New(t, d.DB, s.channel()), "a", 6)
	proxy.Lose(pgproxy.AnswerLost, 1, pgproxy.Containing("head_id"))
	inboxtest.Start(t, ib)
	inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all have left")
	require.Equal(t, ids, s.left)
	require.Len(t, s.calls[0], 1, "the call went without the run")
}

func TestWorkerWithItsClockBrokenWhileItClaimsARunGoesOn(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		c := &brokenClock{}
		var s sink
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			// A claim that was lost with its session comes back after this.
			o.Clock, o.Processor.WorkerTimeout = c, 2*time.Second
		}), s.channel())
		inboxtest.Start(t, ib)
		for _, key := range many(10) {
			acceptOut(t, ib, key, 5)
			c.broken.Store(true)
			inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all have left")
			inboxtest.Eventually(t, func() bool { return !c.broken.Load() }, "something crashed")
		}
	})
}
