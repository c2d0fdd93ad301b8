package processor_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/processor"
)

const lockName = "processor"

// exclusive returns one of several workers of an inbox; they find each other's messages by polling.
func exclusive(t *testing.T, d *inboxtest.Database, opts ...inbox.Option) *inbox.Inbox {
	t.Helper()
	return inboxtest.New(t, d.Another(t), append([]inbox.Option{hasty(), inbox.Configure(func(o *inbox.Options) {
		o.Processor.Mode = processor.ModeExclusive
		o.Processor.PollingInterval = 20 * time.Millisecond
	})}, opts...)...)
}

// lockOwner returns the lock's owner as stored in the database; "" if the lock is free.
func lockOwner(t *testing.T, d *inboxtest.Database) string {
	t.Helper()
	var rows []models.Lock
	require.NoError(t, d.DB.Where("name = ?", lockName).Find(&rows).Error)
	if len(rows) == 0 {
		return ""
	}
	return rows[0].OwnerID
}

func holdsLock(ib *inbox.Inbox) bool { return ib.Health().Processor.HoldsLock }

// startHolder starts a worker and waits until it holds the lock.
func startHolder(t *testing.T, ib *inbox.Inbox) {
	t.Helper()
	inboxtest.Start(t, ib)
	inboxtest.Eventually(t, func() bool { return holdsLock(ib) }, "it holds the lock")
}

// startStandby starts a worker beside the holder and returns its worker ID.
func startStandby(t *testing.T, d *inboxtest.Database, ib *inbox.Inbox) string {
	t.Helper()
	known := map[string]bool{}
	for _, w := range workers(t, d) {
		known[w.ID] = true
	}
	inboxtest.Start(t, ib)
	id := ""
	inboxtest.Eventually(t, func() bool {
		for _, w := range workers(t, d) {
			if !known[w.ID] {
				id = w.ID
			}
		}
		return id != ""
	}, "it registered")
	return id
}

func TestModeDefaultsByDatabase(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		want := map[string]processor.Mode{"sqlite": processor.ModeExclusive, "postgres": processor.ModeCompeting,
			"mysql": processor.ModeCompeting}[d.Dialect]
		h := inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing))
		require.Equal(t, want, inboxtest.New(t, d.DB, h).Health().Processor.Mode)
		for _, mode := range []processor.Mode{processor.ModeExclusive, processor.ModeCompeting} {
			require.Equal(t, mode, inboxtest.New(t, d.DB, h, inbox.Configure(func(o *inbox.Options) {
				o.Processor.Mode = mode
			})).Health().Processor.Mode)
		}
	})
}

func TestOneOfThreeExclusiveWorkersRunsEverythingUntilItStops(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := make(chan int, 1000)
		log, logs := inboxtest.Observe()
		var three []*inbox.Inbox
		for i := range 3 {
			// They try for the lock every third of WorkerTimeout.
			three = append(three, exclusive(t, d, log, inbox.Configure(func(o *inbox.Options) {
				o.Processor.WorkerTimeout = 20 * time.Second
			}), inboxtest.Handlers(
				inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error { ran <- i; return nil }))))
			if i == 0 {
				startHolder(t, three[0])
			} else {
				inboxtest.Start(t, three[i])
			}
		}
		inboxtest.Eventually(t, func() bool { return len(workers(t, d)) == 3 }, "all registered")
		for i := range 60 {
			inboxtest.Accept(t, three[i%3], fmt.Sprint("a", i))
		}
		for range 60 {
			require.Equal(t, 0, inboxtest.Receive(t, ran, "a message"), "the holder runs it")
		}
		inboxtest.Eventually(t, func() bool {
			return logs.FilterMessageSnippet("stands by").Len() == 2
		}, "two said that they stand by")
		for _, ib := range three[1:] {
			h := ib.Health()
			require.NoError(t, h.Degraded(), "standing by is healthy")
			require.True(t, h.Processor.Running)
			require.Equal(t, processor.ModeExclusive, h.Processor.Mode)
			require.False(t, h.Processor.HoldsLock)
			require.Zero(t, ib.Counters().Processed)
		}

		holder := lockOwner(t, d)
		require.NoError(t, stop(t, three[0], inboxtest.Patience))
		require.NotEqual(t, holder, lockOwner(t, d), "it is given up, and does not run out")
		require.True(t, inboxtest.AllCompleted(t, three[1]))
		inboxtest.Accept(t, three[1], "b")
		next := inboxtest.Receive(t, ran, "a message")
		require.NotZero(t, next)
		require.True(t, holdsLock(three[next]))
		require.False(t, holdsLock(three[3-next]))
		require.Equal(t, 2, logs.FilterMessageSnippet("holds the lock and processes").Len())
		for _, ib := range three {
			require.Zero(t, ib.Counters().LockLost)
			require.Zero(t, ib.Counters().Fenced)
		}
	})
}

