package envelope_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
)

// TestRecordIDMatchesTheDecodersID proves that a receiver without a channel finds the
// same ID as the decoder of a channel.
func TestRecordIDMatchesTheDecodersID(t *testing.T) {
	with := func(value string, pairs ...string) envelope.Record {
		r := envelope.Record{Topic: "orders", Partition: 1, Offset: 7, Timestamp: time.UnixMilli(5), Key: []byte("k"),
			Value: []byte(value)}
		for i := 0; i < len(pairs); i += 2 {
			r.Headers = append(r.Headers, handler.Header{Key: pairs[i], Value: []byte(pairs[i+1])})
		}
		return r
	}
	const event = `{"specversion":"1.0","id":"e1","type":"t","source":"/s"}`
	records := map[string]envelope.Record{
		"plain":      with("v", "MessageId", "h1", "CorrelationId", "c1"),
		"Debezium":   with("v", "id", "d1"),
		"no ID":      with("v"),
		"binary":     with("v", "ce_specversion", "1.0", "ce_id", "b1", "ce_type", "t", "ce_source", "/s", "MessageId", "h1"),
		"structured": with(event, "content-type", "application/cloudevents+json"),
		"batch of 1": with("["+event+"]", "content-type", "application/cloudevents-batch+json"),
	}
	for name, r := range records {
		for _, strategy := range []envelope.IDStrategy{{}, envelope.CloudEventsID(), envelope.HeaderID(),
			envelope.HeaderID("x", "CORRELATIONID"), envelope.CorrelationID(""),
			envelope.KafkaKey(), envelope.KafkaCoordinates(), envelope.SourceAndID(),
			envelope.Func(func(in envelope.IDInput) (string, error) {
				return in.Attributes["id"] + string(in.Data), nil
			})} {
			t.Run(name+", "+strategy.String(), func(t *testing.T) {
				decoder, err := envelope.NewDecoder(envelope.DecoderConfig{ID: strategy, Type: "t"}, nil)
				require.NoError(t, err)
				decoded := decoder.Decode("shop", r)
				require.Len(t, decoded.Messages, 1)
				want := decoded.Messages[0]
				id, err := strategy.Find("shop", r)
				require.Equal(t, want.ID, id)
				same := func(err error) {
					if want.IDErr == nil {
						require.NoError(t, err)
						return
					}
					require.ErrorContains(t, want.IDErr, err.Error(), "the decoder adds its options")
				}
				same(err)
				ofRecord := strings.Contains(strategy.String(), "header") || strings.HasPrefix(strategy.String(), "Kafka")
				if name != "batch of 1" || !ofRecord {
					id, err = strategy.FindIn("shop", want)
					require.Equal(t, want.ID, id)
					same(err)
				}
			})
		}
	}
}

func TestRecordOfSeveralEventsHasNoEventID(t *testing.T) {
	const event = `{"specversion":"1.0","id":"e1","type":"t","source":"/s"}`
	r := envelope.Record{Value: []byte("[" + event + "," + event + "]"), Headers: []handler.Header{
		{Key: "content-type", Value: []byte("application/cloudevents-batch+json")}, {Key: "MessageId", Value: []byte("h1")}}}
	for _, strategy := range []envelope.IDStrategy{{}, envelope.CloudEventsID()} {
		_, err := strategy.Find("shop", r)
		require.ErrorIs(t, err, envelope.ErrSharedID)
	}
	id, err := envelope.HeaderID().Find("shop", r)
	require.NoError(t, err)
	require.Equal(t, "h1", id)
}

func TestMessageWithoutCoordinatesHasNoCoordinateID(t *testing.T) {
	_, err := envelope.KafkaCoordinates().FindIn("shop", handler.RawMessage{})
	require.ErrorIs(t, err, envelope.ErrMissingID)
	_, err = envelope.KafkaCoordinates().FindIn("shop", handler.RawMessage{Properties: handler.Properties{
		Kafka: &handler.KafkaCoordinates{Offset: 7}}})
	require.ErrorIs(t, err, envelope.ErrMissingID)
	_, err = envelope.KafkaCoordinates().Find("shop", envelope.Record{Value: []byte("v")})
	require.ErrorIs(t, err, envelope.ErrMissingID)
	require.True(t, envelope.Func(nil).NeedsData())
	require.False(t, envelope.KafkaKey().NeedsData())
}

// TestBatchedEventHasNoRecordID proves that an event of a batch has no ID, because the number
// of events in the batch is no longer known.
func TestBatchedEventHasNoRecordID(t *testing.T) {
	event := func(id string) string { return `{"specversion":"1.0","id":"` + id + `","type":"t","source":"/s"}` }
	r := envelope.Record{Topic: "orders", Partition: 1, Offset: 7, Key: []byte("k"), Headers: []handler.Header{
		{Key: "content-type", Value: []byte("application/cloudevents-batch+json")}, {Key: "MessageId", Value: []byte("h1")},
		{Key: "CorrelationId", Value: []byte("c1")}}}
	decode := func(mode envelope.Mode, value string) []handler.RawMessage {
		decoder, err := envelope.NewDecoder(envelope.DecoderConfig{Mode: mode, Type: "t"}, nil)
		require.NoError(t, err)
		r.Value = []byte(value)
		return decoder.Decode("shop", r).Messages
	}
	function := func(find func(envelope.IDInput) string) envelope.IDStrategy {
		return envelope.Func(func(in envelope.IDInput) (string, error) { return find(in), nil })
	}
	for _, strategy := range []envelope.IDStrategy{envelope.HeaderID(), envelope.CorrelationID(""), envelope.KafkaKey(),
		envelope.KafkaCoordinates(), function(func(in envelope.IDInput) string { return string(in.Record.Key) }),
		function(func(in envelope.IDInput) string { return "v" + string(in.Record.Value) })} {
		for _, value := range []string{"[" + event("e1") + "]", "[" + event("e1") + "," + event("e2") + "]"} {
			for _, m := range decode(envelope.Auto, value) {
				_, err := strategy.FindIn("shop", m)
				require.ErrorIs(t, err, envelope.ErrSharedID, "%s", strategy)
			}
		}
		whole := decode(envelope.Plain, "as it is")
		require.Len(t, whole, 1)
		_, err := strategy.FindIn("shop", whole[0])
		require.NoError(t, err, "%s: a record that is one message has its ID", strategy)
	}
	for _, strategy := range []envelope.IDStrategy{{}, envelope.CloudEventsID(),
		function(func(in envelope.IDInput) string { return in.Attributes["id"] }),
		function(func(in envelope.IDInput) string { return []string{"e1", "e2"}[in.Index] })} {
		for i, m := range decode(envelope.Auto, "["+event("e1")+","+event("e2")+"]") {
			id, err := strategy.FindIn("shop", m)
			require.NoError(t, err)
			require.Equal(t, []string{"e1", "e2"}[i], id)
		}
	}
}
