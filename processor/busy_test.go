package processor_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/processor"
)

// The handler's transaction holds SQLite's only write lock: no worker can send a heartbeat or renew
// the lock for longer than WorkerTimeout.
func TestTransactionLongerThanWorkerTimeoutCompletesOnSQLite(t *testing.T) {
	testenv.Long(t)
	for _, mode := range []processor.Mode{processor.ModeExclusive, processor.ModeCompeting} {
		// The driver's wait ends before, or after, the deadline of a heartbeat.
		for _, busyTimeout := range []time.Duration{100 * time.Millisecond, testenv.Patience} {
			t.Run(fmt.Sprint(mode, busyTimeout), func(t *testing.T) {
				t.Parallel()
				const timeout = 4 * time.Second
				db := testenv.OpenSQLite(t, testenv.BusyTimeout(testenv.SQLiteDSN(t), busyTimeout))
				calls, causes := make(chan int, 10), make(chan error, 10)
				ib := inboxtest.New(t, db, hasty(), inbox.Configure(func(o *inbox.Options) {
					o.Processor.Mode = mode
					o.Processor.WorkerTimeout = timeout
				}), inboxtest.Handlers(
					inboxtest.Tx("h", func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
						calls <- m.Attempt
						if err := tx.Exec("UPDATE inbox_messages SET source = 'x'").Error; err != nil {
							return err
						}
						work := time.NewTimer(2 * timeout)
						defer work.Stop()
						select {
						case <-ctx.Done():
							causes <- context.Cause(ctx)
							return ctx.Err()
						case <-work.C:
							return nil
						}
					})))
				inboxtest.Start(t, ib)
				inboxtest.Accept(t, ib, "m")
				inboxtest.Receive(t, calls, "the handler")
				inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) || len(causes) > 0 }, "it ended")
				require.Empty(t, causes)
				require.Empty(t, calls, "it ran once")
				// The counter is raised after the commit, which the database already shows.
				inboxtest.Eventually(t, func() bool { return ib.Counters().Processed == 1 }, "it is counted")
				require.Zero(t, ib.Counters().LockLost)
				require.Zero(t, ib.Counters().Fenced)
				inboxtest.Accept(t, ib, "next")
				inboxtest.Receive(t, calls, "the handler, which goes on")
			})
		}
	}
}

func TestWorkerWaitingForSQLiteLearnsItWasDeclaredDead(t *testing.T) {
	t.Parallel()
	dsn := testenv.SQLiteDSN(t)
	running, causes := make(chan string, 10), make(chan error, 10)
	ib := inboxtest.New(t, testenv.OpenSQLite(t, dsn), hasty(), inbox.Configure(func(o *inbox.Options) {
		o.Processor.Mode = processor.ModeCompeting
		o.Processor.WorkerTimeout = 10 * inboxtest.Patience
	}), inboxtest.Handlers(
		inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
			running <- m.ID
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		})))
	inboxtest.Start(t, ib)
	inboxtest.Accept(t, ib, "m")
	inboxtest.Receive(t, running, "the handler")
	other := testenv.OpenSQLite(t, dsn)
	declares := other.Begin()
	require.NoError(t, declares.Exec("UPDATE inbox_workers SET released_at = heartbeat_at").Error)
	require.NoError(t, declares.Commit().Error)
	writes := other.Begin() // before the worker gets to write
	require.NoError(t, writes.Error)
	require.ErrorContains(t, inboxtest.Receive(t, causes, "the cancellation, long before WorkerTimeout"),
		"lost its heartbeat")
	require.NoError(t, writes.Rollback().Error)
}