func TestExpiredLockOfAVanishedHolderIsTakenOver(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := make(chan string, 10)
		ib := exclusive(t, d, inbox.Configure(func(o *inbox.Options) { o.Processor.WorkerTimeout = 3 * time.Second }),
			inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
				ran <- m.ID
				return nil
			})))
		inboxtest.Accept(t, ib, "1")
		began := time.Now()
		held, err := inboxtest.Store(t, d.DB).AcquireLease(t.Context(), lockName, vanishing, time.Second, system.Now())
		require.NoError(t, err)
		require.True(t, held) // and its process dies
		inboxtest.Start(t, ib)
		require.Equal(t, "1", inboxtest.Receive(t, ran, "the message"))
		require.GreaterOrEqual(t, time.Since(began), time.Second, "not before the lease has run out")
	})
}

func TestStolenLockCancelsHandlersUncharged(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		running, causes, finish := make(chan string, 10), make(chan error, 10), make(chan struct{})
		log, logs := inboxtest.Observe()
		slow := inbox.Configure(func(o *inbox.Options) { o.Processor.WorkerTimeout = 9 * time.Second })
		one := exclusive(t, d, log, slow, noRoutineReconcile, inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = time.Hour
			o.Processor.StuckHandlerGrace = time.Minute
		}), inboxtest.Handlers(inboxtest.Do("h",
			func(ctx context.Context, m inboxtest.Bytes) error {
				running <- m.ID
				<-ctx.Done()
				if m.ID == "obedient" {
					causes <- context.Cause(ctx)
					return ctx.Err()
				}
				<-finish
				return nil
			})))
		again := make(chan string, 10)
		two := exclusive(t, d, slow, inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
			again <- m.ID
			return nil
		})))
		startHolder(t, one)
		inboxtest.Accept(t, one, "obedient", "stubborn", "stubborn and taken")
		for range 3 {
			inboxtest.Receive(t, running, "a handler")
		}
		successor := startStandby(t, d, two)

		inboxtest.Exec(t, d.DB, "UPDATE inbox_locks SET owner_id = ? WHERE name = ?", successor, lockName)
		require.ErrorContains(t, inboxtest.Receive(t, causes, "the cancellation"), "lost the lock")
		require.Equal(t, "obedient", inboxtest.Receive(t, again, "the message, by the new holder"))
		inboxtest.Eventually(t, func() bool {
			return inboxtest.Status(t, two, "obedient", "h").CompletedAt != nil
		}, "it was completed")
		require.Zero(t, inboxtest.Status(t, two, "obedient", "h").ErrorCount, "nothing is charged")
		require.Zero(t, inboxtest.Status(t, two, "obedient", "h").AbandonedCount,
			"it was given back by its worker, which lives")
		require.False(t, holdsLock(one))
		require.True(t, holdsLock(two))

		// The new holder does not claim what a living worker still runs. If another worker takes it
		// nevertheless, the version decides.
		for _, id := range []string{"stubborn", "stubborn and taken"} {
			require.NotNil(t, inboxtest.Status(t, one, id, "h").ProcessingStartedAt)
		}
		inboxtest.Exec(t, d.DB,
			"UPDATE inbox_handler_statuses SET version = version + 1 WHERE message_id = 'stubborn and taken'")
		close(finish)
		inboxtest.Eventually(t, func() bool {
			return inboxtest.Status(t, one, "stubborn", "h").CompletedAt != nil
		}, "a result that comes in spite of it counts")
		inboxtest.Eventually(t, func() bool { return one.Counters().Fenced == 1 }, "a stale one was fenced")
		require.Nil(t, inboxtest.Status(t, one, "stubborn and taken", "h").CompletedAt)

		inboxtest.Accept(t, one, "after")
		require.Equal(t, "after", inboxtest.Receive(t, again, "the next message, by the new holder"))
		require.Empty(t, running)
		require.EqualValues(t, 1, one.Counters().LockLost)
		require.EqualValues(t, 1, one.Counters().Released)
		require.Equal(t, 1, logs.FilterMessageSnippet("lost the lock").Len())
		inboxtest.Eventually(t, func() bool { return one.Health().Degraded() == nil }, "standing by is healthy")
		require.Len(t, workers(t, d), 2, "the loser goes on under its worker ID")
	})
}

