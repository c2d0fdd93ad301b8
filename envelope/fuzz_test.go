package envelope_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/properties"
)

// checkInvariants checks what holds for any record.
func checkInvariants(t *testing.T, d *envelope.Decoder, r envelope.Record) envelope.Received {
	received := d.Decode("channel", r)
	require.Equal(t, r, received.Record)
	require.LessOrEqual(t, received.Size()-r.Size(), d.SizeBound(r), "memory is had before it is used")
	if received.Err != nil {
		require.NotContains(t, received.Err.Error(), "panicked")
		require.Empty(t, received.Messages)
		return received
	}
	for _, m := range received.Messages {
		require.NotEmpty(t, m.Type)
		require.Equal(t, "kafka", m.Transport)
		require.Equal(t, r.Offset, m.Properties.Kafka.Offset)
		_, err := properties.Serialize(m.Properties)
		if m.IDErr == nil {
			require.NoError(t, err)
			require.NotEmpty(t, m.ID)
			require.True(t, utf8.ValidString(m.ID))
			require.NotContains(t, m.ID, "\x00")
			require.LessOrEqual(t, utf8.RuneCountInString(m.ID), columns.MaxMessageID)
		}
	}
	require.Equal(t, received, d.Decode("channel", r), "decoding is deterministic")
	return received
}

func fuzzed(value []byte, headers ...handler.Header) envelope.Record {
	return envelope.Record{Topic: "t", Partition: 1, Offset: 2, Timestamp: time.UnixMilli(3), Value: value,
		Headers: headers}
}

