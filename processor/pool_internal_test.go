package processor

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// idleLoop returns a loop that does not run, with one slot and the handler h. stop begins a stop.
func idleLoop(t *testing.T, fn func(context.Context, handler.Message[[]byte]) error) (l *loop, stop func()) {
	t.Helper()
	registry, err := registry.New([]registry.Subscription{{Channel: "c", Type: "t", Handler: handler.New("h", fn)}})
	require.NoError(t, err)
	options := DefaultOptions()
	options.Concurrency = 1
	p, err := New(Config{DB: &gorm.DB{Config: &gorm.Config{Dialector: postgres.Dialector{}}}, Registry: registry,
		Options: options, Clock: clock.System{}, Logger: zap.NewNop(), Counters: &telemetry.Counters{}})
	require.NoError(t, err)
	session := newSession(t.Context(), options.WorkerTimeout)
	session.limits = p.newAllotments(session.id, options.WorkerTimeout, nil)
	t.Cleanup(func() { session.end(errStopping) })
	held := newHeld()
	completer := p.newCompleter(held)
	claimer := newClaimer(p.shared, held, func(r result) { completer.add(r) })
	l = newLoop(p, &activity{completer: completer, claimer: claimer}, session)
	t.Cleanup(l.executor.Close)
	l.stopping, stop = context.WithCancel(t.Context())
	t.Cleanup(stop)
	l.term = session.work()
	return l, stop
}

// give queues messages and starts what may run.
func (l *loop) give(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range n {
		h, _ := l.p.registry.Lookup("h")
		l.enqueue([]*task{newTask(store.Claim{Ref: store.Ref{StatusID: strconv.Itoa(i), HandlerKey: "h"},
			Message: &models.Message{SerializedProperties: "{}"}}, h, l.p.policies[h])}, false)
	}
	l.start()
}

func TestEndedCallStartsTheNextWithoutTheLoop(t *testing.T) {
	var calls atomic.Int32
	l, _ := idleLoop(t, func(context.Context, handler.Message[[]byte]) error { calls.Add(1); return nil })
	l.give(3)
	require.Eventually(t, func() bool { return l.completer.backlog() == 3 }, testenv.Patience, time.Millisecond)
	require.EqualValues(t, 3, calls.Load())
	select {
	case <-l.changed: // the loop has to notice that the slot is free
	case <-time.After(testenv.Patience):
		require.Fail(t, "the loop is not woken")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Empty(t, l.running)
}

func TestEndedCallStartsNothingDuringAStop(t *testing.T) {
	begun, release := make(chan struct{}, 3), make(chan struct{})
	l, stop := idleLoop(t, func(context.Context, handler.Message[[]byte]) error {
		begun <- struct{}{}
		<-release
		return nil
	})
	l.give(3)
	<-begun
	stop()
	close(release)
	select {
	case <-l.changed:
	case <-time.After(testenv.Patience):
		require.Fail(t, "the loop is not woken")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Empty(t, l.running)
	require.Empty(t, begun)
	l.releaseQueued()
	require.Equal(t, 3, l.completer.backlog(), "one result, and two claims to give back")
}

// Contract 5.13: what was claimed before the pause arrives after it.
func TestPausedHandlerStartsNoCall(t *testing.T) {
	l, _ := idleLoop(t, func(context.Context, handler.Message[[]byte]) error { return errors.New("it is called") })
	h, _ := l.p.registry.Lookup("h")
	l.p.setPaused([]string{"h"})
	l.mu.Lock()
	l.applyPauses()
	l.mu.Unlock()
	l.give(2)
	require.Empty(t, l.running)
	l.applyPauses()
	require.Equal(t, 2, l.completer.backlog(), "the claims are given back")
	require.True(t, l.slotsOf(h).Idle())
}

// What an ended call brings about runs in its goroutine, where a panic would end the process.
func TestPanicOutsideTheLoopEndsTheLoop(t *testing.T) {
	l, _ := idleLoop(t, func(context.Context, handler.Message[[]byte]) error { return nil })
	l.update(func() { panic(errors.New("broken")) }, nil)
	require.Len(t, l.changed, 1)
	l.give(1)
	require.Empty(t, l.running, "it starts nothing more")
	require.Panics(t, func() { l.run(l.stopping, nil) })
	l.update(func() { require.Fail(t, "the loop has ended") }, func() { panic(errors.New("again")) })
}
