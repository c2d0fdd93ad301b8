package processor_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// noRoutineReconcile disables the routine reconciliation, so that only a lost response causes one.
var noRoutineReconcile = inbox.Configure(func(o *inbox.Options) { o.Processor.SweepInterval = time.Hour })

func TestAllLostClaimsAreFound(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		const lost = 600 // more than one statement releases
		db, gate := gated(t, d)
		// The reconciliation comes when the response has been lost for two WorkerTimeouts, so no
		// other follows.
		ib := inboxtest.New(t, db, unhurried(), noRoutineReconcile, inbox.Configure(func(o *inbox.Options) {
			o.Processor.StatementTimeout = 11 * time.Second
			o.Processor.Concurrency = lost
		}),
			inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Start(t, ib)
		settleDown(t, ib)
		messages := make([]handler.RawMessage, lost)
		for i := range messages {
			messages[i] = inboxtest.Message(fmt.Sprint(i))
		}
		gate.lose()
		_, err := ib.Accept(context.Background(), messages...)
		require.ErrorIs(t, err, errLost)
		var claimed int64
		require.NoError(t, ib.DB().Table(ib.Tables().HandlerStatuses()).Where("worker_id IS NOT NULL").Count(&claimed).Error)
		require.Greater(t, claimed, int64(500))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all are found, and completed")
		require.Zero(t, ib.Counters().Fenced)
	})
}

// TestLostClaimAfterManyPendingStatusesIsFound proves contract 5.9: reconciling goes on to the end.
func TestLostClaimAfterManyPendingStatusesIsFound(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		db, gate := gated(t, d)
		ib := inboxtest.New(t, db, unhurried(), noRoutineReconcile, inbox.Configure(func(o *inbox.Options) {
			o.Processor.StatementTimeout = 3 * time.Second
		}), inboxtest.Handlers(inboxtest.Do("paused", inboxtest.Nothing)),
			inbox.Channel("d", inbox.On("t", inboxtest.Do("h", inboxtest.Nothing))))
		producer := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("paused", inboxtest.Nothing)))
		inboxtest.Start(t, ib)
		settleDown(t, ib)
		probe(t, ib, "d")
		require.NoError(t, ib.Pause(t.Context(), "paused"))
		deep := acceptBehind(t, producer, 2*store.ClaimPage)
		claimAs(t, d, deep, workers(t, d)[0].ID)
		gate.lose()
		_, err := ib.Accept(t.Context(), handler.RawMessage{Channel: "d", Type: "t", ID: "1", Content: []byte("1")})
		require.ErrorIs(t, err, errLost)
		inboxtest.Eventually(t, func() bool {
			return inboxtest.Status(t, ib, deep, "paused").ProcessingStartedAt == nil
		}, "it is released")
		require.Zero(t, inboxtest.Status(t, ib, deep, "paused").AbandonedCount, "uncharged")
	})
}

// Contract 5.9: no lost response makes the worker reconcile, only the routine.
func TestRoutineReconcileReleasesAnIdleClaim(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, unhurried(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.SweepInterval = 50 * time.Millisecond
		}),
			inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Start(t, ib)
		settleDown(t, ib)
		var worker string
		require.NoError(t, d.DB.Raw("SELECT id FROM inbox_workers").Scan(&worker).Error)
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			if _, err := ib.AcceptTx(t.Context(), tx, inboxtest.Message("1")); err != nil {
				return err
			}
			return tx.Exec("UPDATE inbox_handler_statuses SET worker_id = ?, processing_started_at = created_at, version = version + 1 WHERE message_id = '1'", worker).Error
		}))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "it is released, and completed")
		s := inboxtest.Status(t, ib, "1", "h")
		require.Zero(t, s.ErrorCount, "uncharged")
		require.Zero(t, s.AbandonedCount, "uncharged")
	})
}

