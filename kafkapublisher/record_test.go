package kafkapublisher

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/outgoing"
)

var (
	occurred = time.Date(2026, 3, 4, 5, 6, 7, 8_000, time.FixedZone("CET", 3600))
	stored   = time.Date(2026, 3, 4, 5, 0, 0, 0, time.UTC)
)

func message() outgoing.Message {
	return outgoing.Message{Channel: "orders out", ID: "m-1", Type: "order.placed", Source: "/shop", ContentType: "text/plain",
		Content: []byte("body"), Key: []byte("k"), Headers: []handler.Header{{Key: "own", Value: []byte("1")}},
		OccurredAt: occurred, StoredAt: stored}
}

// decoded returns what the default decoder of an Inbox channel makes of the message's record.
func decoded(t *testing.T, cfg Config, m outgoing.Message) handler.RawMessage {
	t.Helper()
	r := cfg.withDefaults().encode(0, m)
	record := envelope.Record{Topic: "orders", Timestamp: stored, Key: r.key, Value: r.value}
	for _, h := range r.headers {
		record.Headers = append(record.Headers, handler.Header(h))
	}
	decoder, err := envelope.NewDecoder(envelope.DecoderConfig{}, nil)
	require.NoError(t, err)
	received := decoder.Decode("in", record)
	require.NoError(t, received.Err)
	require.Len(t, received.Messages, 1)
	require.NoError(t, received.Messages[0].IDErr)
	return received.Messages[0]
}

func header(m handler.RawMessage, name string) []string {
	var values []string
	for _, h := range m.Properties.Headers {
		if strings.EqualFold(h.Key, name) {
			values = append(values, string(h.Value))
		}
	}
	return values
}

func TestEventIsReadBackByTheDefaultDecoder(t *testing.T) {
	m := message()
	m.Attributes = map[string]string{"subject": "order 7", "id": "other", "tenant": "a"}
	m.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	got := decoded(t, Config{}, m)
	require.Equal(t, []string{"m-1", "order.placed", "/shop", "text/plain", "body", "k"},
		[]string{got.ID, got.Type, got.Source, got.ContentType, string(got.Content), string(got.OrderingKey)})
	require.Equal(t, occurred.UTC(), properties.OccurredAt(got.Properties))
	require.Equal(t, map[string]string{"specversion": "1.0", "id": "m-1", "type": "order.placed", "source": "/shop",
		"time": "2026-03-04T04:06:07.000008Z", "subject": "order 7", "tenant": "a", "datacontenttype": "text/plain"},
		got.Properties.Attributes)
	require.Equal(t, []string{"1"}, header(got, "own"))
	require.Equal(t, []string{m.Traceparent}, header(got, "traceparent"))
}

func TestPlainRecordIsReadBackByTheDefaultDecoder(t *testing.T) {
	m := message()
	m.Headers = append(m.Headers, handler.Header{Key: "messageid", Value: []byte("other")},
		handler.Header{Key: "MessageType", Value: []byte("other")}, handler.Header{Key: "ce_specversion", Value: []byte("1.0")},
		handler.Header{Key: "Traceparent", Value: []byte("kept")})
	got := decoded(t, Config{Format: Headers}, m)
	require.Equal(t, []string{"m-1", "order.placed", "kafka:orders", "text/plain", "body"},
		[]string{got.ID, got.Type, got.Source, got.ContentType, string(got.Content)})
	require.Nil(t, got.Properties.Attributes)
	require.Equal(t, []string{"1"}, header(got, "own"))
	require.Equal(t, []string{"kept"}, header(got, "traceparent"), "of a message that was stored without a trace")
	require.Equal(t, []string{"m-1"}, header(got, "MessageId"))
	require.Empty(t, header(got, "ce_specversion"))
}

func TestAttributesReplaceHeadersOfTheirNames(t *testing.T) {
	m := message()
	m.ContentType, m.Attributes = "", map[string]string{"subject": "attribute"}
	for _, h := range [][2]string{{"ce_id", "header"}, {"ce_subject", "header"}, {"ce_tenant", "first"}, {"ce_tenant", "second"},
		{"traceparent", "header"}, {"Content-Type", "text/csv"}} {
		m.Headers = append(m.Headers, handler.Header{Key: h[0], Value: []byte(h[1])})
	}
	m.Headers = append(m.Headers, handler.Header{Key: "ce_absent"}, handler.Header{Key: "empty"})
	m.Traceparent = "span"
	got := decoded(t, Config{}, m)
	require.Equal(t, "m-1", got.ID)
	require.Equal(t, "text/csv", got.ContentType, "of the header, as the message has none")
	require.Equal(t, "attribute", got.Properties.Attributes["subject"])
	require.Equal(t, "first", got.Properties.Attributes["tenant"])
	require.NotContains(t, got.Properties.Attributes, "absent")
	require.Equal(t, []string{"span"}, header(got, "traceparent"))
	require.Contains(t, got.Properties.Headers, handler.Header{Key: "empty"}, "a null value stays null")
}

func TestMissingFieldsOfAnEventHaveDefaults(t *testing.T) {
	m := message()
	m.Source, m.OccurredAt, m.Content, m.Key = "", time.Time{}, nil, nil
	got := decoded(t, Config{}, m)
	require.Equal(t, "/orders%20out", got.Source)
	require.Equal(t, stored, properties.OccurredAt(got.Properties))
	require.NotNil(t, got.Content)
	require.False(t, got.Properties.Kafka.Tombstone, "it would be skipped, and delete its key from a compacted topic")
	require.Nil(t, got.OrderingKey)
	require.Equal(t, "/billing", decoded(t, Config{Source: "/billing"}, m).Source)
	m.Attributes = map[string]string{"time": "2020-01-01T00:00:00Z"}
	require.Equal(t, 2020, properties.OccurredAt(decoded(t, Config{}, m).Properties).Year())
}

// TestRecordsAreNoLargerThanTheyAreCounted proves that a request never has more bytes than MaxRequestBytes says.
func TestRecordsAreNoLargerThanTheyAreCounted(t *testing.T) {
	m := message()
	for i := range 150 {
		m.Headers = append(m.Headers, handler.Header{Key: strings.Repeat("h", i), Value: make([]byte, i)})
	}
	for _, size := range []int{0, 1, 63, 64, 8191, 8192, 2 << 20} {
		m.Content, m.Key = make([]byte, size), make([]byte, size)
		counted, records := batchBytes, []kafka.Record{}
		for i := range 100 {
			r := Config{}.withDefaults().encode(i, m)
			counted += r.size
			records = append(records, kafka.Record{Time: stored, Key: kafka.NewBytes(r.key), Value: kafka.NewBytes(r.value),
				Headers: r.headers})
			if size > 8192 {
				break
			}
		}
		var written bytes.Buffer
		set := protocol.RecordSet{Version: 2, Records: kafka.NewRecordReader(records...)}
		_, err := set.WriteTo(&written)
		require.NoError(t, err)
		const sizeField = 4 // of the request, before the batch
		require.LessOrEqual(t, written.Len()-sizeField, counted)
	}
}
