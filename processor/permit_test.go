package processor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/processor"
)

// takeLock acquires the lock for another process.
func takeLock(t *testing.T, d *inboxtest.Database, ttl time.Duration) (taken bool) {
	t.Helper()
	taken, err := inboxtest.Store(t, d.DB).AcquireLease(context.Background(), lockName, vanishing, ttl, system.Now())
	require.NoError(t, err)
	return taken
}

func releaseLock(t *testing.T, d *inboxtest.Database) {
	t.Helper()
	require.NoError(t, inboxtest.Store(t, d.DB).ReleaseLease(context.Background(), lockName, vanishing))
}

type drainEnd struct {
	drained processor.Drained
	err     error
}

// drain runs ProcessPending in the background.
func drain(ib *inbox.Inbox) <-chan drainEnd {
	ended := make(chan drainEnd, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), inboxtest.Patience)
		defer cancel()
		drained, err := ib.ProcessPending(ctx)
		ended <- drainEnd{drained, err}
	}()
	return ended
}

func TestProcessPendingRunsNothingWithoutTheLock(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := exclusive(t, d, inbox.Configure(func(o *inbox.Options) { o.Processor.WorkerTimeout = 900 * time.Millisecond }),
			inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "1")
		require.True(t, takeLock(t, d, time.Hour))
		began := time.Now()
		drained, err := ib.ProcessPending(context.Background())
		require.ErrorIs(t, err, processor.ErrLockHeld)
		require.EqualError(t, err,
			`inbox "test": process pending: lock "processor": another worker holds the lock of the inbox: waited for 1.8s`)
		require.GreaterOrEqual(t, time.Since(began), 1800*time.Millisecond)
		require.Zero(t, drained)
		require.EqualValues(t, 1, inboxtest.Status(t, ib, "1", "h").Version, "nothing is touched")

		ctx, cancel := context.WithTimeout(context.Background(), 1200*time.Millisecond)
		defer cancel()
		_, err = ib.ProcessPending(ctx)
		require.ErrorIs(t, err, processor.ErrLockHeld)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		releaseLock(t, d)
		// So short a lease may run out on a busy machine, so another worker drains.
		other := exclusive(t, d, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		require.Equal(t, processor.Drained{Picked: 1, Completed: 1}, inboxtest.Process(t, other))
		require.Empty(t, lockOwner(t, d), "the lock is given up")
		require.Zero(t, other.Counters().LockLost)
	})
}

// TestSlowStatementDoesNotEndTheWaitForTheLock proves contract 5.14: only the time for waiting ends it.
func TestSlowStatementDoesNotEndTheWaitForTheLock(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		ib := exclusive(t, d, inbox.Configure(func(o *inbox.Options) { o.Processor.WorkerTimeout = 3 * time.Second }),
			inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "1")
		slow := d.Another(t).Begin()
		defer slow.Rollback()
		require.NoError(t, slow.Exec("LOCK TABLE inbox_locks IN ACCESS EXCLUSIVE MODE").Error)
		ended := drain(ib)
		pause(t, 1500*time.Millisecond) // a statement for the lease has a third of WorkerTimeout
		require.Empty(t, ended)
		require.NoError(t, slow.Rollback().Error)
		end := inboxtest.Receive(t, ended, "the drain")
		require.NoError(t, end.err)
		require.Equal(t, processor.Drained{Picked: 1, Completed: 1}, end.drained)
	})
}

func TestProcessPendingWaitsForAndHoldsTheLock(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		running, finish := make(chan string, 1), make(chan struct{})
		const lease = 4 * time.Second
		ib := exclusive(t, d, inbox.Configure(func(o *inbox.Options) { o.Processor.WorkerTimeout = lease }),
			inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
				running <- m.ID
				<-finish
				return nil
			})))
		inboxtest.Accept(t, ib, "1")
		require.True(t, takeLock(t, d, time.Hour))
		ended := drain(ib)
		pause(t, 200*time.Millisecond)
		require.Empty(t, running)
		releaseLock(t, d)
		inboxtest.Receive(t, running, "the handler")
		for end := time.Now().Add(lease + time.Second); time.Now().Before(end); {
			require.False(t, takeLock(t, d, time.Second), "the drain renews its lease")
			pause(t, 20*time.Millisecond)
		}
		close(finish)
		end := inboxtest.Receive(t, ended, "the drain")
		require.NoError(t, end.err)
		require.Equal(t, processor.Drained{Picked: 1, Completed: 1}, end.drained)
		require.True(t, takeLock(t, d, time.Second))
	})
}

