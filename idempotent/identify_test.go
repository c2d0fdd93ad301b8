package idempotent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
)

type identified struct{ id, kind string }

func (m identified) MessageID() string   { return m.id }
func (m identified) MessageType() string { return m.kind }

// own embeds a message of the inbox and has an ID of its own.
type own struct{ handler.Message[order] }

func (o own) MessageID() string { return "own " + o.ID }

type embedding struct{ handler.Message[order] }

// keyOf wraps a handler of T and returns the run by which its message is remembered.
func keyOf[T any](t *testing.T, m T, opts ...idempotent.Option) (idempotent.Run, error) {
	t.Helper()
	var got idempotent.Run
	h, err := idempotent.Wrap(storeFunc(func(_ context.Context, run idempotent.Run, _ func(context.Context) error) (bool,
		error) {
		got = run
		return true, nil
	}), "billing", nothing[T], opts...)
	require.NoError(t, err)
	return got, h(t.Context(), m)
}

func headers(pairs ...string) (hs []handler.Header) {
	for i := 0; i < len(pairs); i += 2 {
		hs = append(hs, handler.Header{Key: pairs[i], Value: []byte(pairs[i+1])})
	}
	return hs
}

func TestIDIsFoundInMessagesOfEachKind(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	record := envelope.Record{Topic: "orders", Partition: 3, Offset: 42, Timestamp: at, Key: []byte("k7"),
		Value:   []byte("v"),
		Headers: headers("MessageId", "h1", "CorrelationId", "c9")}
	properties := handler.Properties{Channel: "shop", Headers: record.Headers,
		Kafka: &handler.KafkaCoordinates{Topic: "orders", Partition: 3, Offset: 42, Timestamp: at, Key: []byte("k7")}}
	msg := handler.Message[order]{Metadata: handler.Metadata{ID: "m1", Type: "order.placed", Properties: properties},
		Payload: order{Number: "n5"}}
	raw := handler.RawMessage{Channel: "shop", ID: "m1", Type: "order.placed", Content: []byte("v"),
		Properties: properties}
	foreign := struct{ topic, key string }{"orders", "k7"}
	ofForeign := idempotent.RecordBy(func(m struct{ topic, key string }) envelope.Record {
		return envelope.Record{Topic: m.topic, Key: []byte(m.key), Headers: headers("MessageId", "h1")}
	})
	binary := envelope.Record{Topic: "orders", Headers: headers("ce_specversion", "1.0", "ce_id", "e1", "ce_type", "t",
		"ce_source", "/s")}
	structured := envelope.Record{Headers: headers("content-type", "application/cloudevents+json"),
		Value: []byte(`{"specversion":"1.0","id":"e2","type":"t","source":"/s"}`)}
	event := handler.Message[order]{Metadata: handler.Metadata{ID: "m1",
		Properties: handler.Properties{Attributes: map[string]string{"id": "e3"}}}}
	from := idempotent.IDFrom
	whole := envelope.Func(func(in envelope.IDInput) (string, error) {
		return in.Record.Topic + string(in.Record.Value), nil
	})

	for name, c := range map[string]struct {
		find func(t *testing.T) (idempotent.Run, error)
		want string
		typ  string
	}{
		"message":                       {by(msg), "m1", "order.placed"},
		"pointer to a message":          {by(&msg), "m1", "order.placed"},
		"message as any":                {by(any(msg)), "m1", "order.placed"},
		"what embeds a message":         {by(embedding{msg}), "m1", "order.placed"},
		"what embeds it and knows":      {by(own{msg}), "own m1", "order.placed"},
		"delivery":                      {by(handler.Delivery{Metadata: msg.Metadata}), "m1", "order.placed"},
		"raw message":                   {by(raw), "m1", "order.placed"},
		"pointer to a raw message":      {by(&raw), "m1", "order.placed"},
		"own type":                      {by(identified{"i1", "t1"}), "i1", "t1"},
		"own type as interface":         {by(idempotent.Identified(identified{"i1", "t1"})), "i1", "t1"},
		"record":                        {by(record), "h1", ""},
		"pointer to a record":           {by(&record), "h1", ""},
		"another library's message":     {by(foreign, ofForeign), "h1", ""},
		"another library's, Kafka key":  {by(foreign, ofForeign, from(envelope.KafkaKey())), "orders:k7", ""},
		"binary event":                  {by(binary), "e1", ""},
		"structured event":              {by(structured), "e2", ""},
		"event in a message":            {by(event, from(envelope.CloudEventsID())), "e3", ""},
		"event in a message by default": {by(event, from(envelope.IDStrategy{})), "e3", ""},
		"header of a message":           {by(msg, from(envelope.HeaderID())), "h1", "order.placed"},
		"header of a raw message":       {by(raw, from(envelope.HeaderID())), "h1", "order.placed"},
		"Kafka key of a message":        {by(msg, from(envelope.KafkaKey())), "shop:k7", "order.placed"},
		"Kafka key of a raw message":    {by(raw, from(envelope.KafkaKey())), "shop:k7", "order.placed"},
		"Kafka key of a record":         {by(record, from(envelope.KafkaKey())), "orders:k7", ""},
		"Kafka key with the channel": {by(record, from(envelope.KafkaKey()),
			idempotent.Configure(func(o *idempotent.Options) { o.Channel = "c" })), "c:k7", ""},
		"correlation ID with channel": {by(msg, from(envelope.CorrelationID("")),
			idempotent.Configure(func(o *idempotent.Options) { o.Channel = "c" })), "c:c9",
			"order.placed"},
		"coordinates of a message": {by(msg, from(envelope.KafkaCoordinates())), "orders/3/42@1700000000000",
			"order.placed"},
		"function of a record":       {by(record, from(whole)), "ordersv", ""},
		"source and id of a record":  {by(structured, from(envelope.SourceAndID())), "/s e2", ""},
		"function of a raw message":  {by(raw, from(whole)), "ordersv", "order.placed"},
		"composite of a message":     {by(msg, idempotent.CompositeID("")), "billing:c9", "order.placed"},
		"composite of a raw message": {by(raw, idempotent.CompositeID(""), idempotent.LegacyKeys("bills")), "billing:c9", "order.placed"},
		"composite on any channel": {by(record, idempotent.CompositeID("correlationid"),
			idempotent.Configure(func(o *idempotent.Options) { o.Channel = "c" })),
			"billing:c9", ""},
		"composite, then overridden": {by(record, idempotent.CompositeID(""), from(envelope.CorrelationID("")),
			idempotent.Configure(func(o *idempotent.Options) { o.Channel = "c" })), "c:c9", ""},
		"payload's field": {by(msg, idempotent.KeyBy(func(m handler.Message[order]) (string, error) {
			return m.Payload.Number, nil
		})),
			"n5", "order.placed"},
		"payload alone": {by(order{"n5"}, idempotent.KeyBy(func(o order) (string, error) {
			return o.Number, nil
		})), "n5", ""},
		"payload's empty field falls back": {by(msg, idempotent.KeyBy(func(handler.Message[order]) (string,
			error) {
			return "", nil
		})),
			"m1", "order.placed"},
		"payload's missing ID falls back": {by(msg, idempotent.KeyBy(func(handler.Message[order]) (string, error) {
			return "", idempotent.ErrMissingID
		})),
			"m1", "order.placed"},
		"it falls back to the strategy": {by(msg, from(envelope.KafkaKey()),
			idempotent.KeyBy(func(handler.Message[order]) (string, error) { return "", nil })),
			"shop:k7", "order.placed"},
	} {
		t.Run(name, func(t *testing.T) {
			run, err := c.find(t)
			require.NoError(t, err)
			require.Equal(t, [2]string{c.want, "billing"}, [2]string{run.Key.MessageID, run.Key.HandlerKey})
			require.Equal(t, c.typ, run.MessageType)
		})
	}
}

