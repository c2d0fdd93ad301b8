package kafka

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/models"
)

// produced is a record, and what the database must have because of it: messages, or the reason of a
// rejected record.
type produced struct {
	name     string
	record   kafkatest.Record
	messages []stored
	rejected string
}

// stored is what a message's row must contain besides its coordinates and headers, which are those
// of the record.
type stored struct {
	id, typ, source, contentType, content string
	attributes                            map[string]string
}

func headers(pairs ...string) []kafkatest.Header {
	var all []kafkatest.Header
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, kafkatest.Header{Key: pairs[i], Value: []byte(pairs[i+1])})
	}
	return all
}

// envelopes are channels with a topic of the same name, and the records that come on them (contract
// 4.4, 4.5).
var envelopes = []struct {
	channel string
	decoder envelope.DecoderConfig
	records []produced
}{
	{"events", envelope.DecoderConfig{Mode: envelope.CloudEvents, Tombstones: envelope.TombstoneHandle}, []produced{
		{
			name: "binary", record: kafkatest.Record{
				Key: []byte("k"), Value: []byte("\x00\xff\x01"),
				Headers: headers("ce_specversion", "1.0", "ce_id", "binary", "ce_source", "/shop", "ce_type", "t", "ce_time",
					"2026-01-02T03:04:05Z",
					"ce_partitionkey", "other", "ce_count", "7", "content-type", "application/x-protobuf", "traceparent", "00-a-b-01"),
			},
			messages: []stored{{"binary", "t", "/shop", "application/x-protobuf", "\x00\xff\x01", map[string]string{
				"specversion": "1.0", "id": "binary", "source": "/shop", "type": "t", "time": "2026-01-02T03:04:05Z",
				"partitionkey": "other", "count": "7",
				"datacontenttype": "application/x-protobuf",
			}}},
		},
		{
			name: "binary without data",
			record: kafkatest.Record{Key: []byte("k"), Headers: headers("ce_specversion", "1.0", "ce_id", "tombstone",
				"ce_source", "s", "ce_type", "t")},
			messages: []stored{{"tombstone", "t", "s", "", "",
				map[string]string{"specversion": "1.0", "id": "tombstone", "source": "s", "type": "t"}}},
		},
		{
			name: "structured",
			record: kafkatest.Record{
				Value:   []byte(`{"specversion":"1.0","id":"structured","source":"s","type":"t","flag":true,"subject":null,"data": {"n":1.0}}`),
				Headers: headers("content-type", "application/cloudevents+json; charset=UTF-8"),
			},
			messages: []stored{{"structured", "t", "s", "application/json", `{"n":1.0}`, map[string]string{
				"specversion": "1.0", "id": "structured", "source": "s", "type": "t", "flag": "true",
			}}},
		},
		{
			name: "structured with binary data",
			record: kafkatest.Record{
				Value:   []byte(`{"specversion":"1.0","id":"base64","source":"s","type":"t","datacontenttype":"image/png","data_base64":"AP8="}`),
				Headers: headers("Content-Type", "application/cloudevents+json"),
			},
			messages: []stored{{"base64", "t", "s", "image/png", "\x00\xff", map[string]string{
				"specversion": "1.0", "id": "base64", "source": "s", "type": "t", "datacontenttype": "image/png",
			}}},
		},
		{
			name: "batched",
			record: kafkatest.Record{
				Key:     []byte{},
				Value:   []byte(`[{"specversion":"1.0","id":"batch-1","source":"s","type":"t","data":1},{"specversion":"1.0","id":"batch-2","source":"s","type":"t"}]`),
				Headers: headers("content-type", "application/cloudevents-batch+json"),
			},
			messages: []stored{
				{"batch-1", "t", "s", "application/json", "1",
					map[string]string{"specversion": "1.0", "id": "batch-1", "source": "s", "type": "t"}},
				{"batch-2", "t", "s", "", "", map[string]string{"specversion": "1.0", "id": "batch-2", "source": "s", "type": "t"}},
			},
		},
		{name: "empty batch", record: kafkatest.Record{Value: []byte(`[]`),
			Headers: headers("content-type", "application/cloudevents-batch+json")}},
		{
			name:     "structured without value",
			record:   kafkatest.Record{Key: []byte("k"), Headers: headers("content-type", "application/cloudevents+json")},
			rejected: "malformed CloudEvent",
		},
		{name: "no event", record: kafkatest.Record{Value: []byte("\xff\x00"), Headers: headers("a\xff", "\xff\x00")},
			rejected: "not a CloudEvent"},
		{
			name: "id that is no text",
			record: kafkatest.Record{Headers: headers("ce_specversion", "1.0", "ce_id", "\xff", "ce_source", "s", "ce_type",
				"t")},
			rejected: "bad_id",
		},
		{
			name: "known id of another source",
			record: kafkatest.Record{Headers: headers("ce_specversion", "1.0", "ce_id", "binary", "ce_source", "elsewhere",
				"ce_type", "t")},
			rejected: "id_conflict",
		},
	}},
	{"debezium", envelope.DecoderConfig{TypeHeader: "eventType", Tombstones: envelope.TombstoneHandle}, []produced{
		{
			name: "outbox event",
			record: kafkatest.Record{
				Key: []byte("order-1"), Value: []byte(`{"orderId":1,"total":"12.50"}`), Timestamp: time.UnixMilli(1700000000123),
				Headers: headers("id", "5c5d2f0e-6f0d-4a3f-9a37-2f1b8c2d3e4f", "eventType", "t"),
			},
			messages: []stored{{"5c5d2f0e-6f0d-4a3f-9a37-2f1b8c2d3e4f", "t", "kafka:debezium", "",
				`{"orderId":1,"total":"12.50"}`, nil}},
		},
		{
			name:     "outbox event without payload",
			record:   kafkatest.Record{Key: []byte("order-1"), Headers: headers("id", "deleted", "eventType", "t")},
			messages: []stored{{"deleted", "t", "kafka:debezium", "", "", nil}},
		},
		{
			name: "empty payload",
			record: kafkatest.Record{Key: []byte("order-1"), Value: []byte{},
				Headers: headers("id", "empty", "eventType", "t")},
			messages: []stored{{"empty", "t", "kafka:debezium", "", "", nil}},
		},
		{name: "tombstone for compaction", record: kafkatest.Record{Key: []byte("order-1")},
			rejected: "message type is missing"},
	}},
	{"plain", envelope.DecoderConfig{Type: "t"}, []produced{
		{
			name: "headers that repeat, are null, empty or no text",
			record: kafkatest.Record{
				Key: []byte{0xff, 0x00}, Value: []byte("body"),
				Headers: append(headers("MessageId", "plain", "MessageId", "second", "x", "", "x\xff\x00", "\xff\x00", "nul",
					"a\x00b", "ce_id", "no event"), kafkatest.Header{Key: "null"}),
			},
			messages: []stored{{"plain", "t", "kafka:plain", "", "body", nil}},
		},
		{
			name: "schema registry format", record: kafkatest.Record{Value: []byte("\x00\x00\x00\x00\x2a\x02\xff"),
				Headers: headers("messageid", "avro", "content-type", "avro/binary")},
			messages: []stored{{"avro", "t", "kafka:plain", "avro/binary", "\x00\x00\x00\x00\x2a\x02\xff", nil}},
		},
		{
			name: "200 characters", record: kafkatest.Record{Value: []byte("x"),
				Headers: headers("MessageId", strings.Repeat("ä", 200))},
			messages: []stored{{strings.Repeat("ä", 200), "t", "kafka:plain", "", "x", nil}},
		},
		{
			name: "201 characters", record: kafkatest.Record{Value: []byte("x"),
				Headers: headers("MessageId", strings.Repeat("ä", 201))},
			rejected: "201 characters",
		},
		{
			name: "white space", record: kafkatest.Record{Value: []byte("x"), Headers: headers("MessageId", " plain \n")},
			messages: []stored{{" plain \n", "t", "kafka:plain", "", "x", nil}},
		},
		{name: "NUL", record: kafkatest.Record{Value: []byte("x"), Headers: headers("MessageId", "a\x00")},
			rejected: "bad_id"},
		{name: "no ID", record: kafkatest.Record{Value: []byte("x"), Headers: headers("MessageId", "")},
			rejected: "missing_id"},
	}},
	{"keys", envelope.DecoderConfig{Type: "t", ID: envelope.KafkaKey(), Tombstones: envelope.TombstoneHandle}, []produced{
		{
			name: "prefixed", record: kafkatest.Record{Key: []byte("k"), Value: []byte("x")},
			messages: []stored{{"keys:k", "t", "kafka:keys", "", "x", nil}},
		},
		{
			name: "200 characters with the prefix", record: kafkatest.Record{Key: []byte(strings.Repeat("ü", 195)),
				Value: []byte("x")},
			messages: []stored{{"keys:" + strings.Repeat("ü", 195), "t", "kafka:keys", "", "x", nil}},
		},
		{name: "201 characters with the prefix", record: kafkatest.Record{Key: []byte(strings.Repeat("ü", 196))},
			rejected: "201 characters"},
		{name: "a key that is no text", record: kafkatest.Record{Key: []byte{0xff}}, rejected: "bad_id"},
		{name: "an empty key", record: kafkatest.Record{Key: []byte{}}, rejected: "missing_id"},
	}},
	{"correlated", envelope.DecoderConfig{Type: "t", ID: envelope.CorrelationID("X-Correlation"),
		Tombstones: envelope.TombstoneHandle}, []produced{
		{
			name: "prefixed", record: kafkatest.Record{Value: []byte("x"), Headers: headers("x-correlation", "c")},
			messages: []stored{{"correlated:c", "t", "kafka:correlated", "", "x", nil}},
		},
	}},
	{"missing", envelope.DecoderConfig{Type: "t", AllowMissingID: true, Source: "legacy", ContentType: "text/plain"},
		[]produced{
			{
				name: "coordinates instead", record: kafkatest.Record{Value: []byte("x"), Timestamp: time.UnixMilli(1700000000123)},
				messages: []stored{{"missing/0/0@1700000000123", "t", "legacy", "text/plain", "x", nil}},
			},
		}},
}

