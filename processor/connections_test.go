package processor_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// limited returns the database with a pool of its own of that size.
func limited(t *testing.T, d *inboxtest.Database, size int) *gorm.DB {
	t.Helper()
	db := d.Another(t)
	pool, err := db.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(size)
	return db
}

// Contract 3.7: two inboxes share one pool, and each handler may have a slot, so that there are far more
// transactions than connections. Those that have none wait, and everything else goes on.
func TestHandlerTransactionsLeaveConnectionsToTheInbox(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		const size, most = 10, 6
		db := limited(t, d, size)
		var running, atOnce atomic.Int64
		release := make(chan struct{})
		hold := func(ctx context.Context, _ *gorm.DB, _ inboxtest.Bytes) error {
			n := running.Add(1)
			defer running.Add(-1)
			for old := atOnce.Load(); n > old && !atOnce.CompareAndSwap(old, n); old = atOnce.Load() {
			}
			select {
			case <-release:
			case <-ctx.Done():
			}
			return ctx.Err()
		}
		var inboxes []*inbox.Inbox
		for i := range 2 {
			var specs []*inbox.HandlerSpec
			for j := range 10 {
				var group []handler.Option
				if j%2 == 0 {
					group = append(group, handler.TxGroup(5))
				}
				specs = append(specs, inboxtest.Tx(fmt.Sprint("h", i, "-", j), hold, group...))
			}
			ib := inboxtest.New(t, db, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
				o.TablePrefix = fmt.Sprint("p", i, "_")
				o.Processor.StatementTimeout = 2 * time.Second
				o.Processor.StopBudget = soon
			}), inboxtest.Handlers(specs...))
			inboxtest.Accept(t, ib, "1")
			inboxtest.Start(t, ib)
			inboxes = append(inboxes, ib)
		}
		inboxtest.Eventually(t, func() bool { return running.Load() == most }, "as many run as may")
		pause(t, 3*time.Second) // longer than a statement may take
		require.EqualValues(t, most, atOnce.Load())
		for _, ib := range inboxes {
			require.Empty(t, ib.Health().Processor.Conditions, "nothing waits for a connection")
			inboxtest.Accept(t, ib, "2")
		}
		pool, err := db.DB()
		require.NoError(t, err)
		pool.SetMaxOpenConns(size + 2)
		inboxtest.Accept(t, inboxes[0], "3") // for the next transaction that asks
		close(release)
		for _, ib := range inboxes {
			inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all are completed")
			require.Zero(t, ib.Counters().Failed)
		}
	})
}

// Contract 5.8: what waits for a connection is released at a stop, and is no failure of the database.
func TestStopReleasesMessagesWaitingForAConnection(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		var running atomic.Int64
		ib := inboxtest.New(t, limited(t, d, 2), inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.StopBudget = soon
		}), inboxtest.Handlers(inboxtest.Tx("h", func(ctx context.Context, _ *gorm.DB, _ inboxtest.Bytes) error {
			running.Add(1)
			<-ctx.Done()
			return ctx.Err()
		})))
		inboxtest.Accept(t, ib, "1", "2", "3")
		require.NoError(t, ib.Start(context.Background()))
		inboxtest.Eventually(t, func() bool { return running.Load() == 1 }, "one runs")
		pause(t, 100*time.Millisecond)
		require.NoError(t, stop(t, ib, inboxtest.Patience))
		require.EqualValues(t, 1, running.Load())
		require.Empty(t, ib.Health().Processor.Conditions)
		for _, s := range inboxtest.Statuses(t, ib) {
			require.Nil(t, s.ProcessingStartedAt)
			require.Zero(t, s.ErrorCount+s.AbandonedCount)
			require.Nil(t, s.LastError)
		}
	})
}

// Contract 3.7, 5.14: a drain's claims count as stuck after a while, which includes the wait for the only
// connection. A message that cannot begin before that, or begins too late to end, is not charged.
func TestDrainChargesNoWaitForAConnection(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, limited(t, d, 2), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 3
			o.Processor.HandlerTimeout = 0
			o.Processor.StuckMessageThreshold = 3 * time.Second
		}), inboxtest.Handlers(inboxtest.Tx("h", func(ctx context.Context, _ *gorm.DB, _ inboxtest.Bytes) error {
			select {
			case <-time.After(1500 * time.Millisecond):
			case <-ctx.Done():
			}
			return ctx.Err()
		})))
		inboxtest.Accept(t, ib, "1", "2", "3")
		inboxtest.Eventually(t, func() bool {
			inboxtest.Process(t, ib)
			return inboxtest.AllCompleted(t, ib)
		}, "all are completed")
		for _, s := range inboxtest.Statuses(t, ib) {
			require.Zero(t, s.ErrorCount+s.AbandonedCount)
			require.Nil(t, s.LastError)
		}
	})
}
