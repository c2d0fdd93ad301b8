package processor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// beginnings returns a function that begins an attempt in the session, and how often its handler was called.
func beginnings(s *session) (calls *int, run func() verdict) {
	calls = new(int)
	h := handler.New("h", func(context.Context, handler.Message[[]byte]) error { *calls++; return nil })
	return calls, func() verdict {
		a := newTask(store.Claim{Ref: store.Ref{StatusID: "1", Version: 2, ErrorCount: 1, AbandonedCount: 3},
			Message: &models.Message{SerializedProperties: "{}"}}, h, &policy{})
		r := &runner{attempts: &attempt.Runner{}}
		r.run(s.attempts, &group{handler: h, tasks: []*task{a}}, attempt.Call{MayStart: s.mayStart})
		return a.judge(time.Now())
	}
}

// Contract 5.9. A test cannot suspend and resume the process between two given instructions. It
// moves the session's last heartbeat to the past instead, so the fence's timer is as late as after
// a suspension.
func TestNoCallBeginsOnceTheHeartbeatIsTooOld(t *testing.T) {
	s := newSession(context.Background(), time.Minute)
	calls, run := beginnings(s)
	require.Equal(t, handler.AttemptCompleted, run().outcome)
	require.Equal(t, 1, *calls)

	s.last = time.Now().Add(-s.workerTimeout)
	v := run()
	require.Equal(t, 1, *calls, "another worker may run what comes after it in its lane")
	require.Equal(t, handler.AttemptReleased, v.outcome)
	require.Equal(t, 1, v.settlement.ErrorCount, "nothing is charged")
	require.Equal(t, 3, v.settlement.AbandonedCount)
	require.ErrorIs(t, context.Cause(s.attempts), errFenced, "and nothing else begins")
	require.Equal(t, handler.AttemptReleased, run().outcome)
	require.Equal(t, 1, *calls)
}

// Contract 5.9: while a machine is suspended, its monotonic clock stands still, and the fence with it. The wall clock
// goes on. It may also have been set, so the worker waits for its next heartbeat, which finds out.
func TestNoCallBeginsAfterASuspensionUntilTheNextHeartbeat(t *testing.T) {
	s := newSession(context.Background(), time.Minute)
	calls, run := beginnings(s)
	require.True(t, s.mayClaim())
	s.lastWall = s.lastWall.Add(-s.workerTimeout)
	v := run()
	require.Zero(t, *calls, "another worker may have the claim")
	require.Equal(t, handler.AttemptReleased, v.outcome)
	require.Equal(t, []int{1, 3}, []int{v.settlement.ErrorCount, v.settlement.AbandonedCount}, "nothing is charged")
	require.False(t, s.mayClaim())
	require.NoError(t, s.attempts.Err(), "what runs goes on: its claims' versions decide")
	require.True(t, s.beat(time.Now()), "the loop claims again")
	require.Equal(t, handler.AttemptCompleted, run().outcome)
	require.True(t, s.mayClaim())
}
