package waiting

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
)

func nothing(context.Context, handler.Message[Order]) error { return nil }

// Contract 4.8.
func TestEachHandlerRunsAtItsTime(t *testing.T) {
	kit := fxtest.New(t, orders(nothing, nothing))
	now := time.Now()
	kit.Clock.Set(now)
	require.NoError(t, remind(t.Context(), kit.Inbox, Order{ID: "o-1"}, now.AddDate(0, 0, 3)))
	require.Zero(t, kit.Process())
	kit.Advance(3 * 24 * time.Hour)
	kit.Process()
	kit.RequireCompleted("remind-o-1", "remind-customer")
	kit.RequirePending("remind-o-1", "ask-for-review")
	kit.ProcessAll() // moves the clock on
	kit.RequireCompleted("remind-o-1", "ask-for-review")
	require.False(t, kit.Now().Before(now.AddDate(0, 0, 14)))
}

// Contract 4.8.
func TestRecordWaitsForTheTimeOfItsHeader(t *testing.T) {
	kafka := kafkatest.Start(t, kafkatest.Topic("orders.events", 1))
	cfg := byHeader
	cfg.Brokers, cfg.Topics, cfg.GroupID = kafka.Brokers(), []string{"orders.events"}, "reminders"
	ran := make(chan time.Time, 1)
	ib, err := inbox.New("orders", fxtest.OpenDB(t), inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
		inbox.Channel("orders.events", inbox.Kafka(cfg), inbox.On("order.remind", inbox.Func("remind-customer",
			func(context.Context, handler.Message[Order]) error {
				ran <- time.Now()
				return nil
			}))))
	require.NoError(t, err)
	require.NoError(t, ib.Start(t.Context()))
	defer func() { require.NoError(t, ib.Stop(context.WithoutCancel(t.Context()))) }()
	at := time.Now().Add(2 * time.Second).Truncate(time.Millisecond)
	require.NoError(t, kafka.Produce("orders.events", kafkatest.Record{Value: []byte(`{}`), Headers: []kafkatest.Header{
		{Key: "MessageId", Value: []byte("1")}, {Key: "MessageType", Value: []byte("order.remind")},
		{Key: "not-before", Value: []byte(strconv.FormatInt(at.UnixMilli(), 10))}}}))
	fxtest.WaitCompleted(t, ib, 30*time.Second, "1", "remind-customer")
	require.False(t, (<-ran).Before(at))
}
