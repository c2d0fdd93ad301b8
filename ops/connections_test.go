package ops_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// holdPause keeps each Pause of the handler "mail" waiting, with its connection, until release.
func holdPause(t *testing.T, r *rig) (release func()) {
	t.Helper()
	tx := r.d.Another(t).Begin()
	require.NoError(t, tx.Save(&models.Handler{HandlerKey: "mail", UpdatedAt: inboxtest.Noon}).Error)
	return func() { require.NoError(t, tx.Rollback().Error) }
}

func TestConcurrentConnectionsAreBounded(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "boom", "1")
		r.accept("1")
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
			o, err := ops.New(r.d.DB, patient, func(o *ops.Options) { o.Connections = c.connections })
			require.NoError(t, err)
			release := holdPause(t, r)
			began, done := make(chan struct{}), make(chan error, 4*c.want)
			for range cap(done) {
				go func() {
					began <- struct{}{}
					done <- o.Pause(t.Context(), ada, "mail")
				}()
			}
			for range cap(done) {
				inboxtest.Receive(t, began, "a pause")
			}
			inboxtest.Eventually(t, func() bool { return pool.Stats().InUse == c.want }, "all connections wait")
			release()
			for left := cap(done); left > 0; {
				require.LessOrEqual(t, pool.Stats().InUse, c.want, name)
				select {
				case err := <-done:
					require.NoError(t, err, name)
					left--
				case <-time.After(time.Millisecond): // look again
				}
			}
			require.NoError(t, o.Resume(t.Context(), ada, "mail"))
		}
	})
}

func TestWaitForAConnectionEndsWithItsContext(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "boom", "1")
		r.accept("1")
		inboxtest.Process(t, r.ib)
		pool, err := r.d.DB.DB()
		require.NoError(t, err)
		o, err := ops.New(r.d.DB, patient, func(o *ops.Options) { o.Connections = 1 })
		require.NoError(t, err)
		release := holdPause(t, r)
		paused := make(chan error, 1)
		go func() { paused <- o.Pause(t.Context(), ada, "mail") }()
		inboxtest.Eventually(t, func() bool {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err = o.Workers(ctx)
			require.ErrorIs(t, err, context.Canceled)
			return pool.Stats().InUse == 1 && strings.Contains(err.Error(), "option Connections is 1")
		}, "it waits with the connection")
		release()
		require.NoError(t, inboxtest.Receive(t, paused, "the pause"))
		_, err = o.Workers(t.Context())
		require.NoError(t, err)
		_, err = ops.New(r.d.DB, func(o *ops.Options) { o.Connections = -1 })
		require.EqualError(t, err, "ops: option Connections = -1: must be 0 (a quarter of the pool) or more")
	})
}
