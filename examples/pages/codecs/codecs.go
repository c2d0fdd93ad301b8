// Package codecs is the code of docs/codecs.md.
package codecs

import (
	"context"
	_ "embed"

	"github.com/twmb/franz-go/pkg/sr"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/kafkapublisher"
	"github.com/gorm-inbox/inbox/schemaregistry"
)

//page:begin schema
//go:embed order_placed.avsc
var orderPlaced string

// OrderPlaced is written and read by order_placed.avsc.
type OrderPlaced struct {
	OrderID  string `avro:"order_id"`
	Quantity int    `avro:"quantity"`
}

//page:end

// Key is the key of the order.
func (o OrderPlaced) Key() string { return o.OrderID }

//go:embed order_shipped.proto
var orderShipped string

// OrderShipped stands for a type that protoc-gen-go has generated.
type OrderShipped = wrapperspb.StringValue

// codecs are those of the application.
type codecs struct {
	registry *schemaregistry.Registry
	placed   *schemaregistry.Avro[OrderPlaced]
	shipped  *schemaregistry.Protobuf[*OrderShipped]
}

func newCodecs(url, user, password string, logger *zap.Logger) (*codecs, error) {
	//page:begin registry
	client, err := sr.NewClient(sr.URLs(url), sr.BasicAuth(user, password))
	if err != nil {
		return nil, err
	}
	registry, err := schemaregistry.New(client, func(o *schemaregistry.Options) { o.Logger = logger })
	if err != nil {
		return nil, err
	}
	placed, err := schemaregistry.NewAvro[OrderPlaced](registry, schemaregistry.Schema{Text: orderPlaced,
		Subject: "orders.events-value"})
	if err != nil {
		return nil, err
	}
	//page:end
	//page:begin protobuf
	shipped, err := schemaregistry.NewProtobuf[*OrderShipped](registry, schemaregistry.Schema{Text: orderShipped})
	//page:end
	return &codecs{registry, placed, shipped}, err
}

type (
	reserve = func(ctx context.Context, tx *gorm.DB, m handler.Message[OrderPlaced]) error
	notify  = func(ctx context.Context, m handler.Message[*OrderShipped]) error
)

func (c *codecs) consume(brokers []string, reserveStock reserve, notifyCustomer notify) inbox.Option {
	registry, placed, shipped := c.registry, c.placed, c.shipped
	return options(
		//page:begin consume
		inbox.Channel("orders.events",
			inbox.Kafka(kafkaconsumer.Config{
				Brokers: brokers, Topics: []string{"orders.events"}, GroupID: "fulfilment",
				Decoder: envelope.DecoderConfig{TypeOf: registry.TypeOf},
			}),
			inbox.On("shop.OrderPlaced", inbox.Tx("reserve-stock", reserveStock, handler.WithCodec(placed))),
			inbox.On("google.protobuf.StringValue", inbox.Func("notify-customer", notifyCustomer, handler.WithCodec(shipped))),
		),
		//page:end
	)
}

func (c *codecs) publish(brokers []string) inbox.Option {
	placed := c.placed
	return options(
		//page:begin publish
		inbox.Outgoing("order-events",
			inbox.ToKafka(kafkapublisher.Config{Brokers: brokers, Topic: "orders.events", Source: "/shop"}),
			inbox.Publishes("shop.OrderPlaced", OrderPlaced.Key, placed),
		),
		//page:end
	)
}

func options(o inbox.Option) inbox.Option { return o }