func by[T any](m T, opts ...idempotent.Option) func(t *testing.T) (idempotent.Run, error) {
	return func(t *testing.T) (idempotent.Run, error) { return keyOf(t, m, opts...) }
}

func TestMessagesWithoutUsableIDAreRefused(t *testing.T) {
	selectorFailed := errors.New("the payload is odd")
	selector := func(id string, err error) idempotent.Option {
		return idempotent.KeyBy(func(order) (string, error) { return id, err })
	}
	batch := envelope.Record{Headers: headers("content-type", "application/cloudevents-batch+json"),
		Value: []byte(`[{"specversion":"1.0","id":"a","type":"t","source":"/s"},{"specversion":"1.0","id":"b","type":"t","source":"/s"}]`)}
	noPlace := idempotent.RecordBy(func(o order) envelope.Record { return envelope.Record{Value: []byte(o.Number)} })
	for name, c := range map[string]struct {
		find func(t *testing.T) (idempotent.Run, error)
		want error
	}{
		"message":                            {by(message{}), idempotent.ErrMissingID},
		"raw message":                        {by(handler.RawMessage{}), idempotent.ErrMissingID},
		"raw message whose decoder says why": {by(handler.RawMessage{IDErr: envelope.ErrSharedID}), envelope.ErrSharedID},
		"own type":                           {by(identified{}), idempotent.ErrMissingID},
		"record":                             {by(envelope.Record{}), idempotent.ErrMissingID},
		"any":                                {by(any("text")), idempotent.ErrMissingID},
		"own type has no headers": {by(any(identified{"i1", ""}), idempotent.IDFrom(envelope.HeaderID())),
			idempotent.ErrMissingID},
		"no Kafka key": {by(message{}, idempotent.IDFrom(envelope.KafkaKey())),
			idempotent.ErrMissingID},
		"no coordinates": {by(withID("m1"), idempotent.IDFrom(envelope.KafkaCoordinates())),
			idempotent.ErrMissingID},
		"no correlation ID":     {by(withID("m1"), idempotent.CompositeID("")), idempotent.ErrMissingID},
		"empty payload's field": {by(order{}, selector("", nil)), idempotent.ErrMissingID},
		"selector's error":      {by(order{}, selector("n5", selectorFailed)), selectorFailed},
		"selector's long ID": {by(order{}, selector(strings.Repeat("n", 201), nil)),
			&envelope.IDTooLongError{Length: 201}},
		"not text":        {by(withID("\xff")), envelope.ErrBadID},
		"batch of events": {by(batch), envelope.ErrSharedID},
		"malformed event": {by(envelope.Record{Headers: headers("ce_specversion", "2.0")}),
			envelope.ErrMalformed},
		"ID that a batch's events share": {by(handler.RawMessage{ID: "h1", IDErr: envelope.ErrSharedID}),
			envelope.ErrSharedID},
		"pointer to one of these": {by(&handler.RawMessage{ID: "h1", IDErr: envelope.ErrSharedID},
			idempotent.Configure(func(o *idempotent.Options) { o.AllowMissingID = true })), envelope.ErrSharedID},
		"ID that its decoder calls missing": {by(handler.RawMessage{ID: "h1", IDErr: envelope.ErrMissingID}),
			idempotent.ErrMissingID},
		"record of no place": {by(envelope.Record{Value: []byte("v")},
			idempotent.IDFrom(envelope.KafkaCoordinates())), idempotent.ErrMissingID},
		"other library's record of no place": {by(order{"n5"}, noPlace, idempotent.IDFrom(envelope.KafkaCoordinates())),
			idempotent.ErrMissingID},
	} {
		t.Run(name, func(t *testing.T) {
			run, err := c.find(t)
			var idErr *idempotent.IDError
			require.ErrorAs(t, err, &idErr)
			require.Equal(t, "billing", idErr.HandlerKey)
			var tooLong *envelope.IDTooLongError
			if errors.As(c.want, &tooLong) {
				require.ErrorAs(t, err, &tooLong)
			} else {
				require.ErrorIs(t, err, c.want)
			}
			require.Zero(t, run, "the store was not asked")
		})
	}
}

