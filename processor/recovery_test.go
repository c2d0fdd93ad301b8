package processor_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// hasty makes sweeps frequent. It declares only those workers dead that a test makes silent (see
// silentFor), unless the test sets WorkerTimeout.
func hasty() inbox.Option {
	return inbox.Configure(func(o *inbox.Options) {
		inboxtest.Defaults(o)
		p := &o.Processor
		p.HeartbeatInterval, p.SweepInterval = 50*time.Millisecond, 50*time.Millisecond
		p.StopBudget, p.MaxRetryDelay = time.Second, time.Second
	})
}

const vanishing = "0192f000-0000-7000-8000-000000000001"

func TestClaimsOfAVanishedWorkerAreRecovered(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		attempts := make(chan int, 10)
		log, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, hasty(), log, inboxtest.Handlers(
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error { attempts <- m.Attempt; return nil })))
		inboxtest.Accept(t, ib, "1")
		require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")))
		claim(t, d, system, vanishing, 1, "h") // and its process dies
		began := time.Now()
		silentFor(t, d, vanishing, inboxtest.Patience-time.Second)
		inboxtest.Start(t, ib)
		require.Equal(t, 2, inboxtest.Receive(t, attempts, "the recovered message"), "the handler can tell a rerun")
		require.GreaterOrEqual(t, time.Since(began), time.Second, "not before the worker's timeout")
		inboxtest.Eventually(t, func() bool {
			return inboxtest.Status(t, ib, "1", "h").CompletedAt != nil
		}, "it was completed")
		s := inboxtest.Status(t, ib, "1", "h")
		require.Zero(t, s.ErrorCount, "nothing is charged")
		require.Zero(t, s.AbandonedCount, "a finished attempt resets it")
		require.EqualValues(t, 1, ib.Counters().Recovered)
		require.Equal(t, 1, logs.FilterMessageSnippet("released abandoned claims").Len())
		silentFor(t, d, vanishing, 3*inboxtest.Patience)
		inboxtest.Eventually(t, func() bool {
			for _, w := range workers(t, d) {
				if w.ID == vanishing {
					return w.ReleasedAt != nil
				}
			}
			return true
		}, "its row is marked released")
	})
}

// TestUnreadableHandlerKeysDoNotStopRecovery gives the vanished worker's row an array of keys, as of a
// program that stores no namespaces, or a text that this program cannot read.
func TestUnreadableHandlerKeysDoNotStopRecovery(t *testing.T) {
	for _, listed := range []string{`["h"]`, `{"h": {"namespace": "c"}}`, ``} {
		t.Run(listed, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				ib := inboxtest.New(t, d.DB, hasty(), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
				inboxtest.Accept(t, ib, "1")
				require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")))
				claim(t, d, system, vanishing, 1, "h")
				silentFor(t, d, vanishing, 3*inboxtest.Patience)
				inboxtest.Exec(t, d.DB, `UPDATE inbox_workers SET handler_keys = ? WHERE id = ?`, listed, vanishing)
				inboxtest.Start(t, ib)
				inboxtest.Eventually(t, func() bool {
					return inboxtest.Status(t, ib, "1", "h").CompletedAt != nil
				}, "it was completed")
				inboxtest.Eventually(t, func() bool { return !ib.Health().SampledAt.IsZero() }, "a sample is taken")
			})
		})
	}
}

func TestWorkerThatHeartbeatsKeepsItsClaims(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, hasty(), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "1")
		require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")))
		claim(t, d, system, vanishing, 1, "h")
		silentFor(t, d, vanishing, inboxtest.Patience-time.Second)
		require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")))
		inboxtest.Start(t, ib)
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); { // without the heartbeat it would be dead
			require.NotNil(t, inboxtest.Status(t, ib, "1", "h").ProcessingStartedAt)
			pause(t, 20*time.Millisecond)
		}
		require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")), "it was taken for dead")
	})
}

// pause lets time pass while other goroutines work.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

func TestStatusThatKillsWorkersIsPoisoned(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, hasty(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxAbandoned = 4
		}), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "deadly", "suspect")
		require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")))
		claim(t, d, system, vanishing, 2, "h")
		silentFor(t, d, vanishing, time.Hour)
		inboxtest.Exec(t, d.DB, "UPDATE inbox_handler_statuses SET abandoned_count = 3 WHERE message_id = 'deadly'")
		inboxtest.Exec(t, d.DB, "UPDATE inbox_handler_statuses SET abandoned_count = 2 WHERE message_id = 'suspect'")
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return inboxtest.Status(t, ib, "deadly", "h").IsPoisoned }, "it was poisoned")
		s := inboxtest.Status(t, ib, "deadly", "h")
		require.Equal(t, "workers vanish while running it", *s.LastError)
		require.Equal(t, 4, s.AbandonedCount)
		require.NotNil(t, s.PoisonedAt)
		require.Contains(t, *s.Attempts, vanishing, "the attempt names the worker that vanished")
		require.Zero(t, s.ErrorCount)
		require.Nil(t, s.ProcessingStartedAt)
		inboxtest.Eventually(t, func() bool {
			return inboxtest.Status(t, ib, "suspect", "h").CompletedAt != nil
		}, "the other ran")
	})
}