func TestHolderReacquiresADeletedLock(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := exclusive(t, d, inbox.Configure(func(o *inbox.Options) {
			o.Processor.WorkerTimeout = 9 * time.Second
		}), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		startHolder(t, ib)
		owner := lockOwner(t, d)
		inboxtest.Exec(t, d.DB, "DELETE FROM inbox_locks WHERE name = ?", lockName)
		inboxtest.Eventually(t, func() bool { return lockOwner(t, d) == owner }, "the holder has its row again")
		require.Zero(t, ib.Counters().LockLost, "nobody else had it")
	})
}

func TestUnrenewableLockIsLostWithinWorkerTimeout(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		running, causes := make(chan string, 10), make(chan error, 10)
		first := make(chan struct{}, 1)
		first <- struct{}{}
		log, logs := inboxtest.Observe()
		ib := exclusive(t, d, log, inbox.Configure(func(o *inbox.Options) { o.Processor.WorkerTimeout = 4 * time.Second }),
			inboxtest.Handlers(inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
				running <- m.ID
				select {
				case <-first:
					<-ctx.Done()
					causes <- context.Cause(ctx)
					return ctx.Err()
				default:
					return nil
				}
			})))
		startHolder(t, ib)
		inboxtest.Accept(t, ib, "long")
		inboxtest.Receive(t, running, "the handler")
		worker := workers(t, d)[0].ID
		inboxtest.Exec(t, d.DB, "ALTER TABLE inbox_locks RENAME TO hidden")
		require.ErrorContains(t, inboxtest.Receive(t, causes, "the cancellation"), "lost the lock")
		require.ErrorContains(t, ib.Health().Processor.Conditions["lock"], "lease")
		require.False(t, holdsLock(ib))
		inboxtest.Accept(t, ib, "meanwhile")
		require.Empty(t, running, "nothing is claimed without the lock")

		inboxtest.Exec(t, d.DB, "ALTER TABLE hidden RENAME TO inbox_locks")
		both := []string{inboxtest.Receive(t, running, "a message"), inboxtest.Receive(t, running, "a message")}
		require.ElementsMatch(t, []string{"long", "meanwhile"}, both)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
		require.Zero(t, inboxtest.Status(t, ib, "long", "h").ErrorCount, "nothing is charged")
		require.EqualValues(t, 1, ib.Counters().LockLost)
		require.Equal(t, worker, workers(t, d)[0].ID, "its heartbeat was never lost")
		require.Len(t, workers(t, d), 1)
		require.Equal(t, 1, logs.FilterMessageSnippet("lock failing").Len())
		inboxtest.Eventually(t, func() bool { return ib.Health().Degraded() == nil }, "health recovered")
	})
}

func TestHangingRenewalLosesTheLockWithinWorkerTimeout(t *testing.T) {
	// Not on SQLite: the transaction locks the file, so no other worker could take over.
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		causes, running := make(chan error, 100), make(chan string, 100)
		ib := exclusive(t, d, inbox.Configure(func(o *inbox.Options) { o.Processor.WorkerTimeout = 3 * time.Second }),
			inboxtest.Handlers(inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
				running <- m.ID
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return nil
			})))
		startHolder(t, ib)
		inboxtest.Accept(t, ib, "1")
		inboxtest.Receive(t, running, "the handler")
		other := d.Another(t).Begin()
		require.NoError(t, other.Exec("LOCK TABLE inbox_locks IN ACCESS EXCLUSIVE MODE").Error)
		require.ErrorContains(t, inboxtest.Receive(t, causes, "the cancellation, while the renewal hangs"), "lost the lock")
		require.NoError(t, other.Rollback().Error)
		inboxtest.Eventually(t, func() bool { return holdsLock(ib) }, "it holds the lock again")
	})
}

