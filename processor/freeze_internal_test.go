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

// Contract 5.9. A test cannot suspend and resume the process between two given instructions. It
// moves the session's last heartbeat to the past instead, so the fence's timer is as late as after
// a suspension.
func TestNoCallBeginsOnceTheHeartbeatIsTooOld(t *testing.T) {
	calls := 0
	h := handler.New("h", func(context.Context, handler.Message[[]byte]) error { calls++; return nil })
	s := newSession(context.Background(), time.Minute)
	run := func() verdict {
		a := newTask(store.Claim{Ref: store.Ref{StatusID: "1", Version: 2, ErrorCount: 1, AbandonedCount: 3},
			Message: &models.Message{SerializedProperties: "{}"}}, h, &policy{})
		r := &runner{now: time.Now, attempts: &attempt.Runner{}}
		r.run(s.attempts, &group{handler: h, tasks: []*task{a}}, attempt.Call{MayStart: s.mayStart})
		return a.judge(time.Now())
	}
	require.Equal(t, handler.AttemptCompleted, run().outcome)
	require.Equal(t, 1, calls)

	s.last = time.Now().Add(-s.workerTimeout)
	v := run()
	require.Equal(t, 1, calls, "another worker may run what comes after it in its lane")
	require.Equal(t, handler.AttemptReleased, v.outcome)
	require.Equal(t, 1, v.settlement.ErrorCount, "nothing is charged")
	require.Equal(t, 3, v.settlement.AbandonedCount)
	require.ErrorIs(t, context.Cause(s.attempts), errFenced, "and nothing else begins")
	require.Equal(t, handler.AttemptReleased, run().outcome)
	require.Equal(t, 1, calls)
}