func TestBatchOfEventsIsOneMessageWithARecordID(t *testing.T) {
	batch := envelope.Record{Topic: "orders", Key: []byte("k"), Headers: headers("content-type",
		"application/cloudevents-batch+json", "MessageId", "h1"), Value: []byte("not read")}
	run, err := keyOf(t, batch, idempotent.IDFrom(envelope.HeaderID()))
	require.NoError(t, err)
	require.Equal(t, "h1", run.Key.MessageID)
}

func TestSelectorPanicPropagatesToTheCaller(t *testing.T) {
	r := receiver(t, memory(t), idempotent.KeyBy(func(order) (string, error) { panic("odd") }))
	h := handle(t, r, "billing", nothing[order])
	require.PanicsWithValue(t, "odd", func() { _ = h(t.Context(), order{}) })
}

// Each event is acknowledged only if it was handled: with an ID shared by several, all but one
// would count as duplicates (contract 4.4).
func TestEventsOfABatchAreHandledOrRefused(t *testing.T) {
	event := func(id string) string {
		return `{"specversion":"1.0","id":"` + id + `","type":"t","source":"/s","data":"` + id + `"}`
	}
	batch := envelope.Record{Topic: "orders", Key: []byte("k"), Value: []byte("[" + event("e1") + "," + event("e2") + "]"),
		Headers: headers("content-type", "application/cloudevents-batch+json", "MessageId", "h1", "CorrelationId", "c1")}
	whole := envelope.Func(func(in envelope.IDInput) (string, error) { return in.Record.Topic, nil })
	ofEvent := envelope.Func(func(in envelope.IDInput) (string, error) {
		return in.Attributes["id"] + string(in.Data), nil
	})
	for name, c := range map[string]struct {
		decoder envelope.IDStrategy
		opts    []idempotent.Option
		handled int
	}{
		"events' own IDs": {handled: 2},
		"events' own IDs, asked again": {opts: []idempotent.Option{idempotent.IDFrom(envelope.CloudEventsID())},
			handled: 2},
		"header, by the decoder":             {decoder: envelope.HeaderID()},
		"correlation ID, by the decoder":     {decoder: envelope.CorrelationID("")},
		"Kafka key, by the decoder":          {decoder: envelope.KafkaKey()},
		"coordinates, by the decoder":        {decoder: envelope.KafkaCoordinates()},
		"function, by the decoder":           {decoder: whole},
		"function of events, by the decoder": {decoder: ofEvent, handled: 2},
		"source and id, by the decoder":      {decoder: envelope.SourceAndID(), handled: 2},
		"source and id":                      {opts: []idempotent.Option{idempotent.IDFrom(envelope.SourceAndID())}, handled: 2},
		"header":                             {opts: []idempotent.Option{idempotent.IDFrom(envelope.HeaderID())}},
		"composite":                          {opts: []idempotent.Option{idempotent.CompositeID("")}},
		"Kafka key":                          {opts: []idempotent.Option{idempotent.IDFrom(envelope.KafkaKey())}},
		"coordinates":                        {opts: []idempotent.Option{idempotent.IDFrom(envelope.KafkaCoordinates())}},
		"function":                           {opts: []idempotent.Option{idempotent.IDFrom(whole)}},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := envelope.NewDecoder(envelope.DecoderConfig{ID: c.decoder}, nil)
			require.NoError(t, err)
			r, raws, deliveries := receiver(t, memory(t), idempotent.Configure(func(o *idempotent.Options) {
				o.AllowMissingID = true
			})), []string(nil), []string(nil)
			raw := handle(t, r, "raw", func(_ context.Context, m handler.RawMessage) error {
				raws = append(raws, string(m.Content))
				return nil
			}, c.opts...)
			delivered := handle(t, r, "delivered", func(_ context.Context, m any) error {
				deliveries = append(deliveries, string(m.(handler.Delivery).Content))
				return nil
			}, c.opts...)
			acknowledged := 0
			messages := d.Decode("shop", batch).Messages
			require.Len(t, messages, 2)
			for _, m := range messages {
				if raw(t.Context(), m) == nil {
					acknowledged++
				}
				if m.IDErr == nil { // only such events are delivered
					_ = delivered(t.Context(), handler.Delivery{Metadata: handler.Metadata{ID: m.ID, Properties: m.Properties},
						Content: m.Content})
				}
			}
			require.Len(t, raws, c.handled)
			require.Len(t, deliveries, c.handled)
			require.Equal(t, c.handled, acknowledged)
			require.EqualValues(t, 0, r.Counts().DuplicateSkipped)
		})
	}
}

// For an interface type the ID strategy depends on each message.
func TestRecordFunctionRefusesMessagesWithoutRecord(t *testing.T) {
	whole := envelope.Func(func(in envelope.IDInput) (string, error) { return "id of " + string(in.Data), nil })
	r := receiver(t, memory(t), idempotent.IDFrom(whole), idempotent.Configure(func(o *idempotent.Options) {
		o.AllowMissingID = true
	}))
	h := handle(t, r, "billing", func(context.Context, any) error { panic("called") })
	for _, id := range []string{"1", "2"} {
		var idErr *idempotent.IDError
		require.ErrorAs(t, h(t.Context(), handler.Delivery{Metadata: handler.Metadata{ID: id}, Content: []byte(id)}), &idErr)
		require.ErrorContains(t, idErr, "needs a record")
	}
	require.Equal(t, idempotent.Counts{InvalidKey: 2}, r.Counts())
}
