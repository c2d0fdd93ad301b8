package attempt_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
)

// odd is an error whose own Is panics.
type odd struct{}

func (odd) Error() string { return "odd" }

func (odd) Is(error) bool { panic("Is") }

// Contract 5.5, 5.7, 5.8, 7.6: what an attempt's error means, in the order in which it is decided.
func TestErrorDecidesTheOutcome(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	stop := attempt.NewInterruption("stop")
	undecodable := &handler.DecodeError{Err: boom}
	cut := func(charged bool) *attempt.Cut {
		return &attempt.Cut{Reason: boom, Delay: time.Minute, Database: true, Charged: charged}
	}
	const second, last = 1, 2 // failures so far, of three that are allowed
	completed := attempt.Verdict{Outcome: handler.AttemptCompleted}
	failed := func(delay time.Duration) attempt.Verdict {
		return attempt.Verdict{Outcome: handler.AttemptFailed, Charged: true, Delay: delay}
	}
	poisoned := attempt.Verdict{Outcome: handler.AttemptPoisoned, Charged: true}
	uncharged := attempt.Verdict{Outcome: handler.AttemptPoisoned}
	snoozed := attempt.Verdict{Outcome: handler.AttemptSnoozed, Delay: time.Second}
	released := attempt.Verdict{Outcome: handler.AttemptReleased}
	with := func(v attempt.Verdict, delay time.Duration, c *attempt.Cut) attempt.Verdict {
		v.Delay, v.Cut = delay, c
		return v
	}
	for name, c := range map[string]struct {
		err      error
		cause    error
		failures int
		want     attempt.Verdict // without Err
		text     string
	}{
		"nil has completed":                       {want: completed},
		"nil has completed after a timeout":       {cause: attempt.ErrTimeout, want: completed},
		"nil has completed during a stop":         {cause: stop, want: completed},
		"an error is charged and retried":         {boom, nil, second, failed(2 * time.Hour), "boom"},
		"the last retry poisons":                  {boom, nil, last, poisoned, "boom"},
		"RetryAfter sets the delay":               {handler.RetryAfter(time.Second, boom), nil, 0, failed(time.Second), "boom"},
		"RetryAfter is limited, too":              {handler.RetryAfter(time.Second, boom), nil, last, poisoned, "boom"},
		"Poison poisons at once":                  {fmt.Errorf("wrapped: %w", handler.Poison(boom)), nil, 0, poisoned, "boom"},
		"Poison counts during a stop":             {handler.Poison(boom), stop, 0, poisoned, "boom"},
		"Poison outranks Snooze":                  {errors.Join(handler.Snooze(time.Second), handler.Poison(boom)), nil, 0, poisoned, "boom"},
		"Snooze is not charged":                   {handler.Snooze(time.Second), nil, last, snoozed, ""},
		"Snooze counts during a stop":             {handler.Snooze(time.Second), stop, 0, snoozed, ""},
		"a body that no codec reads poisons":      {undecodable, nil, 0, uncharged, "boom"},
		"RetryAfter outranks an undecodable body": {handler.RetryAfter(time.Second, undecodable), nil, 0, failed(time.Second), "boom"},
		"what is stored wrongly poisons":          {&attempt.Unrecoverable{Reason: boom}, nil, 0, uncharged, "boom"},
		"a timeout is charged":                    {context.DeadlineExceeded, attempt.ErrTimeout, 0, failed(time.Hour), "handler timed out after 3s"},
		"a stop is not charged":                   {context.Canceled, stop, last, released, "context canceled"},
		"an attempt that may not start":           {stop, nil, last, released, "stop"},
		"the database's failure is not charged":   {cut(false), nil, last, with(released, time.Minute, cut(false)), "boom"},
		"nor with Poison in it":                   {errors.Join(handler.Poison(boom), cut(false)), nil, 0, with(released, time.Minute, cut(false)), "boom"},
		"the message that causes it is charged":   {cut(true), nil, 0, with(failed(0), time.Minute, cut(true)), "boom"},
		"and poisoned at last":                    {cut(true), nil, last, with(poisoned, 0, cut(true)), "boom"},
		"a timeout in a cut is the handler's":     {cut(false), attempt.ErrTimeout, 0, failed(time.Hour), "handler timed out after 3s: boom"},
		"an error that panics is a failure":       {odd{}, nil, 0, failed(time.Hour), "handler panicked: the handler's error: Is"},
	} {
		t.Run(name, func(t *testing.T) {
			a := attempt.Attempt{Err: c.err, Cause: c.cause, Failures: c.failures, Timeout: 3 * time.Second,
				Policy: attempt.Policy{MaxRetries: 3, Delay: func(failures int) time.Duration {
					return time.Duration(failures) * time.Hour
				}}}
			got := a.Verdict()
			if c.text == "" {
				require.NoError(t, got.Err)
			} else {
				require.ErrorContains(t, got.Err, c.text)
			}
			got.Err = nil
			require.Equal(t, c.want, got)
		})
	}
}

// Contract 5.6: 0 and 1 retries both mean that the first failure poisons.
func TestFirstFailurePoisonsWithoutRetries(t *testing.T) {
	t.Parallel()
	for _, retries := range []int{0, 1} {
		a := attempt.Attempt{Err: errors.New("boom"), Policy: attempt.Policy{MaxRetries: retries}}
		require.Equal(t, handler.AttemptPoisoned, a.Verdict().Outcome)
	}
}

// Contract 5.6: the wait is between half of min(2^count seconds, limit) and all of it.
func TestBackoffDoublesUpToItsLimit(t *testing.T) {
	t.Parallel()
	for count, base := range map[int]time.Duration{-1: time.Second, 0: time.Second, 1: 2 * time.Second,
		5: 32 * time.Second, 6: time.Minute, 33: time.Minute, 1 << 40: time.Minute} {
		for range 100 {
			got := attempt.Backoff(count, time.Minute)
			require.GreaterOrEqual(t, got, base/2, count)
			require.LessOrEqual(t, got, base, count)
		}
		require.Equal(t, base/2, attempt.MinBackoff(count, time.Minute))
	}
}
