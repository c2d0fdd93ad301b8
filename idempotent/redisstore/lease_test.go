package redisstore_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
)

func TestClaimAndMarkerAreAsDocumented(t *testing.T) {
	r := newRig(t)
	store := r.store(t)
	warm(t, store)
	began := time.Now()
	_, err := store.Run(t.Context(), run(payment), func(ctx context.Context) error {
		require.Regexp(t, `^claimed [A-Z2-7]{26}$`, r.value(t))
		left := r.client.PTTL(ctx, r.key()).Val()
		require.LessOrEqual(t, left, 30*time.Second)
		require.Greater(t, left, 30*time.Second-time.Since(began)-time.Second)
		return nil
	})
	require.NoError(t, err)
	fields := strings.SplitN(r.value(t), " ", 4)
	require.Len(t, fields, 4)
	require.Equal(t, []string{"processed", "payment.made"}, []string{fields[0], fields[3]})
	at, err := time.Parse(time.RFC3339Nano, fields[2])
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), at, time.Minute)
	r.requireTTL(t, time.Hour)
}

func (r rig) requireTTL(t *testing.T, want time.Duration) {
	t.Helper()
	left := r.client.PTTL(t.Context(), r.key()).Val()
	require.LessOrEqual(t, left, want)
	require.Greater(t, left, want-time.Minute)
}

func TestRunRetentionOverridesTheStores(t *testing.T) {
	for name, c := range map[string]struct {
		run  time.Duration
		opts []func(*redisstore.Options)
		want time.Duration
	}{
		"the run's": {run: 90 * time.Minute, opts: []func(*redisstore.Options){func(o *redisstore.Options) {
			o.Retention = time.Hour
		}},
			want: 90 * time.Minute},
		"the store's": {opts: []func(*redisstore.Options){func(o *redisstore.Options) {
			o.Retention = 3 * time.Hour
		}}, want: 3 * time.Hour},
		"the default, seven days": {want: 7 * 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			_, err := r.store(t, c.opts...).Run(t.Context(), idempotent.Run{Key: payment, Retention: c.run}, succeed)
			require.NoError(t, err)
			r.requireTTL(t, c.want)
		})
	}
	t.Run("one that is none runs nothing", func(t *testing.T) {
		r := newRig(t)
		_, err := r.store(t).Run(t.Context(), idempotent.Run{Key: payment, Retention: -time.Second},
			func(context.Context) error { panic("called") })
		require.ErrorContains(t, err, `handler "billing", message "m1": retention is -1s: must be 1ms or more`)
		require.Empty(t, r.value(t))
	})
}

func TestHandlerWithoutRetentionUsesTheStores(t *testing.T) {
	for name, c := range map[string]struct {
		opts []idempotent.Option
		want time.Duration
	}{
		"the default, seven days": {want: 7 * 24 * time.Hour},
		"the handler's": {opts: []idempotent.Option{idempotent.Configure(func(o *idempotent.Options) {
			o.Retention = 2 * time.Hour
		})}, want: 2 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			byID := idempotent.KeyBy(func(id string) (string, error) { return id, nil })
			handle, err := idempotent.Wrap(r.store(t), payment.HandlerKey, func(context.Context, string) error { return nil },
				append(c.opts, byID)...)
			require.NoError(t, err)
			require.NoError(t, handle(t.Context(), payment.MessageID))
			r.requireTTL(t, c.want)
		})
	}
}

func TestLeaseIsRenewedWhileTheBodyRuns(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	r := newRig(t)
	store, other := r.store(t, func(o *redisstore.Options) { o.Lease = lease }), r.store(t,
		func(o *redisstore.Options) { o.WaitTimeout = 0 })
	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	duplicate, err := store.Run(ctx, run(payment), func(ctx context.Context) error {
		for time.Since(began) < 5*lease/2 {
			_, err := other.Run(t.Context(), run(payment), succeed)
			require.ErrorIs(t, err, idempotent.ErrInProgress, "after %s", time.Since(began))
			if time.Since(began) > 3*lease/2 {
				cancel() // a caller that gives up does not end the protection of the body
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.False(t, duplicate)
	require.True(t, processed(t, store))
}

func TestLostClaimCancelsTheBodyUnacknowledged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ value, result string }{
		"expired, success":          {value: ""},
		"expired, failure":          {value: "", result: "the card was refused"},
		"taken by another, success": {value: "claimed other"},
		"taken by another, failure": {value: "claimed other", result: "the card was refused"},
		"processed by another":      {value: "processed other"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			var result error
			if c.result != "" {
				result = errors.New(c.result)
			}
			duplicate, err := r.store(t, func(o *redisstore.Options) { o.Lease = time.Second }).Run(t.Context(), run(payment),
				func(ctx context.Context) error {
					r.replace(t, c.value)
					select {
					case <-ctx.Done():
					case <-time.After(patience):
					}
					require.ErrorIs(t, ctx.Err(), context.Canceled)
					require.ErrorIs(t, context.Cause(ctx), idempotent.ErrLost)
					return result
				})
			require.ErrorIs(t, err, idempotent.ErrLost)
			if result != nil {
				require.ErrorIs(t, err, result)
			}
			require.False(t, duplicate)
			require.Equal(t, c.value, r.value(t), "what is there now is not ours to change")
		})
	}
}

// replace changes the store as if a lease had ended and another call had come.
func (r rig) replace(t *testing.T, value string) {
	t.Helper()
	require.NoError(t, r.client.Del(t.Context(), r.key()).Err())
	if value != "" {
		require.NoError(t, r.client.Set(t.Context(), r.key(), value, time.Minute).Err())
	}
}

func TestBodyIgnoringALostLeaseIsNotAcknowledged(t *testing.T) {
	refused := errors.New("the card was refused")
	for name, c := range map[string]struct {
		value  string
		result error
		want   error
	}{
		"expired":                        {"", nil, idempotent.ErrLost},
		"taken by another":               {"claimed other", nil, idempotent.ErrLost},
		"processed by another":           {"processed other", nil, idempotent.ErrLost},
		"expired and failed":             {"", refused, refused},
		"taken by another and failed":    {"claimed other", refused, idempotent.ErrLost},
		"processed by another, and fail": {"processed other", refused, idempotent.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			_, err := r.store(t).Run(t.Context(), run(payment), func(ctx context.Context) error {
				r.replace(t, c.value)
				require.NoError(t, ctx.Err()) // long before the first renewal
				return c.result
			})
			require.ErrorIs(t, err, c.want)
			if c.result != nil {
				require.ErrorIs(t, err, c.result)
			}
			require.Equal(t, c.value, r.value(t))
		})
	}
}

