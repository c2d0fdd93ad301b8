package idempotenttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent"
)

const callers = 50

// outcome is the result of one call of Run.
type outcome struct {
	duplicate bool
	err       error
}

// atOnce makes concurrent calls of the run and returns their results.
func atOnce(ctx context.Context, f Fixture, r idempotent.Run, body func(context.Context) error) []outcome {
	outcomes := make([]outcome, callers)
	var ready, done sync.WaitGroup
	ready.Add(callers)
	begin := make(chan struct{})
	for i := range outcomes {
		done.Add(1)
		go func() {
			defer done.Done()
			ready.Done()
			<-begin
			outcomes[i].duplicate, outcomes[i].err = f.Store.Run(ctx, r, body)
		}()
	}
	ready.Wait()
	close(begin)
	done.Wait()
	return outcomes
}

// moment is how long the suite waits for something that must not happen.
const moment = 50 * time.Millisecond

// bodies counts the calls of one body, which must not overlap.
type bodies struct {
	calls, running, overlaps atomic.Int32
	first                    error // the first call's result
}

// call counts a call. The first one takes a moment, so that others can come.
func (b *bodies) call(context.Context) error {
	n := b.calls.Add(1)
	if b.running.Add(1) > 1 {
		b.overlaps.Add(1)
	}
	defer b.running.Add(-1)
	if n > 1 {
		return nil
	}
	<-time.After(moment)
	return b.first
}

var concurrent = []promise{
	{"of 50 calls at the same time one handles the message", func(t *testing.T, f Fixture) {
		r, b := run("m1", "handler"), &bodies{}
		var handled int
		for _, o := range atOnce(t.Context(), f, r, b.call) {
			switch {
			case o.err == nil && !o.duplicate:
				handled++
			case o.err != nil:
				require.ErrorIs(t, o.err, idempotent.ErrInProgress, "the others are duplicates, or told that it is in progress")
				require.False(t, o.duplicate)
			}
		}
		require.Equal(t, []int32{1, 0}, []int32{b.calls.Load(), b.overlaps.Load()}, "bodies called, overlaps")
		require.Equal(t, 1, handled)
		require.True(t, processed(t, f, r.Key))
		skipped(t, f, r)
	}},
	{"of 50 calls at the same time another handles the message that the first failed", func(t *testing.T, f Fixture) {
		r, b := run("m1", "handler"), &bodies{first: errBody}
		var failed, handled int
		for deadline := time.Now().Add(patience); handled == 0; { // calls that did not wait are made again
			require.True(t, time.Now().Before(deadline), "waited in vain until the message was handled")
			for _, o := range atOnce(t.Context(), f, r, b.call) {
				switch {
				case errors.Is(o.err, errBody):
					failed++
				case o.err == nil && !o.duplicate:
					handled++
				case o.err != nil:
					require.ErrorIs(t, o.err, idempotent.ErrInProgress)
				}
			}
		}
		require.Equal(t, []int{1, 1}, []int{failed, handled}, "failed, handled")
		require.Equal(t, []int32{2, 0}, []int32{b.calls.Load(), b.overlaps.Load()}, "bodies called, overlaps")
		require.True(t, processed(t, f, r.Key))
	}},
	{"50 messages at the same time are each handled once by each of two handlers", func(t *testing.T, f Fixture) {
		var mu sync.Mutex
		calls, problems := map[idempotent.Key]int{}, []error(nil)
		var done sync.WaitGroup
		for i := range callers {
			for _, handlerKey := range []string{"a", "b"} {
				done.Add(1)
				go func() {
					defer done.Done()
					r := run(fmt.Sprintf("m%d", i), handlerKey)
					for again := true; again; { // a store may allow one writer at a time and return ErrInProgress
						_, err := f.Store.Run(t.Context(), r, func(context.Context) error {
							mu.Lock()
							defer mu.Unlock()
							calls[r.Key]++
							return nil
						})
						again = errors.Is(err, idempotent.ErrInProgress)
						if err != nil && !again {
							mu.Lock()
							problems = append(problems, err)
							mu.Unlock()
						}
					}
				}()
			}
		}
		done.Wait()
		require.Empty(t, problems)
		require.Len(t, calls, 2*callers)
		for key, n := range calls {
			require.Equal(t, 1, n, "%+v", key)
		}
	}},
	{"a message that is being handled is not processed, nor handled beside", func(t *testing.T, f Fixture) {
		r := run("m1", "handler")
		first := begin(t, f, r)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		is, _ := f.Store.Processed(ctx, r.Key) // it may fail because the store is busy, but must not return true
		require.False(t, is)
		second, calls := make(chan outcome, 1), 0
		go func() {
			var o outcome
			o.duplicate, o.err = f.Store.Run(ctx, r, counting(&calls, nil))
			second <- o
		}()
		o := wait(t, second, "the second call's end")
		cancel()
		require.Error(t, o.err, "it must not be acknowledged")
		require.True(t, errors.Is(o.err, idempotent.ErrInProgress) || errors.Is(o.err, context.DeadlineExceeded), "%v", o.err)
		require.False(t, o.duplicate)
		require.Zero(t, calls)
		require.NoError(t, first.end(t, nil))
		skipped(t, f, r)
	}},
	{"cleanup beside a run takes nothing away from it", func(t *testing.T, f Fixture) {
		r := run("m1", "handler")
		first := begin(t, f, r)
		cleaned := make(chan error, 1)
		go func() {
			_, err := f.Store.Cleanup(t.Context(), f.now().Add(-10*365*24*time.Hour))
			cleaned <- err
		}()
		require.NoError(t, first.end(t, nil))
		require.NoError(t, wait(t, cleaned, "cleanup's end"))
		skipped(t, f, r)
	}},
}

// underway is a call whose body waits until the test says how to end.
type underway struct {
	result chan error
	done   chan outcome
}

// begin starts a run and returns when its body has been called.
func begin(t *testing.T, f Fixture, r idempotent.Run) underway {
	t.Helper()
	u := underway{make(chan error, 1), make(chan outcome, 1)}
	t.Cleanup(func() { // end the body however the test ends
		select {
		case u.result <- errBody:
		default:
		}
	})
	called := make(chan struct{})
	go func() {
		var o outcome
		o.duplicate, o.err = f.Store.Run(t.Context(), r, func(context.Context) error {
			close(called)
			return <-u.result
		})
		u.done <- o
	}()
	wait(t, called, "the body's call")
	return u
}

// end makes the body return err, and returns the result of Run.
func (u underway) end(t *testing.T, err error) error {
	t.Helper()
	u.result <- err
	o := wait(t, u.done, "the end of the call under way")
	require.False(t, o.duplicate)
	return o.err
}

func wait[T any](t *testing.T, signals <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-signals:
		return v
	case <-timer.C:
		require.FailNow(t, "waited in vain for "+what)
		panic("unreachable")
	}
}