func TestEveryEnvelopeIsStoredByteForByte(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var (
			options = []inbox.Option{inboxtest.Brisk()}
			k       = kafkatest.Start(t)
		)
		for _, e := range envelopes {
			require.NoError(t, k.CreateTopic(e.channel, 1))
			for _, p := range e.records { // one by one, because a record may conflict with an earlier one
				require.NoError(t, k.Produce(e.channel, p.record))
			}
			cfg := config(k.Brokers(), e.channel)
			cfg.GroupID, cfg.Decoder = e.channel, e.decoder
			options = append(options, inbox.Channel(e.channel, inbox.Kafka(cfg),
				inbox.On("t", inboxtest.Do("handle-"+e.channel, inboxtest.Nothing))))
		}
		ib := inboxtest.New(t, d.DB, options...)
		inboxtest.Start(t, ib)
		for _, e := range envelopes {
			inboxtest.Eventually(t, func() bool {
				return k.Committed(e.channel, e.channel)[0] == int64(len(e.records))
			}, "all of "+e.channel+" is committed")
		}
		var messages []models.Message
		require.NoError(t, ib.DB().Clauses(ib.Tables()).Find(&messages).Error)
		var rejected []models.RejectedMessage
		require.NoError(t, ib.DB().Clauses(ib.Tables()).Find(&rejected).Error)
		byID, byPlace := map[string]models.Message{}, map[string]models.RejectedMessage{}
		for _, m := range messages {
			byID[m.ID] = m
		}
		for _, r := range rejected {
			byPlace[fmt.Sprintf("%s/%d", r.Topic, r.Offset)] = r
		}
		want := 0
		for _, e := range envelopes {
			for offset, p := range e.records {
				name := e.channel + ": " + p.name
				at, found := byPlace[fmt.Sprintf("%s/%d", e.channel, offset)]
				require.Equal(t, p.rejected != "", found, "%s: %s", name, at.Reason)
				if found {
					checkRejected(t, name, p, at)
					for column, value := range map[string][]byte{"key": p.record.Key, "value": p.record.Value} {
						require.Equal(t, value == nil, isNull(t, ib.DB().Table(ib.Tables().RejectedMessages()), column, at.ID), "%s: %s", name, column)
					}
					delete(byPlace, fmt.Sprintf("%s/%d", e.channel, offset))
				}
				for _, expected := range p.messages {
					want++
					require.Contains(t, byID, expected.id, name)
					checkMessage(t, name, e.channel, int64(offset), p.record, expected, byID[expected.id])
					require.Equal(t, p.record.Key == nil, isNull(t, ib.DB().Table(ib.Tables().Messages()), "ordering_key", expected.id), name)
				}
			}
		}
		require.Len(t, messages, want)
		require.Empty(t, byPlace)
	})
}

