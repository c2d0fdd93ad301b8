package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
)

var errLine = errors.New("the line is dead")

// line is the connection to the server: it can lose commands and responses.
type line func(ctx context.Context, cmd redis.Cmder, send func() error) error

func (l line) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l line) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := l(ctx, cmd, func() error { return next(ctx, cmd) })
		if err != nil {
			cmd.SetErr(err)
		}
		return err
	}
}

func (l line) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// pass loses nothing.
func pass(_ context.Context, _ redis.Cmder, send func() error) error { return send() }

// beforeRedis7 has the server refuse SET with NX and GET, as Redis before 7.0 does.
func (r rig) beforeRedis7(l line) line {
	return func(ctx context.Context, cmd redis.Cmder, send func() error) error {
		if cmd.Name() == "set" && slices.Contains(cmd.Args(), any("get")) {
			return r.client.Do(ctx, "set", r.key(), "", "nx", "xx").Err()
		}
		return l(ctx, cmd, send)
	}
}

// on returns a store that uses such a line.
func (r rig) on(t *testing.T, l line, opts ...func(*redisstore.Options)) *redisstore.Store {
	t.Helper()
	client := r.another(t)
	client.AddHook(l)
	return r.storeOn(t, client, opts...)
}

// finalises reports whether the command is a finalise, by its third argument, the marker.
func finalises(cmd redis.Cmder) bool {
	return slices.ContainsFunc(cmd.Args(), func(a any) bool { return strings.HasPrefix(fmt.Sprint(a), "processed ") })
}

// releases reports whether the command is a release, the only script with a single argument.
func releases(cmd redis.Cmder) bool {
	return strings.HasPrefix(cmd.Name(), "eval") && len(cmd.Args()) == 5
}

func TestFinaliseWithLostResponseIsRepeated(t *testing.T) {
	r := newRig(t)
	var asked atomic.Int32
	store := r.on(t, func(_ context.Context, cmd redis.Cmder, send func() error) error {
		err := send()
		if finalises(cmd) && err == nil && asked.Add(1) == 1 {
			return errLine
		}
		return err
	}, func(o *redisstore.Options) { o.Lease = patience })
	handled(t, store)
	require.EqualValues(t, 2, asked.Load())
	require.True(t, processed(t, store))
}

func TestFailedFinaliseIsNotAcknowledged(t *testing.T) {
	for name, cancelled := range map[string]bool{"until the lease's end": false,
		"twice for a caller that has gone": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			var asked atomic.Int32
			store := r.on(t, func(_ context.Context, cmd redis.Cmder, send func() error) error {
				if finalises(cmd) {
					asked.Add(1)
					return errLine
				}
				return send()
			}, func(o *redisstore.Options) { o.Lease = 3 * time.Second })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			began, calls := time.Now(), 0
			duplicate, err := store.Run(ctx, run(payment), func(context.Context) error {
				calls++
				if cancelled {
					cancel()
				}
				return nil
			})
			require.ErrorIs(t, err, idempotent.ErrLost)
			require.ErrorIs(t, err, errLine)
			require.False(t, duplicate)
			require.False(t, processed(t, store))
			if cancelled {
				require.EqualValues(t, 2, asked.Load())
			} else {
				require.Greater(t, asked.Load(), int32(2))
				require.GreaterOrEqual(t, time.Since(began), 3*time.Second)
			}
			duplicate, err = r.store(t).Run(t.Context(), run(payment), func(context.Context) error { calls++; return nil })
			require.NoError(t, err, "the lease runs out")
			require.False(t, duplicate)
			require.Equal(t, 2, calls, "effectively once: this is what can happen")
		})
	}
}

func TestLostClaimResponseLeavesTheKeyFree(t *testing.T) {
	r := newRig(t)
	store := r.on(t, func(_ context.Context, cmd redis.Cmder, send func() error) error {
		err := send()
		if cmd.Name() == "set" {
			return errLine
		}
		return err
	})
	_, err := store.Run(t.Context(), run(payment), func(context.Context) error { panic("called") })
	require.ErrorIs(t, err, errLine)
	require.Empty(t, r.value(t))
}

func TestClaimRepeatedByTheClientSucceeds(t *testing.T) {
	r := newRig(t)
	repeating := line(func(_ context.Context, cmd redis.Cmder, send func() error) error {
		if cmd.Name() == "set" {
			_ = send() // its response is lost
		}
		return send()
	})
	for name, l := range map[string]line{"in one step": repeating, "before Redis 7": r.beforeRedis7(repeating)} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, r.client.Del(t.Context(), r.key()).Err())
			store := r.on(t, l, func(o *redisstore.Options) { o.WaitTimeout = 0 })
			handled(t, store)
			require.True(t, processed(t, store))
		})
	}
}

