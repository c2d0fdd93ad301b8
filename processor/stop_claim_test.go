package processor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// stopsDuringAClaim starts an inbox whose handler runs message "1", and has it claim message "2". The
// claim is committed, and gets its response when open is called or until ends its wait.
func stopsDuringAClaim(
	t *testing.T, d *inboxtest.Database, until func(context.Context) <-chan struct{},
) (ib *inbox.Inbox, cancelled <-chan struct{}, open func()) {
	t.Helper()
	db, gate := gated(t, d)
	running, done := make(chan string, 10), make(chan struct{})
	ib = inboxtest.New(t, db, unhurried(), inbox.Configure(func(o *inbox.Options) { o.Processor.StopBudget = soon }),
		inboxtest.Handlers(inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
			if m.ID != "1" {
				return nil
			}
			running <- m.ID
			<-ctx.Done()
			close(done)
			return ctx.Err()
		})))
	require.NoError(t, ib.Start(context.Background()))
	settleDown(t, ib)
	inboxtest.Accept(t, ib, "1")
	require.Equal(t, "1", inboxtest.Receive(t, running, "the handler"))
	receipt := acceptUnnoticed(t, d, ib, "2")
	committed, open := gate.holdClaim(until)
	t.Cleanup(open)
	receipt.Wake()
	inboxtest.Receive(t, committed, "the claim")
	inboxtest.Eventually(t, func() bool { return inboxtest.Status(t, ib, "2", "h").ProcessingStartedAt != nil },
		"the database has committed it")
	return ib, done, open
}

// acceptUnnoticed stores a message that an unhurried inbox does not claim before the receipt's Wake.
func acceptUnnoticed(t *testing.T, d *inboxtest.Database, ib *inbox.Inbox, id string) (receipt *acceptor.Receipt) {
	t.Helper()
	require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) (err error) {
		receipt, err = ib.AcceptTx(t.Context(), tx, inboxtest.Message(id))
		return err
	}))
	return receipt
}

func never(context.Context) <-chan struct{} { return nil }

// requireReleased requires that both statuses are free and uncharged and that the worker has stopped.
func requireReleased(t *testing.T, d *inboxtest.Database, ib *inbox.Inbox) {
	t.Helper()
	for _, s := range inboxtest.Statuses(t, ib) {
		require.Nil(t, s.ProcessingStartedAt, s.MessageID)
		require.Nil(t, s.WorkerID, s.MessageID)
		require.Zero(t, s.ErrorCount, s.MessageID)
		require.Zero(t, s.AbandonedCount, s.MessageID)
	}
	require.NotNil(t, workers(t, d)[0].StoppedAt)
}

// Contract 5.8.
func TestStopReleasesARunningClaim(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib, cancelled, open := stopsDuringAClaim(t, d, never)
		stopped := make(chan error, 1)
		go func() { stopped <- stop(t, ib, inboxtest.Patience) }()
		inboxtest.Receive(t, cancelled, "the end of the soft budget")
		open()
		require.NoError(t, inboxtest.Receive(t, stopped, "the stop"))
		requireReleased(t, d, ib)
	})
}

// Contract 5.8: the claim is cancelled when the time for storing begins. On PostgreSQL its response is
// lost then; on SQLite it is committed and comes late.
func TestStopReleasesAClaimThatOutlivesTheLoop(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib, _, _ := stopsDuringAClaim(t, d, context.Context.Done)
		require.NoError(t, stop(t, ib, 10*time.Second))
		requireReleased(t, d, ib)
	})
}

// Contract 5.8: the claim's response never comes, and the claim ignores its cancellation.
func TestStopReportsAClaimThatDoesNotEnd(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ib, _, open := stopsDuringAClaim(t, d, never)
		err := stop(t, ib, 3*time.Second)
		require.EqualError(t, err, `inbox "test": stop: a claim did not end, what it claims is recovered by another worker`)
		require.Nil(t, workers(t, d)[0].StoppedAt, "its silence must tell")
		require.Nil(t, inboxtest.Status(t, ib, "1", "h").ProcessingStartedAt)
		if d.Dialect == "sqlite" { // on PostgreSQL the driver has dropped the rows of a cancelled query
			open()
			inboxtest.Eventually(t, func() bool { return inboxtest.Status(t, ib, "2", "h").ProcessingStartedAt == nil },
				"the claim gives back what it gets too late")
		}
	})
}

// Contract 5.8: the response of a claim is lost, silently, and the stop comes before reconciling is due.
func TestStopReleasesClaimsWithLostResponse(t *testing.T) {
	for name, unreadable := range map[string]bool{"found": false, "not to be found": true} {
		t.Run(name, func(t *testing.T) {
			d, proxy, db := behindProxy(t)
			ib := inboxtest.New(t, db, unhurried(), noRoutineReconcile, inbox.Configure(func(o *inbox.Options) {
				o.Processor.StatementTimeout = time.Second
			}), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
			require.NoError(t, ib.Start(context.Background()))
			settleDown(t, ib)
			receipt := acceptUnnoticed(t, d, ib, "1")
			proxy.Lose(pgproxy.AnswerSilent, 1, pgproxy.Containing("WITH worker AS MATERIALIZED"))
			receipt.Wake()
			inboxtest.Eventually(t, func() bool { return inboxtest.Status(t, ib, "1", "h").ProcessingStartedAt != nil },
				"it is claimed")
			if unreadable {
				proxy.Lose(pgproxy.RequestLost, 1_000_000, pgproxy.Containing("SET released_at"))
			}
			err := stop(t, ib, 5*time.Second)
			if unreadable {
				require.ErrorContains(t, err, "stop: claims whose response was lost are recovered by another worker")
				require.Nil(t, workers(t, d)[0].StoppedAt, "its silence must tell")
				return
			}
			require.NoError(t, err)
			requireReleased(t, d, ib)
		})
	}
}

// Contract 5.14.
func TestCancelledDrainReleasesItsRunningClaim(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		db, gate := gated(t, d)
		ib := inboxtest.New(t, db, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "1")
		committed, open := gate.holdClaim(never)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			_, err := ib.ProcessPending(ctx)
			ended <- err
		}()
		inboxtest.Receive(t, committed, "the claim")
		cancel()
		pause(t, 200*time.Millisecond) // a claim that ended with ctx would have ended by then
		open()
		require.ErrorIs(t, inboxtest.Receive(t, ended, "the drain"), context.Canceled)
		s := inboxtest.Status(t, ib, "1", "h")
		require.Nil(t, s.ProcessingStartedAt)
		require.Zero(t, s.AbandonedCount)
	})
}

// Contract 5.8: on PostgreSQL the response of the claim is lost, on SQLite it comes too late.
func TestStopReportsClaimsThatItCannotRelease(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib, _, _ := stopsDuringAClaim(t, d, context.Context.Done)
		refuseReleases(t, d, "2")
		err := stop(t, ib, 5*time.Second)
		require.ErrorContains(t, err, "recovered by another worker")
		require.NotNil(t, inboxtest.Status(t, ib, "2", "h").ProcessingStartedAt)
		require.Nil(t, workers(t, d)[0].StoppedAt, "its silence must tell")
	})
}

// refuseReleases has the database refuse to end the claims of a message.
func refuseReleases(t *testing.T, d *inboxtest.Database, id string) {
	t.Helper()
	refuse(t, d, "UPDATE", "inbox_handler_statuses", "NEW.processing_started_at IS NULL AND NEW.message_id = '"+id+"'")
}
