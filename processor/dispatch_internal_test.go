package processor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
)

// Once reconciling is due, accepts must not reserve slots even if a round of claiming without
// reconciling is running. Otherwise, under load, there would never be a round without running
// accepts, and claims would never be reconciled (contract 5.9, 5.17).
func TestDueReconcilingPreventsLocalDispatch(t *testing.T) {
	l, _ := idleLoop(t, func(context.Context, handler.Message[[]byte]) error { return nil })

	granted := func() int {
		r := l.reserve(map[string]int{"h": 1}, 0)
		defer r.Abandon(false)
		return r.Granted("h")
	}
	require.Equal(t, 1, granted(), "nothing is due")
	l.act.claimer.reconcileAt = time.Now().Add(-time.Second)
	require.Zero(t, granted(), "reconciling is due")
	l.round = &round{}
	require.Zero(t, granted(), "a claim that does not reconcile is under way")
	l.round, l.act.claimer.reconcileAt = nil, time.Time{}
	require.Equal(t, 1, granted(), "it has taken place")
}