func TestUnreadableRepeatedClaimLeavesTheKeyFree(t *testing.T) {
	r := newRig(t)
	store := r.on(t, r.beforeRedis7(func(_ context.Context, cmd redis.Cmder, send func() error) error {
		switch cmd.Name() {
		case "set":
			_ = send() // its response is lost
		case "get":
			return errLine
		}
		return send()
	}))
	_, err := store.Run(t.Context(), run(payment), func(context.Context) error { panic("called") })
	require.ErrorIs(t, err, errLine)
	require.Empty(t, r.value(t))

	require.NoError(t, r.client.Set(t.Context(), r.key(), "claimed other", time.Minute).Err())
	_, err = store.Run(t.Context(), run(payment), func(context.Context) error { panic("called") })
	require.ErrorIs(t, err, errLine)
	require.Equal(t, "claimed other", r.value(t), "another's claim is not ours to release")
}

// TestRedisBefore7UsesTwoStepsAfterTheFirstRefusal also checks that a claim that ends
// between the two steps counts neither as ours nor as a duplicate.
func TestRedisBefore7UsesTwoStepsAfterTheFirstRefusal(t *testing.T) {
	r := newRig(t)
	var sets atomic.Int32
	store := r.on(t, r.beforeRedis7(func(ctx context.Context, cmd redis.Cmder, send func() error) error {
		switch {
		case cmd.Name() == "set":
			sets.Add(1)
		case cmd.Name() == "get" && sets.Load() == 1:
			require.NoError(t, r.client.Del(ctx, r.key()).Err())
		}
		return send()
	}))
	require.NoError(t, r.client.Set(t.Context(), r.key(), "claimed other", time.Minute).Err())
	handled(t, store)
	require.EqualValues(t, 2, sets.Load())
	duplicate, err := store.Run(t.Context(), run(payment), func(context.Context) error { panic("called") })
	require.NoError(t, err)
	require.True(t, duplicate)
}

func TestBodyIsCancelledBeforeItsUnrenewedLeaseExpires(t *testing.T) {
	t.Parallel()
	const lease = 6 * time.Second // a sixth of it is the margin
	for name, c := range map[string]struct {
		late time.Duration
		cold bool // the claim is renewed before the body is called
	}{
		"that was claimed at once":                     {},
		"that was claimed by an answer that came late": {late: lease / 4},
		"that was renewed by an answer that came late": {late: lease / 4, cold: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			var dead atomic.Bool
			store := r.on(t, func(_ context.Context, cmd redis.Cmder, send func() error) error {
				if dead.Load() {
					return errLine
				}
				err := send()
				if cmd.Name() == "set" || strings.HasPrefix(cmd.Name(), "eval") {
					<-time.After(c.late) // the lease began before
				}
				return err
			}, func(o *redisstore.Options) { o.Lease = lease })
			if !c.cold {
				warm(t, store)
			}
			_, err := store.Run(t.Context(), run(payment), func(ctx context.Context) error {
				dead.Store(true)
				select {
				case <-ctx.Done():
				case <-time.After(patience):
				}
				require.ErrorIs(t, context.Cause(ctx), idempotent.ErrLost)
				require.Positive(t, r.client.PTTL(t.Context(), r.key()).Val(), "the claim must still hold when the body is cancelled")
				dead.Store(false) // the server works again, but the body has been stopped
				return nil
			})
			require.ErrorIs(t, err, idempotent.ErrLost)
			require.ErrorIs(t, err, errLine)
			require.False(t, processed(t, store))
		})
	}
}

func TestLostResponsesWithinTheLeaseDoNotMatter(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	r := newRig(t)
	var commands atomic.Int32
	store := r.on(t, func(_ context.Context, cmd redis.Cmder, send func() error) error {
		err := send()
		if strings.HasPrefix(cmd.Name(), "eval") && !finalises(cmd) && commands.Add(1)%2 == 0 {
			return errLine
		}
		return err
	}, func(o *redisstore.Options) { o.Lease = lease })
	began := time.Now()
	_, err := store.Run(t.Context(), run(payment), func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case <-time.After(2 * lease):
		}
		return ctx.Err()
	})
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(began), 2*lease)
	require.True(t, processed(t, store))
}

