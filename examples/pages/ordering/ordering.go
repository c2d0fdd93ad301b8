// Package ordering is the code of docs/ordering.md.
package ordering

import (
	"context"
	"strings"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// AccountChanged is a payload.
type AccountChanged struct{ Amount int }

type handle = func(ctx context.Context, m handler.Message[AccountChanged]) error

func byKafkaKey(apply, notify handle) inbox.Option {
	return inbox.Channel("accounts.events",
		//page:begin ordered
		inbox.On("account.changed",
			inbox.Func("apply-change", apply, handler.Ordered()), // one after the other per Kafka key
			inbox.Func("notify-owner", notify),                   // as they come
		),
		//page:end
	)
}

func bySource(apply handle) inbox.Option {
	return inbox.Channel("accounts.events", inbox.On("account.changed",
		//page:begin by
		inbox.Func("apply-change", apply, handler.OrderedBy(func(m handler.RawMessage) []byte {
			tenant, ok := m.Properties.Header("tenant")
			if !ok {
				return nil // no lane: it runs whenever it is due
			}
			return tenant
		})),
		//page:end
	))
}

func skipping(apply handle) inbox.Option {
	return inbox.Channel("accounts.events", inbox.On("account.changed",
		inbox.Func("apply-change", apply, handler.Ordered(), handler.SkipPoisoned()),
	))
}

// keyed gives a channel's records an ordering key that is not their Kafka key.
func keyed(brokers []string) inbox.ChannelOption {
	return inbox.Kafka(kafkaconsumer.Config{
		Brokers: brokers, Topics: []string{"accounts.events"}, GroupID: "accounts",
		Decoder: envelope.DecoderConfig{OrderingKey: func(r envelope.Record) []byte {
			account, _, _ := strings.Cut(string(r.Key), "/") // keys are account/transaction
			return []byte(account)
		}},
	})
}