func TestLostLockInterruptsProcessPendingUncharged(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		running := make(chan string, 10)
		ib := exclusive(t, d, inbox.Configure(func(o *inbox.Options) {
			o.Processor.WorkerTimeout = 3 * time.Second
			o.Processor.Concurrency = 1
		}),
			inboxtest.Handlers(inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
				running <- m.ID
				return untilCancelled(ctx, m)
			})))
		inboxtest.Accept(t, ib, "1", "2")
		ended := drain(ib)
		inboxtest.Receive(t, running, "the handler")
		inboxtest.Exec(t, d.DB, "UPDATE inbox_locks SET owner_id = ? WHERE name = ?", vanishing, lockName)
		end := inboxtest.Receive(t, ended, "the drain")
		require.ErrorIs(t, end.err, processor.ErrLockHeld)
		require.ErrorContains(t, end.err, "lost the lock")
		require.Equal(t, processor.Drained{Picked: 1, Released: 1}, end.drained)
		require.Empty(t, running, "nothing else was begun")
		for _, s := range inboxtest.Statuses(t, ib) {
			require.Zero(t, s.ErrorCount)
			require.Nil(t, s.ProcessingStartedAt)
			require.Nil(t, s.NextAttemptAt)
		}
		require.EqualValues(t, 1, ib.Counters().LockLost)
		require.Equal(t, vanishing, lockOwner(t, d), "the thief's lock is the thief's")
	})
}

// busyProcessor starts an inbox whose only slot is taken by message "1".
func busyProcessor(t *testing.T, d *inboxtest.Database) (ib *inbox.Inbox, running chan string, finish chan struct{}) {
	t.Helper()
	running, finish = make(chan string, 10), make(chan struct{})
	ib = exclusive(t, d, inbox.Configure(func(o *inbox.Options) {
		o.Processor.Concurrency = 1
		o.Processor.Prefetch = 0
	}),
		inboxtest.Handlers(inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
			running <- m.ID
			select {
			case <-finish:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})))
	startHolder(t, ib)
	inboxtest.Accept(t, ib, "1")
	require.Equal(t, "1", inboxtest.Receive(t, running, "the processor's handler"))
	inboxtest.Accept(t, ib, "2")
	return ib, running, finish
}

func TestProcessPendingSharesItsProcessorsLock(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib, running, finish := busyProcessor(t, d)
		owner := lockOwner(t, d)
		ended := drain(ib)
		require.Equal(t, "2", inboxtest.Receive(t, running, "the drain's handler"))
		require.Equal(t, owner, lockOwner(t, d))
		close(finish)
		end := inboxtest.Receive(t, ended, "the drain")
		require.NoError(t, end.err)
		require.Equal(t, 1, end.drained.Completed)
		require.True(t, holdsLock(ib), "the processor keeps it")
		require.Equal(t, owner, lockOwner(t, d))
	})
}

func TestStopInterruptsProcessPendingSharingItsLock(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib, running, _ := busyProcessor(t, d)
		ended := drain(ib)
		require.Equal(t, "2", inboxtest.Receive(t, running, "the drain's handler"))
		require.NoError(t, stop(t, ib, inboxtest.Patience))
		end := inboxtest.Receive(t, ended, "the drain")
		require.ErrorIs(t, end.err, processor.ErrLockHeld)
		require.ErrorContains(t, end.err, "stopping")
		require.Equal(t, processor.Drained{Picked: 1, Released: 1}, end.drained)
		for _, s := range inboxtest.Statuses(t, ib) {
			require.Zero(t, s.ErrorCount)
			require.Nil(t, s.ProcessingStartedAt)
		}
		require.Empty(t, lockOwner(t, d), "whoever was last gave the lock up")
	})
}

func TestProcessorTakesTheLockAfterItsProcessPending(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		running, finish := make(chan string, 10), make(chan struct{})
		ib := exclusive(t, d, inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
			running <- m.ID
			<-finish
			return nil
		})))
		inboxtest.Accept(t, ib, "1")
		ended := drain(ib)
		inboxtest.Receive(t, running, "the drain's handler")
		startStandby(t, d, ib)
		close(finish)
		require.NoError(t, inboxtest.Receive(t, ended, "the drain").err)
		inboxtest.Accept(t, ib, "2")
		require.Equal(t, "2", inboxtest.Receive(t, running, "the processor's handler")) // the next try would come much later
		require.True(t, holdsLock(ib))
	})
}