func FuzzStructuredCloudEvent(f *testing.F) {
	d, err := envelope.NewDecoder(envelope.DecoderConfig{}, nil)
	require.NoError(f, err)
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"a":1}}`))
	f.Add([]byte(`{"specversion":"1.0","id":"\ud800","source":"s","type":"t","data_base64":"AA=="}`))
	f.Add([]byte(`{"specversion":"1.0","id":1,"source":"/","type":"t","time":"2020-01-01T00:00:00Z","datacontenttype":"text/plain","data":"x"}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"s","type":"t","i\u0064":"2"}`))
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"a":":\\\"","a":[{}]},"ext":"}"}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		received := checkInvariants(t, d, fuzzed(value,
			handler.Header{Key: "content-type", Value: []byte("application/cloudevents+json")}))
		require.Equal(t, received.Err == nil, len(received.Messages) == 1)
		twice := namesTwice(value)
		require.False(t, received.Err == nil && twice, "a member that comes twice is refused")
		if received.Err != nil && strings.Contains(received.Err.Error(), "comes twice") {
			require.True(t, twice, "and no other event for that reason: %v", received.Err)
		}
	})
}

// namesTwice reports, by encoding/json's tokens, whether a JSON object has two members of one name.
func namesTwice(object []byte) bool {
	tokens := json.NewDecoder(bytes.NewReader(object))
	if first, err := tokens.Token(); err != nil || first != json.Delim('{') {
		return false
	}
	seen := map[string]bool{}
	for tokens.More() {
		name, err := tokens.Token()
		if err != nil {
			return false
		}
		if seen[name.(string)] {
			return true
		}
		seen[name.(string)] = true
		var value json.RawMessage
		if tokens.Decode(&value) != nil {
			return false
		}
	}
	return false
}

func FuzzBatchedCloudEvents(f *testing.F) {
	d, err := envelope.NewDecoder(envelope.DecoderConfig{AllowMissingID: true}, nil)
	require.NoError(f, err)
	f.Add([]byte(`[]`))
	f.Add([]byte(`[{"specversion":"1.0","id":"1","source":"s","type":"t"},{"specversion":"1.0","source":"s","type":"t"}]`))
	f.Add([]byte(`[null]`))
	f.Add([]byte(`[{"specversion":"1.0","id":"1","source":"s","type":"t","type":"u"}]`))
	f.Fuzz(func(t *testing.T, value []byte) {
		received := checkInvariants(t, d, fuzzed(value,
			handler.Header{Key: "content-type", Value: []byte("application/cloudevents-batch+json")}))
		if len(received.Messages) > 0 {
			require.Nil(t, received.Err)
		}
		var events []json.RawMessage
		if received.Err == nil && json.Unmarshal(value, &events) == nil {
			for _, event := range events {
				require.False(t, namesTwice(event), "a member that comes twice is refused")
			}
		}
	})
}

func FuzzBinaryCloudEvent(f *testing.F) {
	d, err := envelope.NewDecoder(envelope.DecoderConfig{Mode: envelope.CloudEvents}, nil)
	require.NoError(f, err)
	f.Add("1.0", "id", "source", "type", "subject", "x", "application/json")
	f.Add("0.3", "", "\xff", "", "time", "2020-01-01T00:00:00Z", "application/cloudevents+avro")
	f.Fuzz(func(t *testing.T, version, id, source, typ, name, value, contentType string) {
		h := func(key, value string) handler.Header { return handler.Header{Key: key, Value: []byte(value)} }
		received := checkInvariants(t, d, fuzzed([]byte("body"), h("ce_specversion", version), h("ce_id", id),
			h("ce_source", source),
			h("ce_type", typ), h("ce_"+name, value), h("content-type", contentType)))
		for _, m := range received.Messages {
			if string(m.Content) == "body" {
				require.Equal(t, source, m.Source, "never altered")
				require.Equal(t, typ, m.Type, "never altered")
			}
		}
	})
}

func FuzzPlain(f *testing.F) {
	d, err := envelope.NewDecoder(envelope.DecoderConfig{Mode: envelope.Plain}, nil)
	require.NoError(f, err)
	f.Add("MessageId", "m", "MessageType", "t", []byte("body"))
	f.Add("id", "\xff\x00", "messagetype", "\xff", []byte(nil))
	f.Fuzz(func(t *testing.T, idHeader, id, typeHeader, typ string, value []byte) {
		received := checkInvariants(t, d, fuzzed(value, handler.Header{Key: idHeader, Value: []byte(id)},
			handler.Header{Key: typeHeader, Value: []byte(typ)}))
		for _, m := range received.Messages {
			require.Equal(t, value, m.Content)
		}
	})
}

// FuzzIDStrategies checks that for any record, an ID from a key or a correlation ID has the channel
// as prefix and is otherwise unaltered, or is missing (contract 4.4).
func FuzzIDStrategies(f *testing.F) {
	f.Add("correlationid", []byte("c"), []byte("k"), "topic", int64(3), int64(4))
	f.Add("CorrelationId", []byte(nil), []byte("\xff\x00"), "", int64(-1), int64(1<<62))
	f.Add("MESSAGEID", []byte("\u0130"), []byte{}, "t/1", int64(0), int64(-1))
	decode := func(t *testing.T, strategy envelope.IDStrategy, r envelope.Record) (handler.RawMessage, bool) {
		d, err := envelope.NewDecoder(envelope.DecoderConfig{Mode: envelope.Plain, Type: "t", ID: strategy}, nil)
		require.NoError(t, err)
		received := checkInvariants(t, d, r)
		if len(received.Messages) == 0 {
			return handler.RawMessage{}, false
		}
		return received.Messages[0], received.Messages[0].IDErr == nil
	}
	f.Add("id", []byte("c"), []byte("k"), "\xcc", int64(3), int64(4))
	f.Fuzz(func(t *testing.T, name string, value, key []byte, topic string, offset, millis int64) {
		if !utf8.ValidString(topic) {
			return // a topic's name comes from the configuration, which allows ASCII
		}
		r := envelope.Record{Topic: topic, Partition: 1, Offset: offset, Timestamp: time.UnixMilli(millis), Key: key,
			Headers: []handler.Header{{Key: name, Value: value}}}
		if m, found := decode(t, envelope.KafkaKey(), r); found {
			require.Equal(t, "channel:"+string(key), m.ID)
		}
		if m, found := decode(t, envelope.CorrelationID(""), r); found {
			require.Equal(t, "channel:"+string(value), m.ID)
			require.True(t, strings.EqualFold(name, "CorrelationId"))
		}
		if m, found := decode(t, envelope.KafkaCoordinates(), r); found {
			require.Equal(t, fmt.Sprintf("%s/1/%d@%d", topic, offset, millis), m.ID)
		}
		if strings.TrimSpace(name) == "" {
			return // no header's name: refused at start
		}
		if m, found := decode(t, envelope.HeaderID(name), r); found {
			require.Equal(t, string(value), m.ID)
		}
	})
}

// FuzzSourceAndID checks that two events have one ID only if their sources and ids are the same
// (contract 4.4).
func FuzzSourceAndID(f *testing.F) {
	f.Add("/a", "1", "/a", "1")
	f.Add("/a", "b 1", "/a b", "1")
	f.Add("/a ", "1", "/a", " 1")
	f.Add("a%20b", "1", "a b", "1")
	d, err := envelope.NewDecoder(envelope.DecoderConfig{ID: envelope.SourceAndID(),
		Tombstones: envelope.TombstoneHandle}, nil)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, source, id, otherSource, otherID string) {
		find := func(source, id string) (string, bool) {
			received := checkInvariants(t, d, fuzzed(nil, handler.Header{Key: "ce_specversion", Value: []byte("1.0")},
				handler.Header{Key: "ce_type", Value: []byte("t")}, handler.Header{Key: "ce_source", Value: []byte(source)},
				handler.Header{Key: "ce_id", Value: []byte(id)}))
			if received.Err != nil || received.Messages[0].IDErr != nil {
				return "", false
			}
			return received.Messages[0].ID, true
		}
		first, ok := find(source, id)
		second, also := find(otherSource, otherID)
		if ok && also {
			require.Equal(t, source == otherSource && id == otherID, first == second)
		}
	})
}
