package acceptor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

func TestPollFindsMessageWithoutNotification(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := make(chan string, 1)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = 200 * time.Millisecond
		}), inboxtest.Handlers(
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error { ran <- m.ID; return nil })))
		inboxtest.Start(t, ib)
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			_, err := ib.AcceptTx(context.Background(), tx, inboxtest.Message("1"))
			return err
		}))
		require.Equal(t, "1", inboxtest.Receive(t, ran, "the message"))
	})
}
