package schemaregistry_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/kafkapublisher"
	"github.com/gorm-inbox/inbox/models"
)

const topic = "orders.events"

// collect returns a handler of a type that sends the payloads it gets.
func collect[T any](key string, c handler.Codec[T], to chan<- T) *inbox.HandlerSpec {
	return inbox.Func(key, func(_ context.Context, m handler.Message[T]) error {
		to <- m.Payload
		return nil
	}, handler.WithCodec(c))
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case payload := <-from:
		return payload
	case <-time.After(testenv.Patience):
		require.FailNow(t, "no handler was called")
		panic("unreachable")
	}
}

func start(t *testing.T, opts ...inbox.Option) *inbox.Inbox {
	t.Helper()
	ib, err := inbox.New("orders", fxtest.OpenDB(t), append(opts,
		inbox.Configure(func(o *inbox.Options) { o.Migrate = true }))...)
	require.NoError(t, err)
	require.NoError(t, ib.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, ib.Stop(context.WithoutCancel(t.Context()))) })
	return ib
}

// consumes is a channel whose records' types are those of their schemas.
func consumes(
	kafka *kafkatest.Kafka, g *rig, decoder envelope.DecoderConfig, opts ...inbox.ChannelOption,
) inbox.Option {
	decoder.TypeOf = g.TypeOf
	return inbox.Channel(topic, append(opts, inbox.Kafka(kafkaconsumer.Config{Brokers: kafka.Brokers(),
		Topics: []string{topic}, GroupID: "fulfilment", Decoder: decoder}))...)
}

func TestWhatAnOutgoingChannelEncodesAnotherDecodes(t *testing.T) {
	kafka, g := kafkatest.Start(t, kafkatest.Topic(topic, 1)), newRig(t)
	placed := newAvro[orderV1](t, g, placedV1)
	later := newAvro[orderV2](t, g, placedV2)
	hat := newProtobuf[*wrapperspb.StringValue](t, g, wrappers)
	orders, hats := make(chan orderV2, 1), make(chan *wrapperspb.StringValue, 1)
	ib := start(t,
		inbox.Outgoing("order-events",
			inbox.ToKafka(kafkapublisher.Config{Brokers: kafka.Brokers(), Topic: topic, Format: kafkapublisher.Headers}),
			inbox.Publishes("placed", func(o orderV1) string { return o.ID }, placed),
			inbox.Publishes("hat", (*wrapperspb.StringValue).GetValue, hat)),
		consumes(kafka, g, envelope.DecoderConfig{},
			inbox.On("shop.OrderPlaced", collect("fulfil-order", later, orders)),
			inbox.On("google.protobuf.StringValue", collect("count-hats", hat, hats))))
	_, err := ib.Publish(t.Context(), orderV1{"o-1"}, wrapperspb.String("bowler"))
	require.NoError(t, err)
	require.Equal(t, orderV2{"o-1", 1}, receive(t, orders))
	require.Equal(t, "bowler", receive(t, hats).GetValue())
}

