package idempotenttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent"
)

// slack is more than the clocks of the test and of the store may differ by.
const slack = 10 * time.Minute

var forgetting = []promise{
	{"cleanup forgets only what has expired before, and counts it", func(t *testing.T, f Fixture) {
		const short, long = 60, 3
		for i := range short + long {
			r := run(fmt.Sprintf("m%d", i), "handler")
			r.Retention = 2 * time.Hour
			if i >= short {
				r.Retention = 6 * time.Hour
			}
			handled(t, f, r)
		}
		for _, c := range []struct {
			olderThan time.Duration
			want      int64
		}{
			{-time.Hour, 0}, {0, 0}, {2*time.Hour - slack, 0}, {2*time.Hour + slack, short}, {2*time.Hour + slack, 0},
			{6*time.Hour - slack, 0}, {6*time.Hour + slack, long}, {1000 * time.Hour, 0},
		} {
			if f.Forgets {
				c.want = 0
			}
			n, err := f.Store.Cleanup(t.Context(), f.now().Add(c.olderThan))
			require.NoError(t, err)
			require.Equal(t, c.want, n, "forgotten that expired before %s from now", c.olderThan)
			if c.olderThan < 6*time.Hour {
				skipped(t, f, run(fmt.Sprintf("m%d", short), "handler"))
			}
		}
		r := run("m0", "handler")
		require.Equal(t, f.Forgets, processed(t, f, r.Key), "a store that forgets by itself does so by its own time")
		if !f.Forgets {
			handled(t, f, r)
		}
		skipped(t, f, r)
	}},
	{"a run without a retention is remembered for the store's own", func(t *testing.T, f Fixture) {
		r := run("m1", "handler")
		r.Retention = 0
		handled(t, f, r)
		skipped(t, f, r)
		n, err := f.Store.Cleanup(t.Context(), f.now().Add(slack))
		require.NoError(t, err)
		require.Zero(t, n)
		skipped(t, f, r)
	}},
	{"cleanup of nothing is no error", func(t *testing.T, f Fixture) {
		n, err := f.Store.Cleanup(t.Context(), f.now())
		require.NoError(t, err)
		require.Zero(t, n)
	}},
}

// capability is a promise that not every store makes.
type capability struct {
	promise
	applies func(Fixture) bool
	without string // why it is not tried if it does not apply
}

