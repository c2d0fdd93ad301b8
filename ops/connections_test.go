package ops_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

func TestConnectionsUsedAtOnceAreBounded(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "boom", "1", "2", "3")
		r.accept("1", "2", "3")
		inboxtest.Process(t, r.ib)
		pool, err := r.d.DB.DB()
		require.NoError(t, err)
		limit := pool.Stats().MaxOpenConnections
		t.Cleanup(func() { pool.SetMaxOpenConns(limit) })
		for name, c := range map[string]struct {
			pool        int
			connections int
			want        int
		}{
			"by the option":            {16, 2, 2},
			"a quarter of the pool":    {8, 0, 2},
			"one of a tiny pool":       {2, 0, 1},
			"no more than four by far": {100, 0, 4},
		} {
			pool.SetMaxOpenConns(c.pool)
			var mu sync.Mutex
			now, most := 0, 0
			full := make(chan struct{})
			hook := func(v redact.Value) []byte { // is called amid a statement's rows
				mu.Lock()
				now++
				if most = max(most, now); now == c.want {
					select {
					case <-full:
					default:
						close(full)
					}
				}
				mu.Unlock()
				select { // all of the allowed meet here; one more would be counted
				case <-full:
				case <-time.After(inboxtest.Patience):
				}
				mu.Lock()
				now--
				mu.Unlock()
				return v.Bytes
			}
			o, err := ops.New(r.d.DB, func(o *ops.Options) { o.Connections, o.Redact = c.connections, hook })
			require.NoError(t, err)
			listed := make(chan error, 4*c.want)
			for range cap(listed) {
				go func() {
					_, err := o.List(t.Context(), ops.Filter{States: []ops.State{ops.StatePoisoned}}, "", 10)
					listed <- err
				}()
			}
			for range cap(listed) {
				require.NoError(t, inboxtest.Receive(t, listed, "a list"), name)
			}
			require.Equal(t, c.want, most, name)
		}
	})
}

func TestWaitForAConnectionEndsWithItsContext(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "boom", "1")
		r.accept("1")
		inboxtest.Process(t, r.ib)
		inside, done := make(chan struct{}, 10), make(chan struct{})
		o, err := ops.New(r.d.DB, func(o *ops.Options) {
			o.Connections = 1
			o.Redact = func(v redact.Value) []byte {
				inside <- struct{}{}
				<-done
				return v.Bytes
			}
		})
		require.NoError(t, err)
		listed := make(chan error, 1)
		go func() {
			_, err := o.List(t.Context(), ops.Filter{States: []ops.State{ops.StatePoisoned}}, "", 10)
			listed <- err
		}()
		inboxtest.Receive(t, inside, "it has the connection")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = o.Workers(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "option Connections is 1")
		close(done)
		require.NoError(t, inboxtest.Receive(t, listed, "the list"))
		_, err = o.Workers(t.Context())
		require.NoError(t, err)
		_, err = ops.New(r.d.DB, func(o *ops.Options) { o.Connections = -1 })
		require.EqualError(t, err, "ops: option Connections = -1: must be 0 (a quarter of the pool) or more")
	})
}