// The status is claimed twice, and both times a response is lost:
//
//  1. An attempt fails. The failure is stored, but the response is lost.
//  2. While the completer tries to read the status back, the status comes due and is claimed again.
//  3. The response of that claim is lost, too.
//  4. Reconciling finds a status that the worker still holds, but by the earlier claim.
func TestLostClaimIsFoundWhileAFailureIsBeingStored(t *testing.T) {
	d, proxy, db := behindProxy(t)
	ib := inboxtest.New(t, db, unhurried(), noRoutineReconcile, inbox.Configure(func(o *inbox.Options) {
		o.Processor.StatementTimeout = 2 * time.Second // a start on a busy machine needs it
		o.Processor.HeartbeatInterval = 2 * time.Second
		o.Processor.PollingInterval = 50 * time.Millisecond
	}),
		inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
			if m.Attempt == 1 {
				return handler.RetryAfter(time.Second, errors.New("not yet"))
			}
			return nil
		})))
	var storing, claiming atomic.Bool
	while := func(on *atomic.Bool, texts ...string) func(string) bool {
		matches := pgproxy.Containing(texts...)
		return func(sql string) bool { return on.Load() && matches(sql) }
	}
	storing.Store(true)
	proxy.Lose(pgproxy.AnswerLost, 1, while(&storing, "error_count = c.error_count"))
	// this is how the completer reads the result back
	proxy.Lose(pgproxy.RequestLost, 1000, while(&storing, "error_count = c.error_count", "SKIP LOCKED"))
	proxy.Lose(pgproxy.AnswerLost, 1000, while(&claiming, "WITH worker AS MATERIALIZED"))
	inboxtest.Start(t, ib)
	inboxtest.Accept(t, ib, "1")
	row := func() (version int64, processing bool) {
		var found struct {
			Version    int64
			Processing bool
		}
		require.NoError(t,
			d.DB.Raw("SELECT version, processing_started_at IS NOT NULL AS processing FROM inbox_handler_statuses").Scan(&found).Error)
		return found.Version, found.Processing
	}
	var failed int64
	inboxtest.Eventually(t, func() bool {
		version, processing := row()
		failed = version
		return version > 1 && !processing
	}, "the failure is stored")
	claiming.Store(true)
	inboxtest.Eventually(t, func() bool {
		version, processing := row()
		return version == failed+1 && processing
	}, "it is claimed again")
	claiming.Store(false)
	inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "it is completed")
	storing.Store(false)
}

// The client's connection is lost while the server runs the claim, which takes longer than the
// first reconciliation waits.
func TestClaimCommittedLongAfterItsTimeoutIsFound(t *testing.T) {
	d, proxy, db := behindProxy(t)
	ib := inboxtest.New(t, db, unhurried(), noRoutineReconcile, inbox.Configure(func(o *inbox.Options) {
		o.Processor.StatementTimeout = 2 * time.Second // a start on a busy machine needs it
		o.Processor.PollingInterval = 50 * time.Millisecond
	}),
		inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
	release := holdStatuses(t, d.DB)
	defer release()
	inboxtest.Accept(t, ib, "1")
	var reads atomic.Int32
	isRead := pgproxy.Containing("WHERE s.is_last OR s.processing_started_at IS NOT NULL")
	proxy.Lose(pgproxy.RequestLost, 1, func(sql string) bool {
		if isRead(sql) {
			reads.Add(1)
		}
		return false
	})
	proxy.Lose(pgproxy.ConnectionLost, 1, pgproxy.Containing("WITH worker AS MATERIALIZED"))
	inboxtest.Start(t, ib)
	inboxtest.Eventually(t, func() bool { return reads.Load() > 0 }, "lost claims are looked for")
	release()
	inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "it is completed")
	require.Zero(t, inboxtest.Statuses(t, ib)[0].AbandonedCount, "the worker lived")
}

func TestLostClaimIsReleasedWhileHandlersAreBusy(t *testing.T) {
	d, proxy, db := behindProxy(t)
	release := make(chan struct{})
	defer close(release)
	ib := inboxtest.New(t, db, unhurried(), noRoutineReconcile, inbox.Configure(func(o *inbox.Options) {
		o.Processor.StatementTimeout = time.Second
		o.Processor.PollingInterval = 50 * time.Millisecond
		o.Processor.Concurrency = 1
		o.Processor.Prefetch = 1
	}),
		inboxtest.Handlers(inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
			if m.ID != "1" {
				<-release
			}
			return nil
		})))
	var claiming atomic.Bool
	isClaim := pgproxy.Containing("WITH worker AS MATERIALIZED")
	claiming.Store(true)
	proxy.Lose(pgproxy.AnswerLost, 1000, func(sql string) bool { return claiming.Load() && isClaim(sql) })
	inboxtest.Accept(t, ib, "1")
	inboxtest.Start(t, ib)
	claimed := func() (n int64) {
		require.NoError(t,
			d.DB.Raw("SELECT count(*) FROM inbox_handler_statuses WHERE worker_id IS NOT NULL AND message_id = '1'").Scan(&n).Error)
		return n
	}
	inboxtest.Eventually(t, func() bool { return claimed() == 1 }, "it is claimed")
	claiming.Store(false)
	inboxtest.Accept(t, ib, "2", "3", "4") // they take the slot and the prefetch
	inboxtest.Eventually(t, func() bool { return claimed() == 0 }, "it is released")
}

// holdStatuses makes every statement that changes a status on PostgreSQL wait until release. While
// it waits, the statement keeps the locks that it has. Releasing twice does nothing.
func holdStatuses(t testing.TB, db *gorm.DB) (release func()) {
	t.Helper()
	for _, statement := range []string{
		`CREATE OR REPLACE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$`,
		`CREATE OR REPLACE TRIGGER wait_for_the_test BEFORE UPDATE ON inbox_handler_statuses FOR EACH ROW EXECUTE FUNCTION wait_for_the_test()`,
	} {
		require.NoError(t, db.Exec(statement).Error)
	}
	held := db.Begin()
	require.NoError(t, held.Exec("SELECT pg_advisory_xact_lock(1)").Error)
	t.Cleanup(func() { held.Rollback() })
	return func() { held.Rollback() }
}