var capabilities = []capability{
	{promise{"what is past its retention is a duplicate until cleanup", func(t *testing.T, f Fixture) {
		r := run("m1", "handler")
		r.Retention = time.Millisecond
		handled(t, f, r)
		if f.Advance != nil {
			f.Advance(slack)
		} else {
			<-time.After(20 * time.Millisecond) // there is no signal to wait for
		}
		require.True(t, processed(t, f, r.Key), "the marker's presence decides, not its expiry")
		skipped(t, f, r)
		n, err := f.Store.Cleanup(t.Context(), f.now().Add(2*slack))
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		require.False(t, processed(t, f, r.Key))
		handled(t, f, r)
	}}, func(f Fixture) bool { return !f.Forgets }, "Fixture.Forgets is true"},

	{promise{"what is past its retention is forgotten", func(t *testing.T, f Fixture) {
		short, long := run("m1", "handler"), run("m2", "handler")
		short.Retention = 200 * time.Millisecond
		handled(t, f, long)
		handled(t, f, short)
		if f.Advance != nil {
			f.Advance(slack)
		}
		deadline := time.Now().Add(patience)
		for tick := time.NewTicker(5 * time.Millisecond); processed(t, f, short.Key); <-tick.C {
			require.True(t, time.Now().Before(deadline), "waited in vain until it was forgotten")
		}
		handled(t, f, short)
		skipped(t, f, long)
	}}, func(f Fixture) bool { return f.Forgets }, "Fixture.Forgets is false"},

	{promise{"a call waits for another and is a duplicate after its success", func(t *testing.T, f Fixture) {
		r := run("m1", "handler")
		first := begin(t, f, r)
		second, calls := waiting(t.Context(), t, f, r, f.Waits*8/10)
		require.NoError(t, first.end(t, nil))
		require.Equal(t, outcome{duplicate: true}, wait(t, second, "the second call's end"))
		require.Zero(t, *calls)
	}}, waits, "Fixture.Waits is 0"},

	{promise{"a call waits for another and handles the message after its failure", func(t *testing.T, f Fixture) {
		r := run("m1", "handler")
		first := begin(t, f, r)
		second, calls := waiting(t.Context(), t, f, r, moment)
		require.ErrorIs(t, first.end(t, errBody), errBody)
		require.Equal(t, outcome{}, wait(t, second, "the second call's end"))
		require.Equal(t, 1, *calls)
		skipped(t, f, r)
	}}, waits, "Fixture.Waits is 0"},

	{promise{"a call that waits for another ends with its context", func(t *testing.T, f Fixture) {
		r := run("m1", "handler")
		first := begin(t, f, r)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		second, calls := waiting(ctx, t, f, r, moment)
		cancel()
		cancelled := time.Now()
		o := wait(t, second, "the second call's end")
		if f.Waits >= 3*time.Second { // otherwise it may have waited for all of Waits
			require.Less(t, time.Since(cancelled), cmp.Or(f.Notices, f.Waits*8/10), "it has not noticed")
		}
		require.Error(t, o.err)
		require.False(t, o.duplicate)
		require.Zero(t, *calls)
		require.NoError(t, first.end(t, nil))
		skipped(t, f, r)
	}}, waits, "Fixture.Waits is 0"},

	{promise{"a process that dies in the body leaves no marker", func(t *testing.T, f Fixture) {
		r := run("m1", "handler")
		f.Crash(t, r)
		require.False(t, processed(t, f, r.Key))
		handled(t, f, r)
		skipped(t, f, r)
	}}, func(f Fixture) bool { return f.Crash != nil }, "Fixture.Crash is nil"},

	{promise{"a process that dies takes nothing with it that was processed", func(t *testing.T, f Fixture) {
		before := run("m1", "handler")
		handled(t, f, before)
		f.Crash(t, run("m2", "handler"))
		skipped(t, f, before)
	}}, func(f Fixture) bool { return f.Crash != nil }, "Fixture.Crash is nil"},

	{promise{"a call that has lost its key to another cannot say that it is processed", func(t *testing.T, f Fixture) {
		for name, result := range map[string]error{"success": nil, "failure": errBody} {
			r := run("m-"+name, "handler")
			first := begin(t, f, r)
			f.Usurp(t, r.Key)
			if err := first.end(t, result); result == nil {
				require.ErrorIs(t, err, idempotent.ErrLost)
			} else {
				require.Error(t, err)
			}
			require.False(t, processed(t, f, r.Key), "the other has not ended")
			calls := 0
			duplicate, err := f.Store.Run(t.Context(), r, counting(&calls, nil))
			require.True(t, errors.Is(err, idempotent.ErrInProgress), "the other's claim stands after %s, but got %v", name, err)
			require.False(t, duplicate)
			require.Zero(t, calls)
		}
	}}, func(f Fixture) bool { return f.Usurp != nil }, "Fixture.Usurp is nil"},
}

func waits(f Fixture) bool { return f.Waits > 0 }

// waiting makes a call while another is in progress, and checks that it waits.
func waiting(
	ctx context.Context, t *testing.T, f Fixture, r idempotent.Run, long time.Duration,
) (ended chan outcome, calls *int) {
	t.Helper()
	ended, calls = make(chan outcome, 1), new(int)
	go func() {
		var o outcome
		o.duplicate, o.err = f.Store.Run(ctx, r, counting(calls, nil))
		ended <- o
	}()
	select {
	case o := <-ended:
		require.Failf(t, "a call does not wait for another", "it returned %+v", o)
	case <-time.After(min(long, f.Waits*8/10)):
	}
	return ended, calls
}
