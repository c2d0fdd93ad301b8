package acceptor_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

func TestAcceptTxIsPartOfTheCallersTransaction(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		inboxtest.Exec(t, d.DB, "CREATE TABLE orders(id varchar(100) primary key)")
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("a")))
		count := func(table string) (n int64) {
			require.NoError(t, d.DB.Table(table).Count(&n).Error)
			return n
		}
		accept := func(id string, end error) error {
			return d.DB.Transaction(func(tx *gorm.DB) error {
				require.NoError(t, tx.Exec("INSERT INTO orders VALUES (?)", id).Error)
				receipt, err := ib.AcceptTx(context.Background(), tx, inboxtest.Message(id))
				require.NoError(t, err)
				require.Equal(t, []acceptor.Result{{MessageID: id, Outcome: handler.OutcomeAccepted, Handlers: 1}}, receipt.Results)
				return end
			})
		}
		boom := errors.New("boom")
		require.ErrorIs(t, accept("1", boom), boom)
		require.Zero(t, count("orders"))
		require.Zero(t, inboxtest.CountMessages(t, ib), "rolled back with the order")

		require.NoError(t, accept("1", nil))
		require.EqualValues(t, 1, count("orders"))
		require.Equal(t, 1, inboxtest.CountMessages(t, ib), "committed with the order")
		require.Zero(t, ib.Counters().Accepted, "counted by Wake, after the commit")
	})
}

func TestNotifyAfterCommitRunsTheHandlerImmediately(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := make(chan string, 10)
		accepted := atomic.Int64{}
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = time.Hour
		}),
			inboxtest.Handlers(inboxtest.Do("a", func(_ context.Context, m inboxtest.Bytes) error { ran <- m.ID; return nil })),
			inbox.Configure(func(o *inbox.Options) { o.Hooks = inboxHooks(&accepted) }))
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "0")
		require.Equal(t, "0", inboxtest.Receive(t, ran, "the first message"))

		var receipt *acceptor.Receipt
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) (err error) {
			receipt, err = ib.AcceptTx(context.Background(), tx, inboxtest.Message("1"))
			return err
		}))
		receipt.Wake()
		require.Equal(t, "1", inboxtest.Receive(t, ran, "the message accepted in a transaction"))
		receipt.Wake()
		require.EqualValues(t, 2, ib.Counters().Accepted, "waking twice counts once")
		require.EqualValues(t, 2, accepted.Load())
	})
}

func TestAcceptTxFailsBeforeSQLIfAnyMessageIsInvalid(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("a")))
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			_, err := ib.AcceptTx(context.Background(), tx, inboxtest.Message("1"), inboxtest.Message(""))
			var invalid *acceptor.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, "missing_id", invalid.Reason)
			// The transaction is untouched: it can continue and commit.
			_, err = ib.AcceptTx(context.Background(), tx, inboxtest.Message("2"))
			return err
		}))
		require.Equal(t, 1, inboxtest.CountMessages(t, ib))
	})
}

func TestAcceptTxReportsAnIDConflict(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("a")))
		inboxtest.Accept(t, ib, "1")
		err := d.DB.Transaction(func(tx *gorm.DB) error {
			m := inboxtest.Message("1")
			m.Source = "elsewhere"
			_, err := ib.AcceptTx(context.Background(), tx, inboxtest.Message("2"), m)
			return err
		})
		var invalid *acceptor.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "id_conflict", invalid.Reason)
		require.Equal(t, 1, inboxtest.CountMessages(t, ib))
	})
}

func TestAcceptTxNeedsATransaction(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("a")))
		_, err := ib.AcceptTx(context.Background(), nil, inboxtest.Message("1"))
		require.ErrorContains(t, err, "tx is nil")
		_, err = ib.AcceptTx(context.Background(), d.DB, inboxtest.Message("1"))
		require.ErrorContains(t, err, "no open transaction")
	})
}