func checkRejected(t *testing.T, name string, p produced, got models.RejectedMessage) {
	t.Helper()
	require.Contains(t, got.Reason, p.rejected, name)
	require.Equal(t, string(p.record.Key), string(got.Key), name)
	require.Equal(t, string(p.record.Value), string(got.Value), name)
	kept, err := properties.ParseHeaders(got.Headers)
	require.NoError(t, err)
	require.Equal(t, asHeaders(p.record), kept, name)
}

func checkMessage(
	t *testing.T, name, channel string, offset int64, r kafkatest.Record, want stored, got models.Message,
) {
	t.Helper()
	require.Equal(t, want.id, got.ID, name)
	require.Equal(t, want.typ, got.Type, name)
	require.Equal(t, want.source, got.Source, name)
	require.Equal(t, want.contentType, got.ContentType, name)
	require.Equal(t, want.content, string(got.Content), name)
	require.Equal(t, "kafka", got.TransportName, name)
	require.Equal(t, string(r.Key), string(got.OrderingKey), name)
	properties, err := properties.Parse(got.SerializedProperties)
	require.NoError(t, err)
	require.Equal(t, channel, properties.Channel)
	require.Equal(t, asHeaders(r), properties.Headers, name)
	require.Equal(t, want.attributes, properties.Attributes, name)
	at := properties.Kafka
	require.Equal(t, []any{channel, 0, offset}, []any{at.Topic, at.Partition, at.Offset}, name)
	if !r.Timestamp.IsZero() {
		require.Equal(t, r.Timestamp.UTC(), at.Timestamp, name)
	}
	require.Equal(t, r.Key, at.Key, name)
	require.Equal(t, r.Value == nil, at.Tombstone, "%s: a missing value differs from an empty one", name)
}

