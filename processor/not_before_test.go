package processor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

// run is when a message ran, and by which attempt.
type run struct {
	id      string
	attempt int
	at      time.Time
}

// noting declares a handler that sends its runs.
func noting(runs chan<- run, opts ...handler.Option) *inbox.HandlerSpec {
	return inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
		runs <- run{m.ID, m.Attempt, time.Now()}
		return nil
	}, opts...)
}

// acceptLater accepts messages that do not run before a time.
func acceptLater(t *testing.T, ib *inbox.Inbox, at time.Time, ids ...string) {
	t.Helper()
	for _, id := range ids {
		m := inboxtest.Message(id)
		m.NotBefore = at
		_, err := ib.Accept(context.Background(), m)
		require.NoError(t, err)
	}
}

// TestMessageRunsAtItsTimeWithoutAPoll proves contract 4.8: the worker that accepted it wakes up then.
func TestMessageRunsAtItsTimeWithoutAPoll(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		runs := make(chan run, 10)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = time.Hour
		}), inboxtest.Handlers(noting(runs)))
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "now")
		require.Equal(t, "now", inboxtest.Receive(t, runs, "a message without a time").id)
		began := time.Now()
		acceptLater(t, ib, began.Add(time.Second), "later")
		acceptLater(t, ib, began.Add(500*time.Millisecond), "sooner")
		acceptLater(t, ib, began.Add(-time.Hour), "past")
		require.Equal(t, "past", inboxtest.Receive(t, runs, "a message whose time is over").id)
		for i, id := range []string{"sooner", "later"} {
			ran := inboxtest.Receive(t, runs, "a message at its time")
			require.Equal(t, id, ran.id)
			require.Equal(t, 1, ran.attempt)
			require.False(t, ran.at.Before(began.Add(time.Duration(i+1)*500*time.Millisecond).Truncate(time.Microsecond)), id)
		}
		require.EqualValues(t, 0, inboxtest.Status(t, ib, "later", "h").ErrorCount)
	})
}

// TestWorkerThatKnowsLaterWorkFindsAnEarlierTimeByItsPoll proves contract 4.8 for a message that another process
// accepts: nothing notifies the worker, which has asked for the next due time before.
func TestWorkerThatKnowsLaterWorkFindsAnEarlierTimeByItsPoll(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		runs := make(chan run, 10)
		accepting := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		acceptLater(t, accepting, time.Now().Add(time.Hour), "much later")
		working := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = 2 * time.Second
		}), inboxtest.Handlers(noting(runs)))
		inboxtest.Start(t, working)
		inboxtest.Accept(t, working, "first") // the claims around it ask for the next due time
		inboxtest.Receive(t, runs, "a message without a time")
		acceptLater(t, accepting, time.Now().Add(300*time.Millisecond), "sooner")
		require.Equal(t, "sooner", inboxtest.Receive(t, runs, "the message, by a poll").id)
	})
}

func TestMessageWithATimeIsNotDispatchedLocally(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		past := time.Now().Add(-time.Hour)
		ran := newLedger()
		ib := startDispatching(t, d.DB, inboxtest.Handlers(inboxtest.Do("plain", inboxtest.Nothing)),
			also(inboxtest.Do("judged", ran.note, handler.NotBefore(func(handler.RawMessage) time.Time { return past }))))
		before := ib.Counters().Dispatched
		for i := range 10 {
			id := acceptAlso(t, ib, i)
			inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "both are completed")
			require.EqualValues(t, 3, inboxtest.Status(t, ib, id, "judged").Version, "inserted, claimed, completed")
		}
		require.Positive(t, ib.Counters().Dispatched-before, "the other handler's are")
		ran.requireOnce(t, 10)
	})
}

// TestDrainRunsWhatComesDueWhileItRuns proves contract 5.14 for messages whose time comes during a drain, although
// all of them fail.
func TestDrainRunsWhatComesDueWhileItRuns(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(time.Now())
		var once bool
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Processor.Concurrency, o.Processor.BatchSize = 1, 1
		}), inboxtest.Handlers(inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error {
			if !once {
				once = true
				clock.Advance(time.Hour)
			}
			return errBoom
		})))
		inboxtest.Accept(t, ib, "first")
		acceptLater(t, ib, clock.Now().Add(time.Minute), many(5)...)
		require.Equal(t, processor.Drained{Picked: 6, Failed: 6}, inboxtest.Process(t, ib))
	})
}

// TestLaneWaitsForAMessageThatIsNotDueYet proves contract 4.8 and 5.12.
func TestLaneWaitsForAMessageThatIsNotDueYet(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		runs := make(chan run, 10)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = time.Hour
		}), inboxtest.Handlers(noting(runs, handler.Ordered())))
		inboxtest.Start(t, ib)
		at := time.Now().Add(700 * time.Millisecond)
		for i, id := range []string{"first", "second", "third"} {
			m := inboxtest.Message(id)
			m.OrderingKey = []byte("k")
			if i == 0 {
				m.NotBefore = at
			}
			_, err := ib.Accept(context.Background(), m)
			require.NoError(t, err)
		}
		for _, id := range []string{"first", "second", "third"} {
			ran := inboxtest.Receive(t, runs, id)
			require.Equal(t, id, ran.id)
			require.False(t, ran.at.Before(at.Truncate(time.Microsecond)), id)
		}
	})
}
