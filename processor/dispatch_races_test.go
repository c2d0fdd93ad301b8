package processor_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// acceptMeanwhile accepts one message in the background; the channel receives the result.
func acceptMeanwhile(ib *inbox.Inbox, id string) <-chan error {
	over := make(chan error, 1)
	go func() {
		_, err := ib.Accept(context.Background(), inboxtest.Message(id))
		over <- err
	}()
	return over
}

// farAway is when a lock expires that another worker keeps.
var farAway = time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)

// heldAccept starts an accept that commits, with its status claimed, and whose response arrives
// only when open is called. The inbox must dispatch locally.
func heldAccept(t *testing.T, ib *inbox.Inbox, gate *commitGate, id string) (over <-chan error, open func()) {
	t.Helper()
	committed, open := gate.hold()
	t.Cleanup(open)
	over = acceptMeanwhile(ib, id)
	inboxtest.Receive(t, committed, "the commit")
	s := inboxtest.Status(t, ib, id, "h")
	require.EqualValues(t, 1, s.Version)
	require.NotNil(t, s.WorkerID, "it is claimed")
	return over, open
}

func TestStopWaitsForADispatchingAcceptAndReleasesItsClaims(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := newLedger()
		db, gate := gated(t, d)
		ib := startDispatching(t, db, stopBudget(inboxtest.Patience), inboxtest.Handlers(inboxtest.Do("h", ran.note)))
		over, open := heldAccept(t, ib, gate, "1")
		stopped := make(chan error, 1)
		go func() { stopped <- ib.Stop(context.Background()) }()
		inboxtest.Eventually(t, func() bool { return !ib.Health().Processor.Running }, "the stop has begun")
		pause(t, 50*time.Millisecond) // there is no signal for what must not happen
		require.Empty(t, stopped)
		open()
		require.NoError(t, inboxtest.Receive(t, over, "the accept"))
		require.NoError(t, inboxtest.Receive(t, stopped, "the stop"))
		s := inboxtest.Status(t, ib, "1", "h")
		require.Nil(t, s.WorkerID)
		require.Nil(t, s.ProcessingStartedAt)
		require.EqualValues(t, 2, s.Version, "released")
		require.Zero(t, s.ErrorCount+s.AbandonedCount)
		require.NotContains(t, ran.runs, "1/h")
		require.Equal(t, 1, inboxtest.Process(t, ib).Completed)
	})
}

func TestStopReleasesClaimsOfAnOutlastingAccept(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := newLedger()
		db, gate := gated(t, d)
		ib := startDispatching(t, db, stopBudget(10*time.Millisecond), inboxtest.Handlers(inboxtest.Do("h", ran.note)))
		over, open := heldAccept(t, ib, gate, "1")
		require.NoError(t, ib.Stop(context.Background()))
		s := inboxtest.Status(t, ib, "1", "h")
		require.Nil(t, s.WorkerID)
		require.EqualValues(t, 2, s.Version, "released before Stop returned")
		open()
		require.NoError(t, inboxtest.Receive(t, over, "the accept"))
		require.Zero(t, ib.Counters().Fenced)
		require.Equal(t, 1, inboxtest.Process(t, ib).Completed)
		require.Equal(t, 1, ran.runs["1/h"])
	})
}

func TestDeadWorkersDispatchedClaimsRunOnceUnderItsNextID(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := newLedger()
		db, gate := gated(t, d)
		ib := startDispatching(t, db, inboxtest.Handlers(inboxtest.Do("h", ran.note)))
		over, open := heldAccept(t, ib, gate, "1")
		first := workers(t, d)
		require.Len(t, first, 1)
		markReleased(t, d, first[0].ID)
		inboxtest.Eventually(t, func() bool {
			return len(workers(t, d)) == 2
		}, "it is back under a new ID, without waiting for the accept")
		open()
		require.NoError(t, inboxtest.Receive(t, over, "the accept"))
		require.EqualValues(t, 4, completed(t, ib, "1", "h").Version,
			"inserted claimed, released, claimed, completed")
		require.Equal(t, 1, ran.runs["1/h"])
		require.Zero(t, ib.Counters().Fenced)
	})
}

