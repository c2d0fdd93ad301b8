package outbox

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/outgoing"
)

// shop returns a kit whose handler publishes to the page's destination.
func shop(t *testing.T, to inbox.Option) *fxtest.Kit {
	confirm := &Confirm{}
	kit := fxtest.New(t, to, inbox.Channel("payments", inbox.On("order.paid", inbox.Tx("confirm", confirm.Handle))))
	confirm.inbox = func() *inbox.Inbox { return kit.Inbox }
	require.NoError(t, kit.DB.AutoMigrate(&Confirmation{}))
	kit.Accept(fxtest.JSON("payments", "order.paid", "1", OrderPaid{OrderID: "o-1"}))
	return kit
}

func TestHandlerPublishesWhatItCommits(t *testing.T) {
	kit := shop(t, toKafka([]string{"127.0.0.1:9092"}))
	kit.Process()
	left := kit.RequirePublished("order.confirmed", 1)
	require.JSONEq(t, `{"OrderID":"o-1"}`, string(left[0].Content))
	require.Equal(t, "o-1", string(left[0].Key))
}

func TestFunctionIsADestination(t *testing.T) {
	failures := 1
	kit := shop(t, toFunction(func(_ context.Context, m outgoing.Message) error {
		if failures--; failures == 0 {
			return errors.New("not now")
		}
		return nil
	}))
	kit.Process()
	kit.RequirePublished("order.confirmed", 0)
	kit.ProcessAll()
	kit.RequirePublished("order.confirmed", 1)
}
