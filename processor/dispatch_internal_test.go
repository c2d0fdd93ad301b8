package processor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Once reconciling is due, accepts must not reserve slots even if a round of claiming without
// reconciling is running. Otherwise, under load, there would never be a round without running
// accepts, and claims would never be reconciled (contract 5.9, 5.17).
func TestNothingIsDispatchedOnceReconcilingIsDue(t *testing.T) {
	registry, err := registry.New([]registry.Subscription{{Channel: "c", Type: "t",
		Handler: handler.New("h", func(context.Context, handler.Message[[]byte]) error { return nil })}})
	require.NoError(t, err)
	options := DefaultOptions()
	p, err := New(Config{DB: &gorm.DB{Config: &gorm.Config{Dialector: postgres.Dialector{}}}, Registry: registry,
		Options: options,
		Clock:   clock.System{}, Logger: zap.NewNop(), Counters: &telemetry.Counters{}})
	require.NoError(t, err)
	session := newSession(t.Context(), options.WorkerTimeout)
	defer session.end(errStopping)
	held := newHeld()
	completer := p.newCompleter(held)
	l := newLoop(p, &activity{completer: completer, claimer: p.newClaimer(held, completer.add)}, session)
	l.stopping, l.term = t.Context(), session.work()

	granted := func() int {
		r := l.reserve(map[string]int{"h": 1})
		defer r.Abandon(false)
		return r.Granted("h")
	}
	require.Equal(t, 1, granted(), "nothing is due")
	l.act.claimer.reconcileAt = time.Now().Add(-time.Second)
	require.Zero(t, granted(), "reconciling is due")
	l.claiming = true
	require.Zero(t, granted(), "a claim that does not reconcile is under way")
	l.claiming, l.act.claimer.reconcileAt = false, time.Time{}
	require.Equal(t, 1, granted(), "it has taken place")
}