func TestWorkerDeclaredDeadContinuesUnderANewID(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		running := make(chan string, 10)
		causes := make(chan error, 10)
		var interrupted atomic.Bool
		log, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, hasty(), log, inboxtest.Handlers(inboxtest.Do("h",
			func(ctx context.Context, m inboxtest.Bytes) error {
				running <- m.ID
				if m.ID == "long" && !interrupted.Swap(true) {
					<-ctx.Done()
					causes <- context.Cause(ctx)
					return ctx.Err()
				}
				return nil
			})))
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "long")
		inboxtest.Receive(t, running, "the handler")
		first := workers(t, d)
		require.Len(t, first, 1)
		markReleased(t, d, first[0].ID)

		require.ErrorContains(t, inboxtest.Receive(t, causes, "its handlers' cancellation"), "lost its heartbeat")
		require.Equal(t, "long", inboxtest.Receive(t, running, "the message, by the new worker"))
		inboxtest.Accept(t, ib, "next")
		require.Equal(t, "next", inboxtest.Receive(t, running, "a message, by the new worker"))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
		require.Zero(t, inboxtest.Status(t, ib, "long", "h").ErrorCount, "nothing is charged")
		ids := map[string]bool{}
		for _, w := range workers(t, d) {
			ids[w.ID] = true
		}
		delete(ids, first[0].ID)
		require.Len(t, ids, 1)
		failing := logs.FilterMessageSnippet("heartbeat failing").All()
		require.Len(t, failing, 1)
		require.Contains(t, failing[0].ContextMap()["error"], "declared dead")
		inboxtest.Eventually(t, func() bool { return ib.Health().Degraded() == nil }, "health recovered")
	})
}

func TestWorkerThatCannotHeartbeatStopsAndContinuesLater(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran, causes := make(chan string, 10), make(chan error, 10)
		var interrupted atomic.Bool
		ib := inboxtest.New(t, d.DB, hasty(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.WorkerTimeout = 3 * time.Second
		}),
			inboxtest.Handlers(inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
				ran <- m.ID
				if !interrupted.Swap(true) {
					<-ctx.Done()
					causes <- context.Cause(ctx)
					return ctx.Err()
				}
				return nil
			})))
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "long")
		inboxtest.Receive(t, ran, "the handler")
		before := workers(t, d)[0].ID
		inboxtest.Exec(t, d.DB, "ALTER TABLE inbox_workers RENAME TO hidden")
		inboxtest.Eventually(t, func() bool {
			return ib.Health().Processor.Conditions["heartbeat"] != nil
		}, "health reports the heartbeat")
		require.ErrorContains(t, inboxtest.Receive(t, causes, "the handler's cancellation"), "lost its heartbeat")
		inboxtest.Accept(t, ib, "meanwhile")
		require.Empty(t, ran, "nothing is claimed without a heartbeat")

		inboxtest.Exec(t, d.DB, "ALTER TABLE hidden RENAME TO inbox_workers")
		both := []string{inboxtest.Receive(t, ran, "a message"), inboxtest.Receive(t, ran, "a message")}
		require.ElementsMatch(t, []string{"long", "meanwhile"}, both)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
		require.Zero(t, inboxtest.Status(t, ib, "long", "h").ErrorCount, "nothing is charged")
		all := workers(t, d)
		require.NotEqual(t, before, all[len(all)-1].ID)
		inboxtest.Eventually(t, func() bool { return ib.Health().Degraded() == nil }, "health recovered")
	})
}

