// Package choosing is the code of docs/modes.md.
package choosing

import (
	"context"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// Event is a payload.
type Event struct{ ID string }

type (
	plain         = func(ctx context.Context, m handler.Message[Event]) error
	transactional = func(ctx context.Context, tx *gorm.DB, m handler.Message[Event]) error
)

func from(topic string) inbox.ChannelOption {
	return inbox.Kafka(kafkaconsumer.Config{Brokers: []string{"localhost:9092"}, Topics: []string{topic},
		GroupID: "shop-" + topic})
}

func channels(sendMail, countView plain, book, mirror transactional) []inbox.Option {
	return []inbox.Option{
		//page:begin channels
		inbox.Channel("orders", from("orders"), // Inbox: nothing to declare
			inbox.On("order.placed", inbox.Tx("book-order", book), inbox.Func("send-mail", sendMail))),
		inbox.Channel("products", from("products"), inbox.Inline(),
			inbox.On("product.changed", inbox.Tx("mirror-product", mirror))),
		inbox.Channel("views", from("views"), inbox.Direct(),
			inbox.On("product.viewed", inbox.Func("count-view", countView))),
		//page:end
	}
}

func archive(store plain) []inbox.Option {
	return []inbox.Option{
		//page:begin any
		inbox.Channel("commands", inbox.OnAny(inbox.Func("archive-command", store))), // m.Type says which command it is
		//page:end
	}
}

//page:begin accept
func command(ctx context.Context, ib *inbox.Inbox, requestID string, e Event) error {
	m, err := inbox.JSON("commands", "order.cancel", requestID, e)
	if err != nil {
		return err
	}
	_, err = ib.Accept(ctx, m) // stored, with one status per handler, or known by its ID
	return err
}

//page:end

func required(countView plain) []inbox.Option {
	return []inbox.Option{
		//page:begin requirement
		inbox.Configure(func(o *inbox.Options) { o.ConsumeChannelInboxRequirement = inbox.RequirementFail }),
		inbox.Channel("views", from("views"), inbox.Direct(), inbox.AllowConsumeWithoutInbox(),
			inbox.On("product.viewed", inbox.Func("count-view", countView))),
		//page:end
	}
}