// The whole process is suspended: neither its clock nor its renewal can notice, and it resumes with
// a success.
func TestProcessFrozenBeyondItsLeaseIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := startElsewhere(t, order{r.url, r.prefix, time.Second, run(payment)})
	require.NoError(t, e.command.Process.Signal(syscall.SIGSTOP))
	calls := 0
	store := r.store(t, func(o *redisstore.Options) { o.WaitTimeout = patience })
	duplicate, err := store.Run(t.Context(), run(payment), func(context.Context) error {
		calls++
		_, err := e.input.Write([]byte("x")) // its body returns as soon as the process resumes
		require.NoError(t, err)
		require.NoError(t, e.command.Process.Signal(syscall.SIGCONT))
		require.Equal(t, "duplicate false lost true nil false\n", e.line(t))
		return nil
	})
	require.NoError(t, err, "the claim of the second call was not the first's to release or to finalise")
	require.False(t, duplicate)
	require.Equal(t, 1, calls)
	require.True(t, processed(t, store))
}

func TestLiveClaimIsNeitherRunNorAcknowledged(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.client.Set(t.Context(), r.key(), "claimed other", time.Minute).Err())
	for name, c := range map[string]struct{ wait, atLeast time.Duration }{
		"at once":           {0, 0},
		"after WaitTimeout": {200 * time.Millisecond, 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			duplicate, err := r.store(t, func(o *redisstore.Options) { o.WaitTimeout = c.wait }).Run(t.Context(), run(payment),
				func(context.Context) error { panic("called") })
			require.ErrorIs(t, err, idempotent.ErrInProgress)
			require.False(t, duplicate)
			require.GreaterOrEqual(t, time.Since(began), c.atLeast)
		})
	}
	t.Run("nor when its context ends first", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		duplicate, err := r.store(t, func(o *redisstore.Options) { o.WaitTimeout = time.Hour }).Run(ctx, run(payment),
			func(context.Context) error { panic("called") })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, idempotent.ErrLost)
		require.False(t, duplicate)
	})
	require.Equal(t, "claimed other", r.value(t))
}

func TestSuccessIsRecordedAfterTheCallerLeft(t *testing.T) {
	r := newRig(t)
	store := r.store(t)
	ctx, cancel := context.WithCancel(t.Context())
	duplicate, err := store.Run(ctx, run(payment), func(context.Context) error {
		cancel()
		return nil
	})
	require.NoError(t, err)
	require.False(t, duplicate)
	require.True(t, processed(t, store))
}

func TestFailureReleasesTheClaimAfterTheCallerLeft(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	refused := errors.New("the card was refused")
	_, err := r.store(t).Run(ctx, run(payment), func(context.Context) error {
		cancel()
		return refused
	})
	require.Same(t, refused, err, "the body's error as it is")
	require.Empty(t, r.value(t))
}

func TestForeignValuesAreNotTouched(t *testing.T) {
	r := newRig(t)
	store := r.store(t)
	require.NoError(t, r.client.Set(t.Context(), r.key(), "a session", time.Minute).Err())
	_, err := store.Run(t.Context(), run(payment), func(context.Context) error { panic("called") })
	require.ErrorContains(t, err,
		`handler "billing", message "m1": its key in Redis holds something that is no claim and no marker`)
	_, err = store.Processed(t.Context(), payment)
	require.ErrorContains(t, err, "give the store a KeyPrefix of its own")
	require.Equal(t, "a session", r.value(t))
}

func TestPrefixesSeparateKeys(t *testing.T) {
	r := newRig(t)
	for i, c := range []struct{ prefix, handler, id string }{
		{":a", "b", "c"}, {"", "a:b", "c"}, {"", "a", "b:c"}, {":{a", "b", "c"}, {":{a:b}", "c", "d"}, {"", "a%3Ab", "c"},
		{":{a}", "b", "c"},
	} {
		store := r.store(t, func(o *redisstore.Options) { o.KeyPrefix = r.prefix + c.prefix })
		duplicate, err := store.Run(t.Context(), run(idempotent.Key{MessageID: c.id, HandlerKey: c.handler}), succeed)
		require.NoError(t, err)
		require.False(t, duplicate, "%d: %+v", i, c)
	}
}