// isNull queries the database, because some drivers read an empty value as nil.
func isNull(t *testing.T, rows *gorm.DB, column, id string) bool {
	t.Helper()
	var n int64
	require.NoError(t, rows.Where("id = ? AND "+column+" IS NULL", id).Count(&n).Error)
	return n == 1
}

func asHeaders(r kafkatest.Record) []handler.Header {
	var all []handler.Header
	for _, h := range r.Headers {
		all = append(all, handler.Header{Key: h.Key, Value: h.Value})
	}
	return all
}

// TestContentOfAnySizeIsStoredByteForByte sends empty content and content of 8 MiB through a broker
// into a database.
func TestContentOfAnySizeIsStoredByteForByte(t *testing.T) {
	t.Parallel()
	brokers := map[string]func(t *testing.T) *bench{
		"in-process": func(t *testing.T) *bench { return newBench(t, kafkatest.Start(t).Brokers()) },
		"real":       realBench,
	}
	for name, broker := range brokers {
		t.Run(name, func(t *testing.T) {
			b := broker(t)
			b.createTopic(1, map[string]string{"max.message.bytes": "9000000"})
			large := make([]byte, 8<<20)
			for i := range large {
				large[i] = byte(i * 31 >> 3) // all bytes, including 0x00 and 0xff
			}
			contents := map[string][]byte{"none": {}, "one": {0}, "large": large}
			client := b.newClient(kgo.ProducerBatchMaxBytes(9_000_000))
			for _, id := range []string{"none", "one", "large"} {
				b.produce(client, &kgo.Record{Value: contents[id],
					Headers: []kgo.RecordHeader{{Key: "MessageId", Value: []byte(id)}}})
			}
			inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
				cfg := config(b.brokers, b.topic)
				cfg.GroupID, cfg.SessionTimeout, cfg.RequestTimeout = b.group+"-"+d.Dialect, 6*time.Second, 5*time.Second
				cfg.Decoder = envelope.DecoderConfig{Type: "t"}
				handled := make(chan inboxtest.Bytes, len(contents))
				ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Channel("c", inbox.Kafka(cfg), inbox.On("t",
					inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error { handled <- m; return nil }))))
				inboxtest.Start(t, ib)
				for range contents {
					m := receive(t, handled)
					require.True(t, bytes.Equal(contents[m.ID], m.Payload), "%s is handled with %d bytes", m.ID, len(m.Payload))
				}
				inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all completed")
				var rows []models.Message
				require.NoError(t, ib.DB().Clauses(ib.Tables()).Find(&rows).Error)
				require.Len(t, rows, len(contents))
				for _, row := range rows {
					require.True(t, bytes.Equal(contents[row.ID], row.Content), "%s is stored with %d bytes", row.ID, len(row.Content))
				}
			})
		})
	}
}