func TestLostClaimsAreReleasedWithoutTheLock(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := exclusive(t, d, inbox.Configure(func(o *inbox.Options) {
			o.Processor.WorkerTimeout = 9 * time.Second
			o.Processor.StatementTimeout = 2 * time.Second
		}),
			inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		require.NoError(t, ib.Pause(context.Background(), "h"))
		startHolder(t, ib)
		self := workers(t, d)[0].ID
		inboxtest.Accept(t, ib, "1", "2")
		claim(t, d, system, self, 1, "h") // which the worker does not know of
		inboxtest.Exec(t, d.DB, "ALTER TABLE inbox_messages RENAME TO hidden")
		require.NoError(t, ib.Resume(context.Background(), "h"))
		inboxtest.Eventually(t, func() bool { return ib.Health().Processor.Conditions["claiming"] != nil }, "a claim failed")
		inboxtest.Exec(t, d.DB,
			"UPDATE inbox_locks SET owner_id = ?, expires_at = ? WHERE name = ?", vanishing, farAway, lockName)
		inboxtest.Eventually(t, func() bool { return !holdsLock(ib) }, "it noticed")
		inboxtest.Exec(t, d.DB, "ALTER TABLE hidden RENAME TO inbox_messages")
		inboxtest.Eventually(t, func() bool {
			return inboxtest.Status(t, ib, "1", "h").ProcessingStartedAt == nil &&
				inboxtest.Status(t, ib, "2", "h").ProcessingStartedAt == nil
		}, "the lost claim was released")
		require.False(t, holdsLock(ib))
		for _, s := range inboxtest.Statuses(t, ib) {
			require.Nil(t, s.CompletedAt)
			require.Zero(t, s.AbandonedCount)
		}
	})
}

func TestStopReleasesTheLockAfterTheLastResult(t *testing.T) {
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
		startHolder(t, ib)
		owner := lockOwner(t, d)
		inboxtest.Accept(t, ib, "1")
		inboxtest.Receive(t, running, "the handler")
		inboxtest.Exec(t, d.DB, "ALTER TABLE inbox_handler_statuses RENAME TO hidden")
		close(finish)
		stopped := make(chan error, 1)
		go func() { stopped <- ib.Stop(context.Background()) }()
		// Longer than the lease's duration, so it must be renewed.
		st := inboxtest.Store(t, d.DB)
		for end := time.Now().Add(lease + time.Second); time.Now().Before(end); {
			require.Equal(t, owner, lockOwner(t, d), "a result is not stored yet")
			taken, err := st.AcquireLease(t.Context(), lockName, vanishing, time.Second, system.Now())
			require.NoError(t, err)
			require.False(t, taken, "a result is not stored yet")
			pause(t, 20*time.Millisecond)
		}
		require.Empty(t, stopped)
		inboxtest.Exec(t, d.DB, "ALTER TABLE hidden RENAME TO inbox_handler_statuses")
		require.NoError(t, inboxtest.Receive(t, stopped, "Stop"))
		require.NotNil(t, inboxtest.Status(t, ib, "1", "h").CompletedAt)
		require.Empty(t, lockOwner(t, d), "given up")
		require.Zero(t, ib.Counters().LockLost, "giving up is no loss")
	})
}

func TestStopWithRunningHandlersLetsTheLockExpire(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		running, release := make(chan string, 1), make(chan struct{})
		defer close(release)
		ib := exclusive(t, d, inbox.Configure(func(o *inbox.Options) { o.Processor.WorkerTimeout = 3 * time.Second }),
			inboxtest.Handlers(inboxtest.Do("deaf", func(_ context.Context, m inboxtest.Bytes) error {
				running <- m.ID
				<-release
				return nil
			})))
		require.NoError(t, ib.Start(context.Background()))
		inboxtest.Eventually(t, func() bool { return holdsLock(ib) }, "it holds the lock")
		inboxtest.Accept(t, ib, "1")
		inboxtest.Receive(t, running, "the handler")
		require.ErrorContains(t, stop(t, ib, 2*time.Second), "1 handlers still run")
		require.NotEmpty(t, lockOwner(t, d))
		inboxtest.Eventually(t, func() bool {
			taken, err := inboxtest.Store(t, d.DB).AcquireLease(context.Background(), lockName, vanishing, time.Second,
				system.Now())
			require.NoError(t, err)
			return taken
		}, "it ran out")
	})
}
