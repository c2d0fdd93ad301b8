package idempotent_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// cleaned is a store that reports its calls of Cleanup to the test.
type cleaned struct {
	storeFunc
	calls   chan time.Time
	cleanup func(ctx context.Context) (int64, error)
}

func (c *cleaned) Cleanup(ctx context.Context, olderThan time.Time) (int64, error) {
	select {
	case c.calls <- olderThan:
	default:
	}
	return c.cleanup(ctx)
}

func cleaning(cleanup func(ctx context.Context) (int64, error)) *cleaned {
	return &cleaned{calls: make(chan time.Time, 100), cleanup: cleanup}
}

func sweeper(t *testing.T, store idempotent.Store, opts ...func(*idempotent.SweepOptions)) *idempotent.Sweeper {
	t.Helper()
	s, err := idempotent.NewSweeper(store, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	return s
}

func TestSweepDeletesExpiredMarkers(t *testing.T) {
	clock := fxtest.NewClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	store := memory(t, func(o *memstore.Options) { o.Clock = clock })
	r := receiver(t, store, idempotent.Configure(func(o *idempotent.Options) { o.Retention = time.Hour }))
	h := handle(t, r, "billing", nothing[message])
	require.NoError(t, h(t.Context(), withID("m1")))
	s := sweeper(t, store, func(o *idempotent.SweepOptions) { o.Clock = clock })
	for _, c := range []struct {
		after time.Duration
		want  int64
	}{{0, 0}, {time.Hour, 0}, {time.Microsecond, 1}, {0, 0}} {
		clock.Advance(c.after)
		n, err := s.Sweep(t.Context())
		require.NoError(t, err)
		require.Equal(t, c.want, n, c.after)
	}
	require.NoError(t, h(t.Context(), withID("m1")))
	require.EqualValues(t, 2, r.Counts().Processed, "what is forgotten is handled again")
}

func TestSweeperSweepsAtItsIntervalUntilItIsStopped(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	store := cleaning(func(context.Context) (int64, error) { return 1, nil })
	s := sweeper(t, store, func(o *idempotent.SweepOptions) {
		o.Interval = time.Millisecond
		o.Clock = fxtest.NewClock(at)
	})
	require.NoError(t, s.Stop(t.Context()), "before Start")
	for range 2 { // it can be started again
		s.Start()
		s.Start()
		require.Equal(t, at, inboxtest.Receive(t, store.calls, "a sweep"))
		inboxtest.Receive(t, store.calls, "a sweep")
		require.NoError(t, s.Stop(t.Context()))
		require.NoError(t, s.Stop(t.Context()))
		for len(store.calls) > 0 {
			<-store.calls
		}
	}
	require.Never(t, func() bool { return len(store.calls) > 0 }, 20*time.Millisecond, time.Millisecond)
}

func TestConcurrentStartAndStopAreSafe(t *testing.T) {
	s := sweeper(t, memory(t), func(o *idempotent.SweepOptions) { o.Interval = time.Millisecond })
	var done sync.WaitGroup
	for i := range 20 {
		done.Add(1)
		go func() {
			defer done.Done()
			if i%2 == 0 {
				s.Start()
				return
			}
			_ = s.Stop(t.Context())
		}()
	}
	done.Wait()
}

func TestFirstSweepComesOneIntervalAfterStart(t *testing.T) {
	store := cleaning(func(context.Context) (int64, error) { return 0, nil })
	s := sweeper(t, store)
	s.Start()
	require.NoError(t, s.Stop(t.Context()))
	require.Empty(t, store.calls)
	require.Equal(t, idempotent.SweepOptions{Interval: time.Hour, Timeout: time.Minute}, idempotent.DefaultSweepOptions())
}

func TestFailedSweepIsRetried(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("down") },
		"panic": func() error { panic("down") },
	} {
		t.Run(name, func(t *testing.T) {
			core, logs := observer.New(zap.DebugLevel)
			failing := true
			store := cleaning(func(context.Context) (int64, error) {
				if failing {
					failing = false
					return 3, fail()
				}
				return 0, nil
			})
			s := sweeper(t, store, func(o *idempotent.SweepOptions) {
				o.Interval = time.Millisecond
				o.Logger = zap.New(core)
			})
			s.Start()
			inboxtest.Receive(t, store.calls, "a sweep")
			inboxtest.Receive(t, store.calls, "a sweep")
			require.NoError(t, s.Stop(t.Context()))
			failed := logs.FilterMessageSnippet("sweep of processed messages failing")
			require.Equal(t, 1, failed.Len())
			require.Contains(t, failed.All()[0].ContextMap()["error"], "down")
		})
	}
}

func TestStorePanicIsReturnedBySweep(t *testing.T) {
	s := sweeper(t, cleaning(func(context.Context) (int64, error) { panic("odd") }))
	_, err := s.Sweep(t.Context())
	require.ErrorContains(t, err, "sweep processed messages: the store panicked: odd in ")
}

func TestSweepIsBoundedAndContinuesWhereItStopped(t *testing.T) {
	left := int64(3)
	store := cleaning(func(ctx context.Context) (int64, error) { // one batch each time the test allows it
		if left == 0 {
			return 0, nil
		}
		left--
		<-ctx.Done()
		return 1, ctx.Err()
	})
	s := sweeper(t, store, func(o *idempotent.SweepOptions) { o.Timeout = time.Millisecond })
	n, err := s.Sweep(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, n)

	stuck := cleaning(func(ctx context.Context) (int64, error) { <-ctx.Done(); return 0, ctx.Err() })
	_, err = sweeper(t, stuck, func(o *idempotent.SweepOptions) { o.Timeout = time.Millisecond }).Sweep(t.Context())
	require.ErrorIs(t, err, context.DeadlineExceeded, "without progress it is not repeated")
	require.Len(t, stuck.calls, 1)
}