func TestFailedReleaseIsReturned(t *testing.T) {
	r := newRig(t)
	core, logs := observer.New(zapcore.DebugLevel)
	store := r.on(t, func(_ context.Context, cmd redis.Cmder, send func() error) error {
		if releases(cmd) {
			return errLine
		}
		return send()
	}, func(o *redisstore.Options) { o.Logger = zap.New(core) })
	refused := errors.New("the card was refused")
	_, err := store.Run(t.Context(), run(payment), func(context.Context) error { return refused })
	require.ErrorIs(t, err, refused)
	require.ErrorIs(t, err, errLine)
	require.Zero(t, logs.Len())

	require.NoError(t, r.client.Del(t.Context(), r.key()).Err())
	require.PanicsWithValue(t, "boom", func() {
		_, _ = store.Run(t.Context(), run(payment), func(context.Context) error { panic("boom") })
	})
	require.Equal(t, 1, logs.FilterMessageSnippet("claim not released").FilterField(zap.String("key", r.key())).Len())
}

func TestOperationTimeoutBoundsTheWaitForASilentServer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, silent.Close()) })
	client := redis.NewClient(&redis.Options{Addr: silent.Addr().String(), ReadTimeout: time.Hour, DialTimeout: time.Hour,
		ContextTimeoutEnabled: true})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	store, err := redisstore.New(client, func(o *redisstore.Options) { o.OperationTimeout = time.Second })
	require.NoError(t, err)
	_, err = store.Processed(t.Context(), payment)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, `redisstore: handler "billing", message "m1": no answer within 1s`)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = store.Processed(ctx, payment)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotContains(t, err.Error(), "no answer within")
	_, err = store.Run(t.Context(), run(payment), func(context.Context) error { panic("called") })
	require.ErrorContains(t, err, "no answer within 1s")
}

// The client's own error is about a socket.
func TestCommandReturnsTheContextsError(t *testing.T) {
	r := newRig(t)
	client := r.another(t)
	client.AddHook(line(func(ctx context.Context, cmd redis.Cmder, send func() error) error {
		if cmd.Name() != "get" {
			return send()
		}
		<-ctx.Done()
		return os.ErrDeadlineExceeded
	}))
	store := r.storeOn(t, client, func(o *redisstore.Options) { o.OperationTimeout = 50 * time.Millisecond })
	_, err := store.Processed(t.Context(), payment)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorContains(t, err, "no answer within 50ms")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = store.Processed(ctx, payment)
	require.ErrorIs(t, err, context.Canceled)
}

func TestHangingHookKeepsNoBodyPastItsLease(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	r := newRig(t)
	client := r.another(t)
	var hanging atomic.Bool
	hang := make(chan struct{})
	client.AddHook(line(func(_ context.Context, cmd redis.Cmder, send func() error) error {
		if hanging.Load() && strings.HasPrefix(cmd.Name(), "eval") {
			<-hang
		}
		return send()
	}))
	store := r.storeOn(t, client, func(o *redisstore.Options) { o.Lease = lease })
	warm(t, store)
	_, err := store.Run(t.Context(), run(payment), func(ctx context.Context) error {
		hanging.Store(true)
		select {
		case <-ctx.Done():
		case <-time.After(patience):
		}
		require.ErrorIs(t, context.Cause(ctx), idempotent.ErrLost)
		require.Positive(t, r.client.PTTL(t.Context(), r.key()).Val(), "the claim must still hold when the body is cancelled")
		hanging.Store(false)
		close(hang)
		return nil
	})
	require.ErrorIs(t, err, idempotent.ErrLost)
	require.False(t, processed(t, store))
}

func TestClientPanicIsAnErrorOfItsCommand(t *testing.T) {
	r := newRig(t)
	core, logs := observer.New(zapcore.DebugLevel)
	var broken atomic.Value
	broken.Store("get")
	client := r.another(t)
	client.AddHook(line(func(_ context.Context, cmd redis.Cmder, send func() error) error {
		if strings.HasPrefix(cmd.Name(), broken.Load().(string)) {
			panic("a hook's bug")
		}
		return send()
	}))
	store := r.storeOn(t, client, func(o *redisstore.Options) {
		o.Lease = time.Second
		o.Logger = zap.New(core)
	})
	_, err := store.Processed(t.Context(), payment)
	require.EqualError(t, err, `redisstore: handler "billing", message "m1": the client panicked: a hook's bug`)
	said := logs.FilterMessage("the Redis client panicked").All()
	require.Len(t, said, 1)
	require.Contains(t, said[0].ContextMap()["stack"], "answers_test.go", "the stack leads to the hook")

	broken.Store("nothing")
	_, err = store.Run(t.Context(), run(payment), func(ctx context.Context) error {
		broken.Store("eval") // breaks renewals, which run on a goroutine without a caller
		select {
		case <-ctx.Done():
		case <-time.After(patience):
		}
		require.ErrorIs(t, context.Cause(ctx), idempotent.ErrLost)
		return nil
	})
	require.ErrorIs(t, err, idempotent.ErrLost)
	require.ErrorContains(t, err, "the client panicked: a hook's bug")
}
