package processor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
	"github.com/gorm-inbox/inbox/processor"
)

// firstHeld returns an ordered handler that notes what has run. Message "a1" runs until letGo is called.
func firstHeld(t *testing.T) (h *inbox.HandlerSpec, through *course, running <-chan string, letGo func()) {
	t.Helper()
	started, held := make(chan string, 1), make(chan struct{})
	through = &course{}
	return inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
		if m.ID == "a1" {
			started <- m.ID
			<-held
		}
		through.passed(m.ID)
		return nil
	}, handler.Ordered()), through, started, func() { close(held) }
}

// awaitWaiting waits until n statuses are marked as waiting.
func awaitWaiting(t *testing.T, ib *inbox.Inbox, n int64) {
	t.Helper()
	inboxtest.Eventually(t, func() bool {
		var waiting int64
		require.NoError(t, ib.DB().Table(ib.Tables().HandlerStatuses()).Where("is_waiting").Count(&waiting).Error)
		return waiting == n
	}, "those after the first wait")
}

// TestNextLaneMessageNeedsNoOtherClaim proves contract 5.12: a status that waits is claimed when
// the one before it has ended, without being released for a claim.
func TestNextLaneMessageNeedsNoOtherClaim(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		h, through, running, letGo := firstHeld(t)
		ib := inboxtest.New(t, d.DB, unhurried(), slots(2, 0), inboxtest.Handlers(h))
		acceptSteps(t, ib, 5, "a")
		inboxtest.Start(t, ib)
		inboxtest.Receive(t, running, "the first message")
		awaitWaiting(t, ib, 4)
		letGo()
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all completed")
		require.Equal(t, "12345", through.of("a"))
		for _, s := range inboxtest.Statuses(t, ib)[1:] {
			require.EqualValues(t, 4, s.Version, "%s: stored, marked, claimed, completed", s.MessageID)
		}
	})
}

// Contract 5.2: a lane that always has a next message does not keep the only slot from a message that
// has been due for longer.
func TestContinuingLaneLeavesItsSlotToAnEarlierMessage(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		h, through, running, letGo := firstHeld(t)
		ib := inboxtest.New(t, d.DB, unhurried(), slots(1, 0), inboxtest.Handlers(h))
		inboxtest.Start(t, ib)
		_, err := ib.Accept(t.Context(), step("a", 1))
		require.NoError(t, err)
		inboxtest.Receive(t, running, "the first message")
		for _, m := range []handler.RawMessage{step("b", 1), step("a", 2), step("a", 3)} {
			_, err := ib.Accept(t.Context(), m)
			require.NoError(t, err)
		}
		letGo()
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all completed")
		require.Equal(t, []string{"a1", "b1", "a2", "a3"}, through.ids)
	})
}

// Contract 5.8, 5.9: the response to a claim of the next message is lost.
func TestLostClaimOfTheNextLaneMessageIsFound(t *testing.T) {
	for name, stops := range map[string]bool{"by reconciling": false, "by a stop": true} {
		t.Run(name, func(t *testing.T) {
			d, proxy, db := behindProxy(t)
			h, through, running, letGo := firstHeld(t)
			ib := inboxtest.New(t, db, unhurried(), slots(2, 0), noRoutineReconcile, inbox.Configure(func(o *inbox.Options) {
				o.Processor.StatementTimeout = time.Second
			}), inboxtest.Handlers(h))
			acceptSteps(t, ib, 4, "a")
			require.NoError(t, ib.Start(context.Background()))
			inboxtest.Receive(t, running, "the first message")
			awaitWaiting(t, ib, 3)
			lost := pgproxy.Containing("WHERE claims", "holds_lane = true")
			proxy.Lose(pgproxy.AnswerLost, 1, lost)
			letGo()
			inboxtest.Eventually(t, func() bool {
				return inboxtest.Status(t, ib, "a2", "h").ProcessingStartedAt != nil ||
					inboxtest.AllCompleted(t, ib)
			}, "the next one is claimed")
			if stops {
				require.NoError(t, stop(t, ib, 5*time.Second))
				for _, s := range inboxtest.Statuses(t, ib)[1:] {
					require.Nil(t, s.ProcessingStartedAt, s.MessageID)
					require.Zero(t, s.AbandonedCount, s.MessageID)
				}
				require.NotNil(t, workers(t, d)[0].StoppedAt)
				return
			}
			inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "the claim is found")
			require.Equal(t, "1234", through.of("a"))
			require.Zero(t, inboxtest.Status(t, ib, "a2", "h").AbandonedCount, "uncharged")
			require.NoError(t, stop(t, ib, 5*time.Second))
		})
	}
}

// Contract 2, 4.4: the lane's next message came on another program's channel.
func TestNextLaneMessageRunsInTheProgramOfItsChannel(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		h, through, running, letGo := firstHeld(t)
		ours := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), slots(2, 0), inbox.Channel("ours", inbox.On("t", h)))
		var elsewhere course
		theirs := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), inbox.Channel("theirs", inbox.On("t",
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
				elsewhere.passed(m.ID)
				return nil
			}, handler.Ordered()))))
		inboxtest.Process(t, theirs) // lists its handler
		for n, ib := range []*inbox.Inbox{ours, theirs, ours, theirs} {
			m := step("a", n+1)
			m.Channel = map[bool]string{true: "ours", false: "theirs"}[ib == ours]
			_, err := ib.Accept(t.Context(), m)
			require.NoError(t, err)
		}
		inboxtest.Start(t, ours)
		inboxtest.Receive(t, running, "the first message")
		awaitWaiting(t, ours, 3)
		inboxtest.Start(t, theirs)
		letGo()
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ours) }, "all completed")
		require.Equal(t, "13", through.of("a"))
		require.Equal(t, "24", elsewhere.of("a"))
	})
}

// TestPausedHandlerClaimsNoNextMessage proves contract 5.13: lanes obey a pause, too.
func TestPausedHandlerClaimsNoNextMessage(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		h, through, running, letGo := firstHeld(t)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), slots(2, 0), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Mode = processor.ModeCompeting
		}), inboxtest.Handlers(h))
		acceptSteps(t, ib, 3, "a")
		inboxtest.Start(t, ib)
		inboxtest.Receive(t, running, "the first message")
		awaitWaiting(t, ib, 2)
		operations, err := ib.Ops()
		require.NoError(t, err)
		require.NoError(t, operations.Pause(t.Context(), "ada", "h")) // at once in this process
		letGo()
		inboxtest.Eventually(t, func() bool { return inboxtest.Status(t, ib, "a1", "h").CompletedAt != nil }, "it completes")
		inboxtest.Eventually(t, func() bool { return !inboxtest.Status(t, ib, "a2", "h").IsWaiting }, "its lane moves on")
		require.Equal(t, "1", through.of("a"))
		require.EqualValues(t, 3, inboxtest.Status(t, ib, "a2", "h").Version, "stored, marked, released")
		require.NoError(t, ib.Resume(t.Context(), "h"))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all completed")
		require.Equal(t, "123", through.of("a"))
	})
}
