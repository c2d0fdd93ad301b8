package synchronous_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// patient sets a StatementTimeout longer than a test lasts, so that only the end of the time for
// handlers can end a wait for the database.
func patient(c *synchronous.Config) { c.StatementTimeout = time.Hour }

func TestTransactionBeginEndsWithTheHandlerBudget(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		pool, err := d.DB.DB()
		require.NoError(t, err)
		pool.SetMaxOpenConns(1)
		conn, err := pool.Conn(t.Context())
		require.NoError(t, err)
		defer conn.Close()

		h := handler.NewTx("h", func(context.Context, *gorm.DB, inboxtest.Bytes) error {
			t.Error("it must not run")
			return nil
		})
		r, _ := newRunner(t, d.DB, patient, h)
		ctx, cancel := bounded(t)
		done := make(chan error, 1)
		go func() { done <- r.Deliver(ctx, nil, received(0, "1")) }()
		inboxtest.Eventually(t, func() bool { return pool.Stats().WaitCount > 0 }, "it waits for a connection")
		cancel()
		require.ErrorIs(t, inboxtest.Receive(t, done, "the delivery's end"), envelope.ErrInterrupted)
	})
}

// slowStore uses up the time for handlers before it calls one.
type slowStore struct {
	*memory
	end func()
}

func (s slowStore) Run(
	ctx context.Context, run idempotent.Run, body func(ctx context.Context) error,
) (duplicate bool, err error) {
	s.end()
	return s.memory.Run(ctx, run, body)
}

// slowMarker uses up the time for handlers in the handler's transaction.
type slowMarker struct {
	*memory
	end func()
}

func (slowMarker) Joins(*gorm.DB) bool { return true }

func (s slowMarker) Mark(context.Context, *gorm.DB, idempotent.Run) (duplicate bool, err error) {
	s.end()
	return false, nil
}

func TestNoHandlerStartsAfterTheHandlerTimeout(t *testing.T) {
	run := func(t *testing.T, d *inboxtest.Database, h *handler.Handler, store func(end func()) idempotent.Store) {
		ctx, cancel := bounded(t)
		r, counters := newRunner(t, d.DB, func(c *synchronous.Config) { remember(t, c, store(cancel)) }, h)
		require.ErrorIs(t, r.Deliver(ctx, nil, received(0, "1")), envelope.ErrInterrupted)
		require.Zero(t, counters.Load(telemetry.Failed))
	}
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		plain := handler.New("h", func(context.Context, inboxtest.Bytes) error { t.Error("it must not run"); return nil })
		transactional := handler.NewTx("h", func(context.Context, *gorm.DB, inboxtest.Bytes) error {
			t.Error("it must not run")
			return nil
		})
		for _, h := range []*handler.Handler{plain, transactional} {
			run(t, d, h, func(end func()) idempotent.Store { return slowStore{newMemory(), end} })
			run(t, d, h, func(end func()) idempotent.Store { return slowMarker{newMemory(), end} })
		}
	})
}

// A statement that ignores the handler's context delays the rollback of its transaction. Deliver
// does not wait for the rollback, which follows later. SQLite has no such statement.
func TestSlowRollbackFinishesInTheBackground(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		lock := d.Another(t).Begin()
		require.NoError(t, lock.Error)
		defer lock.Rollback()
		require.NoError(t, lock.Exec("SELECT pg_advisory_xact_lock(1)").Error)

		written := effects(t, d.DB)
		entered, done := make(chan struct{}, 1), make(chan error, 1)
		h := handler.NewTx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
			if err := write(tx, m.ID); err != nil {
				return err
			}
			entered <- struct{}{}
			return tx.WithContext(context.Background()).Exec("SELECT pg_advisory_xact_lock(1)").Error
		})
		r, _ := newRunner(t, d.DB, patient, h)
		ctx, cancel := bounded(t)
		go func() { done <- r.Deliver(ctx, nil, received(0, "1")) }()
		inboxtest.Receive(t, entered, "the call")
		inboxtest.Eventually(t, func() bool {
			var waits int64
			db := d.DB.Raw("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
			return db.Scan(&waits).Error == nil && waits == 1
		}, "its statement is under way")
		cancel()
		require.ErrorIs(t, inboxtest.Receive(t, done, "the delivery's end"), envelope.ErrInterrupted)
		require.Equal(t, map[string]int{"h": 1}, r.Stuck())

		require.NoError(t, lock.Rollback().Error)
		inboxtest.Eventually(t, func() bool { return len(r.Stuck()) == 0 }, "the handler returned")
		pool, err := d.DB.DB()
		require.NoError(t, err)
		inboxtest.Eventually(t, func() bool { return pool.Stats().InUse == 0 }, "its connection is free")
		require.Empty(t, written())
	})
}