func TestStatusesDispatchedWhenTheLockIsLostAreReleased(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := newLedger()
		// It renews the lock every third of WorkerTimeout.
		renewing := inbox.Configure(func(o *inbox.Options) { o.Processor.WorkerTimeout = 10 * time.Second })
		db, gate := gated(t, d)
		ib := startDispatching(t, db, exclusiveMode(), renewing, inboxtest.Handlers(inboxtest.Do("h", ran.note)))
		over, open := heldAccept(t, ib, gate, "1")
		// Another worker holds the lock, and keeps it.
		inboxtest.Exec(t, d.DB, "UPDATE inbox_locks SET owner_id = ?, expires_at = ? WHERE name = ?",
			vanishing, farAway, lockName)
		inboxtest.Eventually(t, func() bool { return !ib.Health().Processor.HoldsLock }, "it has lost the lock")
		inboxtest.Accept(t, ib, "2")
		require.EqualValues(t, 1, inboxtest.Status(t, ib, "2", "h").Version)
		require.Nil(t, inboxtest.Status(t, ib, "2", "h").WorkerID, "it is for another worker")
		open()
		require.NoError(t, inboxtest.Receive(t, over, "the accept"))
		inboxtest.Eventually(t, func() bool { return inboxtest.Status(t, ib, "1", "h").WorkerID == nil }, "it is released")
		require.EqualValues(t, 2, inboxtest.Status(t, ib, "1", "h").Version)
		require.NotContains(t, ran.runs, "1/h")
	})
}

func TestAcceptWithLostResponseLeavesNoClaim(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := newLedger()
		db, gate := gated(t, d)
		ib := startDispatching(t, db, statementTimeout(time.Second), inboxtest.Handlers(inboxtest.Do("h", ran.note)))
		gate.lose()
		_, err := ib.Accept(context.Background(), inboxtest.Message("1"))
		require.ErrorIs(t, err, errLost)
		require.NotNil(t, inboxtest.Status(t, ib, "1", "h").WorkerID, "it was claimed, and no one knows")
		require.Equal(t, handler.OutcomeDuplicate, inboxtest.Accept(t, ib, "1")[0].Outcome)
		require.Zero(t, completed(t, ib, "1", "h").AbandonedCount, "no worker is to blame")
		require.Equal(t, 1, ran.runs["1/h"])
	})
}

func TestDispatchedAcceptWithFailedCommitRunsOnce(t *testing.T) {
	for _, fault := range []pgproxy.Fault{pgproxy.AnswerLost, pgproxy.RequestLost, pgproxy.AnswerSilent,
		pgproxy.ConnectionLost} {
		t.Run(fault.String(), func(t *testing.T) {
			_, proxy, proxied := behindProxy(t)
			ran := newLedger()
			ib := startDispatching(t, proxied, statementTimeout(2*time.Second), inboxtest.Handlers(inboxtest.Do("h", ran.note)))
			proxy.LoseCommits(fault, 1)
			_, err := ib.Accept(context.Background(), inboxtest.Message("1"))
			require.Error(t, err)
			require.Zero(t, proxy.Left())
			inboxtest.Eventually(t, func() bool {
				_, err := ib.Accept(context.Background(), inboxtest.Message("1"))
				return err == nil
			}, "it is accepted")
			require.Zero(t, completed(t, ib, "1", "h").AbandonedCount)
			require.Equal(t, 1, ran.runs["1/h"])
		})
	}
}

func TestRepeatedlyLostResponsesDoNotPostponeReconciling(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		db, gate := gated(t, d)
		ib := startDispatching(t, db, statementTimeout(time.Second), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		for i := 0; ; i++ { // at shorter intervals than StatementTimeout
			gate.lose()
			_, err := ib.Accept(context.Background(), inboxtest.Message(fmt.Sprint(i)))
			require.ErrorIs(t, err, errLost)
			if inboxtest.Status(t, ib, "0", "h").CompletedAt != nil {
				break
			}
			require.Less(t, i, 1000, "the first is never found")
			pause(t, 20*time.Millisecond)
		}
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "so are the others")
	})
}

