package codecs

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
)

func TestBodiesGoThroughTheRegistry(t *testing.T) {
	fake := srfake.New()
	defer fake.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	_, _, err := fake.RegisterSchema("orders.events-value", sr.Schema{Schema: orderPlaced})
	require.NoError(t, err)
	_, _, err = fake.RegisterSchema("google.protobuf.StringValue", sr.Schema{Schema: orderShipped, Type: sr.TypeProtobuf})
	require.NoError(t, err)
	kafka := kafkatest.Start(t, kafkatest.Topic("orders.events", 1))
	c, err := newCodecs(fake.URL(), "shop", "secret", zap.NewNop())
	require.NoError(t, err)

	reserved, notified := make(chan OrderPlaced, 1), make(chan string, 1)
	ib, err := inbox.New("orders", fxtest.OpenDB(t), inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
		c.publish(kafka.Brokers()), c.consume(kafka.Brokers(),
			func(_ context.Context, _ *gorm.DB, m handler.Message[OrderPlaced]) error {
				reserved <- m.Payload
				return nil
			}, func(_ context.Context, m handler.Message[*OrderShipped]) error {
				notified <- m.Payload.GetValue()
				return nil
			}))
	require.NoError(t, err)
	require.NoError(t, ib.Start(t.Context()))
	defer func() { require.NoError(t, ib.Stop(context.WithoutCancel(t.Context()))) }()
	_, err = ib.Publish(t.Context(), OrderPlaced{OrderID: "o-1", Quantity: 2})
	require.NoError(t, err)
	shipped, _, err := c.shipped.Encode(wrapperspb.String("o-1"))
	require.NoError(t, err)
	require.NoError(t, kafka.Produce("orders.events", kafkatest.Record{Value: shipped,
		Headers: []kafkatest.Header{{Key: "MessageId", Value: []byte("s-1")}}}))

	const within = 30 * time.Second
	fxtest.WaitCompleted(t, ib, within, "s-1", "notify-customer")
	require.Equal(t, "o-1", <-notified)
	select {
	case order := <-reserved:
		require.Equal(t, OrderPlaced{OrderID: "o-1", Quantity: 2}, order)
	case <-time.After(within):
		require.FailNow(t, "the order has not come")
	}
}