func TestStopInterruptsASweep(t *testing.T) {
	store := cleaning(func(ctx context.Context) (int64, error) { <-ctx.Done(); return 1, ctx.Err() })
	s := sweeper(t, store, func(o *idempotent.SweepOptions) { o.Interval = time.Millisecond })
	s.Start()
	inboxtest.Receive(t, store.calls, "a sweep")
	require.NoError(t, s.Stop(t.Context()))
}

func TestStopReturnsWhenItsContextEnds(t *testing.T) {
	release := make(chan struct{})
	store := cleaning(func(context.Context) (int64, error) { <-release; return 0, nil }) // ignores its context
	s := sweeper(t, store, func(o *idempotent.SweepOptions) { o.Interval = time.Millisecond })
	s.Start()
	inboxtest.Receive(t, store.calls, "a sweep")
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Stop(ctx), context.DeadlineExceeded)
	close(release)
}

// Otherwise two loops would sweep at once, and a program that closes the store after Stop would
// close it during a sweep.
func TestEveryStopAndStartWaitsForTheCurrentSweep(t *testing.T) {
	entered, release := make(chan struct{}, 10), make(chan struct{})
	store := cleaning(func(context.Context) (int64, error) { // ignores its context
		entered <- struct{}{}
		<-release
		return 0, nil
	})
	s := sweeper(t, store, func(o *idempotent.SweepOptions) { o.Interval = time.Millisecond })
	s.Start()
	inboxtest.Receive(t, entered, "a sweep")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		require.ErrorIs(t, s.Stop(ended), context.Canceled, "the call is still under way")
	}
	patient, waiting := make(chan error, 1), inboxtest.Watch(context.Background())
	go func() { patient <- s.Stop(waiting) }()
	inboxtest.Receive(t, waiting.DoneCalled, "the patient Stop to wait")
	beside := make(chan error, 1)
	go func() { beside <- s.Stop(ended) }()
	require.ErrorIs(t, inboxtest.Receive(t, beside, "the other Stop"), context.Canceled,
		"a Stop does not wait for another's context")
	require.Empty(t, patient)
	s.Start()
	s.Start()
	require.Never(t, func() bool {
		return len(entered) > 0
	}, 50*time.Millisecond, time.Millisecond, "a second loop beside the first")
	require.ErrorIs(t, s.Stop(ended), context.Canceled)
	s.Start()
	close(release)
	inboxtest.Receive(t, entered, "a sweep")
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, inboxtest.Receive(t, patient, "the patient Stop"))
	for len(entered) > 0 {
		<-entered
	}
	require.Never(t, func() bool { return len(entered) > 0 }, 20*time.Millisecond, time.Millisecond, "stopped")
}

func TestSweeperDeclarationErrorsNameTheProblem(t *testing.T) {
	var overlooked *memstore.Store
	for _, c := range []struct {
		store idempotent.Store
		opt   func(*idempotent.SweepOptions)
		want  string
	}{
		{nil, nil, "the store is nil"},
		{overlooked, nil, "the store is nil"},
		{memory(t), func(o *idempotent.SweepOptions) { o.Interval = 0 }, "option Interval = 0s: must be more than 0"},
		{memory(t), func(o *idempotent.SweepOptions) { o.Timeout = -1 }, "option Timeout = -1ns: must be more than 0"},
		{memory(t), func(o *idempotent.SweepOptions) {
			*o = idempotent.SweepOptions{}
		}, "start from idempotent.DefaultSweepOptions()"},
	} {
		_, err := idempotent.NewSweeper(c.store, c.opt)
		require.ErrorContains(t, err, "idempotent sweeper: ")
		require.ErrorContains(t, err, c.want)
	}
}

func TestFailingSweepsLogBeginAndEnd(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	clock := fxtest.NewClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	calls := 0
	const failures, reminded = 7, 5 // the fifth comes after the time of a reminder
	store := cleaning(func(context.Context) (int64, error) {
		calls++
		if calls == reminded {
			clock.Advance(5 * time.Minute)
		}
		if calls <= failures {
			return 0, errors.New("down")
		}
		return 0, nil
	})
	s := sweeper(t, store, func(o *idempotent.SweepOptions) {
		o.Interval = time.Millisecond
		o.Clock = clock
		o.Logger = zap.New(core)
	})
	s.Start()
	require.Eventually(t, func() bool {
		return logs.FilterMessageSnippet("swept").Len() > 0
	}, inboxtest.Patience, time.Millisecond)
	var lines []string
	for _, entry := range logs.All()[:4] {
		lines = append(lines, entry.Message)
	}
	require.Equal(t, []string{
		"inbox: sweep of processed messages failing: it is tried again after its interval",
		"inbox: sweep of processed messages still failing: it is tried again after its interval",
		"inbox: sweep of processed messages recovered",
		"inbox: swept processed messages",
	}, lines)
	require.EqualValues(t, failures, logs.FilterMessageSnippet("recovered").All()[0].ContextMap()["times"])
}
