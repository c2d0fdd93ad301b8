package processor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// unanswered is a database that does not answer.
type unanswered struct {
	store.Store
	asked chan struct{}
}

func (u unanswered) Notify(ctx context.Context, _ ...string) error {
	u.asked <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

// TestLateStopDropsNotifications proves contract 4.7: nothing runs on after the stop.
func TestLateStopDropsNotifications(t *testing.T) {
	u := unanswered{asked: make(chan struct{}, 10)}
	n := notifier{shared: &shared{store: u, opts: Options{StatementTimeout: time.Hour}, log: zap.NewNop()},
		keys: map[string]bool{}}
	n.notify("a")
	<-u.asked
	n.notify("b")
	sending := n.done
	ended, end := context.WithCancel(t.Context())
	end()
	n.wait(ended)
	select {
	case <-sending:
	case <-time.After(testenv.Patience):
		require.Fail(t, "it still sends")
	}
	require.Empty(t, u.asked, "the second is not sent")

	n.notify("c")
	<-u.asked
	n.wait(ended)
}
