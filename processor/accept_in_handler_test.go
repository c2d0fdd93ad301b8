package processor_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// Contract 4.7: messages that a transactional handler accepts in its transaction are processed
// right after the commit, not at the next poll, which is an hour away.
func TestAcceptInAHandlerTransactionWakesTheProcessor(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		handled := make(chan string, 10)
		var ib *inbox.Inbox
		follow := func(ctx context.Context, tx *gorm.DB, id string) error {
			receipt, err := ib.AcceptTx(ctx, tx, handler.RawMessage{Channel: "c", Type: "next", ID: "after " + id})
			if err == nil && id == "wakes too early" {
				receipt.Wake()
			}
			return err
		}
		nested := func(ctx context.Context, tx *gorm.DB, id string) error {
			undone := tx.Transaction(func(tx *gorm.DB) error { return errors.Join(follow(ctx, tx, "undone"), errBoom) })
			require.ErrorIs(t, undone, errBoom)
			return tx.Transaction(func(tx *gorm.DB) error { return follow(ctx, tx, id) })
		}
		ib = inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = time.Hour
		}), inbox.Channel("c",
			inbox.On("tx", inbox.Tx("tx", func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				return follow(ctx, tx, m.ID)
			})),
			inbox.On("nested", inbox.Tx("nested", func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				return nested(ctx, tx, m.ID)
			})),
			inbox.On("group", inbox.Tx("group", func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				return follow(ctx, tx, m.ID)
			}, handler.TxGroup(3))),
			inbox.On("batch", inbox.TxBatch("batch", 3, func(ctx context.Context, tx *gorm.DB, batch []inboxtest.Bytes) error {
				var problems []error
				for _, m := range batch {
					problems = append(problems, follow(ctx, tx, m.ID))
				}
				return errors.Join(problems...)
			})),
			inbox.On("next", inbox.Func("next", func(_ context.Context, m inboxtest.Bytes) error {
				handled <- m.ID
				return nil
			}))))
		inboxtest.Start(t, ib)
		accept := func(typ string, ids ...string) {
			var messages []handler.RawMessage
			for _, id := range ids {
				messages = append(messages, handler.RawMessage{Channel: "c", Type: typ, ID: id})
			}
			_, err := ib.Accept(t.Context(), messages...)
			require.NoError(t, err)
			want, got := []string{}, []string{}
			for _, id := range ids {
				want, got = append(want, "after "+id), append(got,
					inboxtest.Receive(t, handled, "a message accepted in a handler's transaction"))
			}
			require.ElementsMatch(t, want, got)
		}
		accept("tx", "1")
		accept("tx", "wakes too early")
		accept("nested", "2")
		accept("group", "3", "4", "5")
		accept("batch", "6", "7", "8")
		require.EqualValues(t, 2*9, ib.Counters().Accepted, "each is counted once")
	})
}