// Contract 4.5, 7.4, 11.5.
func TestRecordsWaitForTheRegistryAndAreNotRejected(t *testing.T) {
	kafka, g := kafkatest.Start(t, kafkatest.Topic(topic, 1)), newRig(t)
	c := newAvro[orderV2](t, g, placedV2)
	first, second := framed(g.register(t, "v1", sr.Schema{Schema: placedV1}), "\x06o-1"), encode(t, c, orderV2{"o-2", 7})
	_, err := g.TypeOf(envelope.Record{Value: first})
	require.NoError(t, err)
	g.answers(hangUp) // the first record's schema is known, the second's is not
	orders := make(chan orderV2, 2)
	ib := start(t, consumes(kafka, g, envelope.DecoderConfig{ID: envelope.KafkaCoordinates()},
		inbox.On("shop.OrderPlaced", collect("fulfil-order", c, orders))))
	require.NoError(t, kafka.Produce(topic, kafkatest.Record{Value: first}, kafkatest.Record{Value: second}))

	require.Equal(t, orderV2{"o-1", 1}, receive(t, orders))
	require.Eventually(t, func() bool { return kafka.Committed("fulfilment", topic)[0] == 1 }, testenv.Patience,
		5*time.Millisecond, "the offset of what was accepted is committed")
	require.Eventually(t, func() bool {
		g.clock.Advance(time.Second)
		for _, reason := range ib.Health().Reasons {
			if strings.Contains(reason.Detail, "decode the record at offset 1: ") &&
				strings.Contains(reason.Detail, "temporarily unavailable") {
				return true
			}
		}
		return false
	}, testenv.Patience, 5*time.Millisecond, "health names the record and why it waits")
	require.Zero(t, ib.Counters().Rejected)
	g.recovers()
	g.clock.Advance(time.Second)
	require.Equal(t, orderV2{"o-2", 7}, receive(t, orders))
	require.Zero(t, ib.Counters().Rejected)
	require.Eventually(t, func() bool { return len(ib.Health().Reasons) == 0 }, testenv.Patience, 5*time.Millisecond)
}

// Contract 7.4.
func TestRejectedRecordOfAnUnknownSchemaIsAcceptedOnceItIsKnown(t *testing.T) {
	kafka, g := kafkatest.Start(t, kafkatest.Topic(topic, 1)), newRig(t)
	c := newAvro[orderV1](t, g, placedV1)
	orders := make(chan orderV1, 1)
	ib := start(t, consumes(kafka, g, envelope.DecoderConfig{ID: envelope.KafkaCoordinates()},
		inbox.On("shop.OrderPlaced", collect("fulfil-order", c, orders))))
	require.NoError(t, kafka.Produce(topic, kafkatest.Record{Value: framed(1, "\x06o-1")}))
	require.Eventually(t, func() bool {
		g.clock.Advance(time.Second)
		return ib.Counters().Rejected == 1
	}, testenv.Patience, 5*time.Millisecond)
	row := fxtest.WaitRejected(t, ib, testenv.Patience, topic)
	require.Contains(t, row.Reason, "schema 1: the registry does not know the schema: ")

	g.register(t, "orders-value", sr.Schema{Schema: placedV1})
	g.answers(hangUp)
	g.clock.Advance(time.Second)
	_, err := ib.AcceptRejected(t.Context(), row.ID)
	require.ErrorIs(t, err, envelope.ErrUnavailable)
	var kept models.RejectedMessage
	require.NoError(t, ib.DB().Clauses(ib.Tables()).Take(&kept).Error)
	require.Equal(t, row.Reason, kept.Reason, "an outage is no reason to keep")
	g.recovers()
	g.clock.Advance(time.Second)
	_, err = ib.AcceptRejected(t.Context(), row.ID)
	require.NoError(t, err)
	require.Equal(t, orderV1{"o-1"}, receive(t, orders))
}

// Contract 5.7.
func TestOutageOfTheRegistryChargesNoAttempt(t *testing.T) {
	g := newRig(t)
	c := newAvro[orderV1](t, g, placedV1)
	content := encode(t, c, orderV1{"o-1"})
	orders := make(chan orderV1, 1)
	kit := fxtest.New(t, inbox.Channel("orders", inbox.On("order.placed", collect("fulfil-order", c, orders))))
	g.answers(hangUp)
	kit.Accept(handler.RawMessage{Channel: "orders", Type: "order.placed", ID: "o-1", Content: content})
	for range 20 { // MaxRetries is 5
		kit.Process()
		kit.Advance(time.Minute)
		g.clock.Advance(time.Minute)
	}
	require.Zero(t, kit.RequirePending("o-1", "fulfil-order").ErrorCount)
	g.recovers()
	kit.Process()
	kit.RequireCompleted("o-1", "fulfil-order")
	require.Equal(t, orderV1{"o-1"}, receive(t, orders))
}