func TestClaimsWithLostResponseAreReleased(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := make(chan string, 10)
		ib := inboxtest.New(t, d.DB, hasty(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.StatementTimeout = 2 * time.Second
		}),
			inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
				ran <- m.ID
				return nil
			})))
		require.NoError(t, ib.Pause(context.Background(), "h"))
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return len(workers(t, d)) == 1 }, "the worker registered")
		self := workers(t, d)
		inboxtest.Accept(t, ib, "1", "2")
		// A claim of this worker that it does not know of, then a claim statement that fails, which
		// makes the worker reconcile.
		claim(t, d, system, self[0].ID, 1, "h")
		hide, show := "ALTER TABLE inbox_messages RENAME TO hidden", "ALTER TABLE hidden RENAME TO inbox_messages"
		inboxtest.Exec(t, d.DB, hide)
		require.NoError(t, ib.Resume(context.Background(), "h"))
		inboxtest.Eventually(t, func() bool { return ib.Health().Processor.Conditions["claiming"] != nil }, "a claim failed")
		require.Error(t, ib.Health().Degraded())
		inboxtest.Exec(t, d.DB, show)
		both := []string{inboxtest.Receive(t, ran, "the lost claim or the other"),
			inboxtest.Receive(t, ran, "the lost claim or the other")}
		require.ElementsMatch(t, []string{"1", "2"}, both)
		inboxtest.Eventually(t, func() bool { return ib.Health().Degraded() == nil }, "health recovered")
		for _, s := range inboxtest.Statuses(t, ib) {
			require.Zero(t, s.AbandonedCount)
			require.Zero(t, s.ErrorCount)
		}
	})
}

func TestStuckClaimsOfDrainsAreReleasedByRunningWorkers(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := make(chan string, 10)
		ib := inboxtest.New(t, d.DB, hasty(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.StuckMessageThreshold = 300 * time.Millisecond
		}), inboxtest.Handlers(
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error { ran <- m.ID; return nil })))
		inboxtest.Accept(t, ib, "1")
		claim(t, d, system, "", 1, "h") // and its process dies
		inboxtest.Start(t, ib)
		require.Equal(t, "1", inboxtest.Receive(t, ran, "the stuck message"))
	})
}

func TestRowsOfDeadWorkersArePruned(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, hasty(), inbox.Configure(func(o *inbox.Options) { o.Processor.UnknownKeyGrace = 0 }),
			inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")))
		silentFor(t, d, vanishing, time.Hour)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool {
			all := workers(t, d)
			return len(all) == 1 && all[0].ID != vanishing
		}, "the dead worker's row was pruned")
	})
}

// markReleased declares a worker dead.
func markReleased(t *testing.T, d *inboxtest.Database, workerID string) {
	t.Helper()
	inboxtest.Eventually(t, func() bool {
		err := inboxtest.Store(t, d.DB).MarkReleased(context.Background(), workerID, system.Now())
		if !errors.Is(err, store.ErrWorkerBusy) {
			require.NoError(t, err)
		}
		return err == nil
	}, "no claim of the worker is under way")
}

// TestClaimsAfterManyPendingStatusesAreRecovered proves contract 5.9: claims are found wherever they
// are, also behind more pending statuses than one statement reads.
func TestClaimsAfterManyPendingStatusesAreRecovered(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, hasty(), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		require.NoError(t, ib.Pause(t.Context(), "h"))
		deep := acceptBehind(t, ib, 2*store.ClaimPage)
		inboxtest.Accept(t, ib, "stuck")
		require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")))
		claimAs(t, d, deep, vanishing)
		silentFor(t, d, vanishing, time.Hour)
		inboxtest.Exec(t, d.DB, "UPDATE inbox_handler_statuses SET processing_started_at = ? WHERE message_id = 'stuck'",
			time.Now().UTC().Add(-time.Hour))
		inboxtest.Start(t, ib)
		for _, id := range []string{deep, "stuck"} {
			inboxtest.Eventually(t, func() bool { return inboxtest.Status(t, ib, id, "h").AbandonedCount == 1 }, id+" was recovered")
		}
		inboxtest.Eventually(t, func() bool { return ib.Counters().Recovered == 2 }, "both are counted, after their commit")
	})
}

// TestClaimsOfWorkersWithoutARowAreRecovered proves contract 5.9: the claim was committed after its
// worker's row was pruned.
func TestClaimsOfWorkersWithoutARowAreRecovered(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, hasty(), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "1")
		claimAs(t, d, "1", vanishing)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "it was recovered")
		require.EqualValues(t, 1, ib.Counters().Recovered)
	})
}

// acceptBehind accepts more than n messages and returns the last one, which is due last.
func acceptBehind(t *testing.T, ib *inbox.Inbox, n int) (last string) {
	t.Helper()
	for from := 0; from <= n; from += 1000 {
		ids := make([]string, 1000)
		for i := range ids {
			ids[i] = fmt.Sprint("pending ", from+i)
		}
		inboxtest.Accept(t, ib, ids...)
	}
	inboxtest.Accept(t, ib, "last")
	return "last"
}

// claimAs claims a message's status for a worker as local dispatch does, whatever is due before it.
func claimAs(t *testing.T, d *inboxtest.Database, messageID, workerID string) {
	t.Helper()
	inboxtest.Exec(t, d.DB, `UPDATE inbox_handler_statuses SET worker_id = ?, processing_started_at = created_at, version = version + 1
		WHERE message_id = ?`, workerID, messageID)
}