func TestReconcilingWaitsForRunningAccepts(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := newLedger()
		db, gate := gated(t, d)
		const timeout = 2 * time.Second
		ib := startDispatching(t, db, statementTimeout(timeout), inboxtest.Handlers(inboxtest.Do("h", ran.note)))
		gate.lose()
		_, err := ib.Accept(context.Background(), inboxtest.Message("lost"))
		require.ErrorIs(t, err, errLost)
		over, open := heldAccept(t, ib, gate, "late")
		pause(t, timeout+300*time.Millisecond) // reconciling is due now
		before := ib.Counters().Dispatched
		inboxtest.Accept(t, ib, "meanwhile")
		require.Equal(t, before, ib.Counters().Dispatched, "nothing is dispatched until claims are reconciled")
		completed(t, ib, "meanwhile", "h")
		require.EqualValues(t, 1, inboxtest.Status(t, ib, "late", "h").Version, "its accept is under way: it is not lost")
		open()
		require.NoError(t, inboxtest.Receive(t, over, "the accept"))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
		require.EqualValues(t, 2, inboxtest.Status(t, ib, "late", "h").Version, "inserted claimed, completed")
		for _, id := range []string{"lost", "late", "meanwhile"} {
			require.Equal(t, 1, ran.runs[id+"/h"], id)
		}
		require.Zero(t, ib.Counters().Fenced)
		settleDown(t, ib)
	})
}

func TestConcurrentAcceptsSplitTheFreeSlots(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite's accepts take turns
		db, gate := gated(t, d)
		ib := startDispatching(t, db, slots(2, 0), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		hold := func(id string) (open func()) {
			committed, open := gate.hold()
			t.Cleanup(open)
			acceptMeanwhile(ib, id)
			inboxtest.Receive(t, committed, "the commit")
			return open
		}
		for n, deadline := 0, time.Now().Add(inboxtest.Patience); ; n++ {
			require.True(t, time.Now().Before(deadline), "the machine is too slow: accepts keep their slots for 100 ms")
			began, id := time.Now(), func(name string) string { return fmt.Sprintf("%s %d", name, n) }
			first, second := hold(id("first")), hold(id("second"))
			inboxtest.Accept(t, ib, id("third"))
			third := inboxtest.Status(t, ib, id("third"), "h")
			if time.Since(began) < 100*time.Millisecond {
				require.NotNil(t, inboxtest.Status(t, ib, id("first"), "h").WorkerID, "it is claimed")
				require.NotNil(t, inboxtest.Status(t, ib, id("second"), "h").WorkerID, "it is claimed")
				require.EqualValues(t, 1, third.Version)
				require.Nil(t, third.WorkerID, "no slot is left, neither for a claim")
				return
			}
			first()
			second()
			inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all are completed")
			settleDown(t, ib)
		}
	})
}

func TestFailedAcceptsReleaseTheirSlots(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		db, gate := gated(t, d)
		ib := startDispatching(t, db, slots(2, 0), statementTimeout(time.Second), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		for name, fail := range map[string]func(){
			"refused": func() {
				gate.take(func(tx *sql.Tx) error { return errors.Join(tx.Rollback(), errors.New("refused")) })
				_, err := ib.Accept(context.Background(), inboxtest.Message("refused"))
				require.Error(t, err)
			},
			"cancelled": func() {
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				_, err := ib.Accept(ctx, inboxtest.Message("cancelled"))
				require.ErrorIs(t, err, context.Canceled)
			},
			"panicking": func() {
				gate.take(func(tx *sql.Tx) error { panic(errors.Join(tx.Rollback(), errors.New("of the pool"))) })
				require.Panics(t, func() { _, _ = ib.Accept(context.Background(), inboxtest.Message("panicking")) })
			},
		} {
			for range 5 {
				fail()
			}
			t.Log(name)
			settleDown(t, ib)
		}
	})
}
