package apptests

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/fx"
	"go.uber.org/zap/zaptest"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// fakeBank fails as long as it is closed.
type fakeBank struct {
	mu      sync.Mutex
	closed  bool
	charged []string
}

func (b *fakeBank) Charge(_ context.Context, _ string, _ int, key string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errors.New("the bank is closed")
	}
	b.charged = append(b.charged, key)
	return nil
}

//page:begin unit

func TestClosedBankIsAnError(t *testing.T) {
	charge := NewCharge(&fakeBank{closed: true})
	err := charge.Handle(t.Context(), handler.Message[OrderPlaced]{
		Metadata: handler.Metadata{ID: "o-1", Attempt: 1},
		Payload:  OrderPlaced{Customer: "ann", Total: 12},
	})
	require.ErrorContains(t, err, "charge ann: the bank is closed")
}

//page:end

//page:begin kit

func TestFailedChargeIsRetried(t *testing.T) {
	bank := &fakeBank{closed: true}
	kit := fxtest.NewWithFx(t,
		fx.Options(fx.Provide(NewCharge), fx.Supply(fx.Annotate(bank, fx.As(new(Bank))))),
		inbox.Channel("orders.events", inbox.On("order.placed", inbox.From[*Charge]("charge"))))

	kit.Accept(fxtest.JSON("orders.events", "order.placed", "o-1", OrderPlaced{Customer: "ann", Total: 12}))
	kit.Process()
	status := kit.RequireFailed("o-1", "charge")
	require.Contains(t, *status.LastError, "the bank is closed")

	bank.closed = false
	kit.Advance(time.Minute)
	kit.Process()
	kit.RequireCompleted("o-1", "charge")
	require.Equal(t, []string{"o-1"}, bank.charged)
}

//page:end

//page:begin app

func TestApplicationCharges(t *testing.T) {
	bank := &fakeBank{}
	db := fxtest.OpenDB(t) // in place of PostgreSQL
	var kit *fxtest.Kit
	fxtest.App(t,
		Application([]string{"localhost:9092"}), // which nothing connects to
		fx.Supply(zaptest.NewLogger(t), fx.Annotate(bank, fx.As(new(Bank))), fx.Annotate(db, fx.ResultTags(`name:"shop"`))),
		fxtest.Manual(),
		fxtest.Use(t, "shop", &kit))

	kit.Accept(fxtest.JSON("orders.events", "order.placed", "o-1", OrderPlaced{Customer: "ann", Total: 12}))
	kit.Process()
	kit.RequireCompleted("o-1", "charge")
}

//page:end

//page:begin kafka

func TestRecordIsCharged(t *testing.T) {
	kafka := kafkatest.Start(t, kafkatest.Topic("orders.events", 2))
	bank := &fakeBank{}
	db := testDatabase(t)
	var kit *fxtest.Kit
	fxtest.App(t,
		Application(kafka.Brokers()),
		fx.Supply(zaptest.NewLogger(t), fx.Annotate(bank, fx.As(new(Bank))), fx.Annotate(db, fx.ResultTags(`name:"shop"`))),
		fxtest.Use(t, "shop", &kit)) // without Manual everything runs

	require.NoError(t, kafka.Produce("orders.events", kafkatest.Record{
		Key:   []byte("ann"),
		Value: []byte(`{"Customer":"ann","Total":12}`),
		Headers: []kafkatest.Header{
			{Key: "MessageId", Value: []byte("o-1")},
			{Key: "MessageType", Value: []byte("order.placed")},
		},
	}))
	fxtest.WaitCompleted(t, kit.Inbox, 30*time.Second, "o-1", "charge")
}

//page:end

func TestRecordWithoutTypeIsKept(t *testing.T) {
	kafka := kafkatest.Start(t, kafkatest.Topic("orders.events", 2))
	var kit *fxtest.Kit
	fxtest.App(t,
		Application(kafka.Brokers()),
		fx.Supply(fx.Annotate(&fakeBank{}, fx.As(new(Bank))), fx.Annotate(fxtest.OpenDB(t), fx.ResultTags(`name:"shop"`))),
		fxtest.Use(t, "shop", &kit))
	require.NoError(t, kafka.Produce("orders.events",
		kafkatest.Record{Value: []byte("{}"), Headers: []kafkatest.Header{{Key: "MessageId", Value: []byte("o-1")}}},
		kafkatest.Record{Value: []byte(`{"Customer":"ann"}`), Headers: []kafkatest.Header{
			{Key: "MessageId", Value: []byte("o-2")}, {Key: "MessageType", Value: []byte("order.placed")},
		}}))
	require.Contains(t, fxtest.WaitRejected(t, kit.Inbox, 30*time.Second, "orders.events").Reason, "type")
	require.Equal(t, "order.placed", fxtest.WaitAccepted(t, kit.Inbox, 30*time.Second, "o-2").Type)
}

// testDatabase is a new one, of the application's kind.
var testDatabase = testenv.Postgres

func TestProductionIsWired(t *testing.T) {
	require.NoError(t, fx.ValidateApp(Application([]string{"localhost:9092"}), Production(&fakeBank{})))
}