// TestOneWorkerAtATimeRecoversClaims proves contract 5.9: while one worker reads claims, others do not, and
// the next one takes over when it stops.
func TestOneWorkerAtATimeRecoversClaims(t *testing.T) {
	d, proxy, db := behindProxy(t)
	var reads atomic.Int64
	isRead := pgproxy.Containing("WHERE s.is_last OR s.processing_started_at IS NOT NULL")
	proxy.Lose(pgproxy.RequestLost, 1, func(sql string) bool {
		if isRead(sql) {
			reads.Add(1)
		}
		return false
	})
	handlers := inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing))
	// Sweeps come often, and the worker itself does not reconcile in the time of the test.
	often := inbox.Configure(func(o *inbox.Options) { o.Processor.StuckMessageThreshold = 100 * time.Millisecond })
	first := inboxtest.New(t, d.DB, hasty(), often, handlers)
	require.NoError(t, first.Pause(t.Context(), "h"))
	inboxtest.Accept(t, first, "1")
	stop := inboxtest.Start(t, first)
	owner := func() (id string) {
		require.NoError(t, d.DB.Raw("SELECT owner_id FROM inbox_locks WHERE name = 'recovery'").Scan(&id).Error)
		return id
	}
	inboxtest.Eventually(t, func() bool { return owner() != "" }, "the first one holds the lease")
	held := owner()
	second := inboxtest.New(t, db, hasty(), often, handlers)
	inboxtest.Start(t, second)
	inboxtest.Eventually(t, func() bool { return len(workers(t, d)) == 2 }, "the second one has begun")
	pause(t, time.Second)
	require.Equal(t, held, owner())
	require.LessOrEqual(t, reads.Load(), int64(2), "only what it reconciles by routine")
	require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")))
	claim(t, d, system, vanishing, 1, "h")
	stop()
	silentFor(t, d, vanishing, time.Hour)
	inboxtest.Eventually(t, func() bool { return second.Counters().Recovered == 1 }, "the second one recovers")
	require.NotEqual(t, held, owner())
}

// TestClaimsLeftByAStopAreRecovered proves contract 5.9: a stop ended its worker's right to claim and could
// not release every claim. No routine of another worker has to come first.
func TestClaimsLeftByAStopAreRecovered(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		const sweep = 5 * time.Second
		ib := inboxtest.New(t, d.DB, hasty(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.SweepInterval = sweep
		}), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		require.NoError(t, ib.Pause(t.Context(), "h"))
		deep := acceptBehind(t, ib, store.ClaimPage)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool {
			var leases int
			require.NoError(t, d.DB.Raw("SELECT count(*) FROM inbox_locks WHERE name = 'recovery'").Scan(&leases).Error)
			return leases == 1
		}, "the first sweep has begun")
		pause(t, 2*sweep) // it has read all claims
		began := time.Now()
		require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")))
		claimAs(t, d, deep, vanishing)
		claimAs(t, d, "pending 0", vanishing)
		markReleased(t, d, vanishing)
		silentFor(t, d, vanishing, inboxtest.Patience)
		for _, id := range []string{deep, "pending 0"} {
			inboxtest.Eventually(t, func() bool { return inboxtest.Status(t, ib, id, "h").AbandonedCount == 1 }, id+" was recovered")
		}
		require.Less(t, time.Since(began), 10*sweep, "the routine comes every 12 sweeps")
	})
}

// TestUnendableLockBlocksNoOtherRecovery proves contract 5.9. SQLite locks no rows.
func TestUnendableLockBlocksNoOtherRecovery(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, hasty(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.SweepInterval = 2 * time.Millisecond // a sweep reads one page of the walk
		}), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		require.NoError(t, ib.Pause(t.Context(), "h"))
		deep := acceptBehind(t, ib, 5*store.ClaimPage)
		require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")))
		claimAs(t, d, "pending 0", vanishing)
		claimAs(t, d, deep, vanishing)
		silentFor(t, d, vanishing, time.Hour)
		lock := d.Another(t).Begin()
		require.NoError(t, lock.Exec("SELECT 1 FROM inbox_handler_statuses WHERE message_id = 'pending 0' FOR UPDATE").Error)
		ctx, release := context.WithCancel(t.Context())
		works := routine.Go(func() { _ = lock.WithContext(ctx).Exec("SELECT pg_sleep(300)").Error }) // so no one may end it
		defer lock.Rollback()
		defer release()
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return inboxtest.Status(t, ib, deep, "h").AbandonedCount == 1 },
			"the claim behind it was recovered")
		release()
		<-works
		inboxtest.Eventually(t, func() bool { return inboxtest.Status(t, ib, "pending 0", "h").AbandonedCount == 1 },
			"the claim that was locked")
	})
}
