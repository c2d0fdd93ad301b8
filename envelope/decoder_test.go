package envelope_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
)

const channel = "orders.events"

func record(value string, headers ...string) envelope.Record {
	r := envelope.Record{Topic: "orders", Partition: 3, Offset: 42, Timestamp: time.UnixMilli(1700000000123).UTC(),
		Key: []byte("k-1"), Value: []byte(value)}
	for i := 0; i < len(headers); i += 2 {
		r.Headers = append(r.Headers, handler.Header{Key: headers[i], Value: []byte(headers[i+1])})
	}
	return r
}

func decoder(t *testing.T, cfg envelope.DecoderConfig) *envelope.Decoder {
	t.Helper()
	d, err := envelope.NewDecoder(cfg, zap.NewNop())
	require.NoError(t, err)
	return d
}

// message decodes a record that must have exactly one message.
func message(t *testing.T, cfg envelope.DecoderConfig, r envelope.Record) handler.RawMessage {
	t.Helper()
	received := decoder(t, cfg).Decode(channel, r)
	require.NoError(t, received.Err)
	require.Len(t, received.Messages, 1)
	require.Equal(t, r, received.Record)
	return received.Messages[0]
}

func TestPlainRecordBecomesAMessage(t *testing.T) {
	r := record("body", "MessageId", "m-1", "MessageType", "order.placed", "Content-Type", "text/plain", "trace", "t")
	m := message(t, envelope.DecoderConfig{}, r)
	require.NoError(t, m.IDErr)
	require.Equal(t, handler.RawMessage{
		Channel: channel, ID: "m-1", Type: "order.placed", Source: "kafka:orders", ContentType: "text/plain",
		Content:   []byte("body"),
		Transport: "kafka", OrderingKey: []byte("k-1"),
		Properties: handler.Properties{Channel: channel, Headers: r.Headers, Kafka: &handler.KafkaCoordinates{
			Topic: "orders", Partition: 3, Offset: 42, Timestamp: r.Timestamp, Key: []byte("k-1"),
		}},
	}, m)
}

func TestPlainTypeComesFromHeaderOrChannel(t *testing.T) {
	for _, test := range []struct {
		name    string
		cfg     envelope.DecoderConfig
		headers []string
		want    string
	}{
		{"default header", envelope.DecoderConfig{}, []string{"MessageType", "a"}, "a"},
		{"default header, other case", envelope.DecoderConfig{}, []string{"messagetype", "a"}, "a"},
		{"exact case wins", envelope.DecoderConfig{}, []string{"messagetype", "a", "MessageType", "b"}, "b"},
		{"own header", envelope.DecoderConfig{TypeHeader: "kind"}, []string{"kind", "a", "MessageType", "b"}, "a"},
		{"fixed", envelope.DecoderConfig{Type: "fix"}, []string{"MessageType", "b"}, "fix"},
		{"fixed as fallback", envelope.DecoderConfig{Type: "fix", TypeHeader: "kind"}, nil, "fix"},
		{"header before fallback", envelope.DecoderConfig{Type: "fix", TypeHeader: "kind"}, []string{"kind", "a"}, "a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.want, message(t, test.cfg, record("", test.headers...)).Type)
		})
	}
	received := decoder(t, envelope.DecoderConfig{}).Decode(channel, record("x", "MessageId", "m"))
	require.ErrorIs(t, received.Err, envelope.ErrMissingType)
	require.EqualError(t, received.Err, `message type is missing: no header "MessageType": set option Decoder.TypeHeader to the header that has it, or Decoder.Type`)
	require.Empty(t, received.Messages)
}

func TestPlainTypeComesFromAFunction(t *testing.T) {
	var result error
	cfg := envelope.DecoderConfig{TypeOf: func(r envelope.Record) (string, error) { return string(r.Value), result }}
	require.Equal(t, "a", message(t, cfg, record("a", "MessageType", "b")).Type)

	received := decoder(t, cfg).Decode(channel, record(""))
	require.ErrorIs(t, received.Err, envelope.ErrMissingType)
	result = fmt.Errorf("registry: %w", envelope.ErrUnavailable)
	received = decoder(t, cfg).Decode(channel, record("a"))
	require.EqualError(t, received.Err, "the channel's TypeOf function: registry: temporarily unavailable")
	require.ErrorIs(t, received.Err, envelope.ErrUnavailable)
	require.Empty(t, received.Messages)

	cfg.TypeHeader, cfg.Type = "kind", "fix"
	require.EqualError(t, cfg.Validate(),
		`option Decoder.TypeHeader = "kind", Decoder.Type = "fix": must be empty with Decoder.TypeOf`)
}

func TestTombstoneAndEmptyValueAreLegalAndDiffer(t *testing.T) {
	cfg := envelope.DecoderConfig{Type: "x", ID: envelope.KafkaCoordinates(), Tombstones: envelope.TombstoneHandle}
	tombstone := record("")
	tombstone.Value, tombstone.Key = nil, nil
	m := message(t, cfg, tombstone)
	require.Nil(t, m.Content)
	require.Nil(t, m.OrderingKey)
	require.Nil(t, m.Properties.Kafka.Key)
	require.True(t, m.Properties.Kafka.Tombstone)
	empty := record("")
	empty.Key = []byte{}
	m = message(t, cfg, empty)
	require.NotNil(t, m.Content)
	require.NotNil(t, m.OrderingKey)
	require.NotNil(t, m.Properties.Kafka.Key)
	require.False(t, m.Properties.Kafka.Tombstone)

	event := record("", "ce_specversion", "1.0", "ce_id", "1", "ce_source", "s", "ce_type", "t")
	require.False(t, message(t, envelope.DecoderConfig{}, event).Properties.Kafka.Tombstone)
	event.Value = nil
	handles := envelope.DecoderConfig{Tombstones: envelope.TombstoneHandle}
	m = message(t, handles, event)
	require.Nil(t, m.Content, "an event without data")
	require.True(t, m.Properties.Kafka.Tombstone)
	for _, value := range [][]byte{nil, {}} {
		event = record("", "content-type", "application/cloudevents+json")
		event.Value = value
		require.ErrorIs(t, decoder(t, handles).Decode(channel, event).Err, envelope.ErrMalformed,
			"a structured event is in the value")
	}
}

func TestCloudEventModesGiveTheSameMessage(t *testing.T) {
	attributes := map[string]string{
		"specversion": "1.0", "id": "e-1", "source": "/shop a", "type": "order.placed", "datacontenttype": "application/json",
		"time": "2026-01-02T03:04:05.1Z", "subject": "o/1", "dataschema": "https://example.com/s", "partitionkey": "p",
		"count": "7", "flag": "true",
	}
	event := `{"specversion":"1.0","id":"e-1","source":"/shop a","type":"order.placed","datacontenttype":"application/json",` +
		`"time":"2026-01-02T03:04:05.1Z","subject":"o/1","dataschema":"https://example.com/s","partitionkey":"p","count":7,"flag":true,"nothing":null,"data":{"n":1}}`
	binary := record(`{"n":1}`, "content-type", "application/json")
	for name, value := range attributes {
		if name != "datacontenttype" {
			binary.Headers = append(binary.Headers, handler.Header{Key: "ce_" + name, Value: []byte(value)})
		}
	}
	for name, r := range map[string]envelope.Record{
		"binary":     binary,
		"structured": record(event, "content-type", "application/cloudevents+json; charset=utf-8"),
		"batched":    record("["+event+"]", "Content-Type", "application/CloudEvents-batch+json"),
	} {
		t.Run(name, func(t *testing.T) {
			m := message(t, envelope.DecoderConfig{Mode: envelope.CloudEvents}, r)
			require.NoError(t, m.IDErr)
			require.Equal(t, "e-1", m.ID)
			require.Equal(t, "order.placed", m.Type)
			require.Equal(t, "/shop a", m.Source, "never altered")
			require.Equal(t, "application/json", m.ContentType)
			require.JSONEq(t, `{"n":1}`, string(m.Content))
			require.Equal(t, attributes, m.Properties.Attributes)
			require.Equal(t, r.Headers, m.Properties.Headers)
		})
	}
}

func TestStructuredDataFollowsItsContentType(t *testing.T) {
	for _, test := range []struct{ name, members, want, contentType string }{
		{"JSON string stays JSON", `,"data":"a"`, `"a"`, "application/json"},
		{"JSON string that is JSON itself", `,"datacontenttype":"application/json","data":"{}"`, `"{}"`, "application/json"},
		{"text is unquoted", `,"datacontenttype":"text/plain","data":"a\nb"`, "a\nb", "text/plain"},
		{"base64", `,"data_base64":"AAEC"`, "\x00\x01\x02", ""},
		{"base64 of JSON", `,"datacontenttype":"application/json","data_base64":"e30="`, "{}", "application/json"},
		{"empty base64", `,"data_base64":""`, "", ""},
		{"JSON null", `,"data":null`, "null", "application/json"},
		{"numbers and white space as they came", `,"data": {"n" : 1.50e+2}`, `{"n" : 1.50e+2}`, "application/json"},
		{"vendor JSON", `,"datacontenttype":"application/x+json; charset=utf-8","data":"a"`, `"a"`,
			"application/x+json; charset=utf-8"},
		{"XML", `,"datacontenttype":"application/xml","data":"<a/>"`, "<a/>", "application/xml"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := record(`{"specversion":"1.0","id":"1","source":"s","type":"t"`+test.members+`}`, "content-type",
				"application/cloudevents+json")
			m := message(t, envelope.DecoderConfig{}, r)
			require.Equal(t, test.want, string(m.Content))
			require.NotNil(t, m.Content)
			require.Equal(t, test.contentType, m.ContentType)
		})
	}
	for _, members := range []string{"", `,"data_base64":null`} {
		r := record(`{"specversion":"1.0","id":"1","source":"s","type":"t"`+members+`}`, "content-type",
			"application/cloudevents+json")
		m := message(t, envelope.DecoderConfig{}, r)
		require.Nil(t, m.Content)
		require.Empty(t, m.ContentType)
	}
}

// withNull adds a header without a value.
func withNull(r envelope.Record, name string) envelope.Record {
	r.Headers = append(r.Headers, handler.Header{Key: name})
	return r
}

func TestNullAttributesCountAsMissing(t *testing.T) {
	r := withNull(record("", "ce_specversion", "1.0", "ce_id", "1", "ce_source", "s", "ce_type", "t"), "ce_subject")
	m := message(t, envelope.DecoderConfig{}, r)
	require.Equal(t, map[string]string{"specversion": "1.0", "id": "1", "source": "s", "type": "t"},
		m.Properties.Attributes)
	require.Equal(t, r.Headers, m.Properties.Headers, "headers are kept as they came")
}

func TestStructuredContentTypeOutranksCloudEventHeaders(t *testing.T) {
	event := `{"specversion":"1.0","id":"inside","source":"s","type":"t"}`
	m := message(t, envelope.DecoderConfig{}, record(event, "ce_specversion", "1.0", "ce_id", "outside", "content-type",
		"APPLICATION/CloudEvents+JSON; charset=UTF-8"))
	require.Equal(t, "inside", m.ID)
}

func TestMalformedCloudEventsAreBadRecords(t *testing.T) {
	json := func(body string) envelope.Record { return record(body, "content-type", "application/cloudevents+json") }
	event := func(members string) envelope.Record {
		return json(`{"specversion":"1.0","id":"1","source":"s","type":"t"` + members + `}`)
	}
	for name, r := range map[string]envelope.Record{
		"no JSON":             json(`{`),
		"null":                json(`null`),
		"array":               json(`[]`),
		"invalid UTF-8":       json("{\"specversion\":\"1.0\",\"id\":\"\xff\",\"source\":\"s\",\"type\":\"t\"}"),
		"half surrogate":      json(`{"specversion":"1.0","id":"\ud800","source":"s","type":"t"}`),
		"old version":         json(`{"specversion":"0.3","id":"1","source":"s","type":"t"}`),
		"no version":          json(`{"id":"1","source":"s","type":"t"}`),
		"no type":             json(`{"specversion":"1.0","id":"1","source":"s"}`),
		"no source":           json(`{"specversion":"1.0","id":"1","type":"t"}`),
		"object attribute":    event(`,"ext":{}`),
		"bad attribute name":  event(`,"a-b":"x"`),
		"bad time":            event(`,"time":"yesterday"`),
		"bad schema":          event(`,"dataschema":"::"`),
		"bad content type":    event(`,"datacontenttype":"/"`),
		"NUL":                 event(`,"subject":"a\u0000b"`),
		"id twice":            event(`,"id":"2"`),
		"same id twice":       event(`,"id":"1"`),
		"id twice, escaped":   event(`,"i\u0064":"2"`),
		"extension twice":     event(`,"ext":"a","ext":null`),
		"data twice":          event(`,"data":{"a":1},"data":{"a":1}`),
		"base64 twice":        event(`,"data_base64":null,"data_base64":"AA=="`),
		"twice in a batch":    record(`[{"specversion":"1.0","id":"1","source":"s","type":"t"},{"specversion":"1.0","id":"1","id":"2","source":"s","type":"t"}]`, "content-type", "application/cloudevents-batch+json"),
		"two data":            event(`,"data":1,"data_base64":"AA=="`),
		"bad base64":          event(`,"data_base64":"%"`),
		"half surrogate data": event(`,"datacontenttype":"text/plain","data":"\ud800"`),
		"other charset":       record("{}", "content-type", "application/cloudevents+json; charset=iso-8859-1"),
		"binary null type":    withNull(record("", "ce_specversion", "1.0", "ce_id", "1", "ce_source", "s"), "ce_type"),
		"other format":        record("x", "content-type", "application/cloudevents+avro"),
		"batch of one bad": record(`[{"specversion":"1.0","id":"1","source":"s","type":"t"},{}]`, "content-type",
			"application/cloudevents-batch+json"),
		"batch null":          record(`null`, "content-type", "application/cloudevents-batch+json"),
		"binary without type": record("", "ce_specversion", "1.0", "ce_id", "1", "ce_source", "s"),
		"binary twice": record("", "ce_specversion", "1.0", "ce_id", "1", "ce_id", "2", "ce_source", "s", "ce_type",
			"t"),
		"binary not UTF-8": record("", "ce_specversion", "1.0", "ce_id", "1", "ce_source", "s", "ce_type", "\xff"),
	} {
		t.Run(name, func(t *testing.T) {
			received := decoder(t, envelope.DecoderConfig{}).Decode(channel, r)
			require.ErrorIs(t, received.Err, envelope.ErrMalformed)
			require.Empty(t, received.Messages)
			require.Equal(t, r, received.Record, "the raw record is kept")
		})
	}
	received := decoder(t, envelope.DecoderConfig{Mode: envelope.CloudEvents}).Decode(channel,
		record("x", "MessageType", "t", "MessageId", "1"))
	require.ErrorIs(t, received.Err, envelope.ErrNotCloudEvent)
}

func TestDuplicateMemberIsNamed(t *testing.T) {
	event := `{"specversion":"1.0","id":"1","source":"s","data":{"type":"t","type":"t"},"type":"a","type":"b"}`
	received := decoder(t, envelope.DecoderConfig{}).Decode(channel,
		record(event, "content-type", "application/cloudevents+json"))
	require.ErrorContains(t, received.Err, `member "type" comes twice`)
	received = decoder(t, envelope.DecoderConfig{}).Decode(channel,
		record("["+event+"]", "content-type", "application/cloudevents-batch+json"))
	require.ErrorContains(t, received.Err, `event 1 of 1`)
	require.ErrorContains(t, received.Err, `member "type" comes twice`)
}

// TestMembersWithinDataAreNoDuplicates proves that what looks like a second member, but is part of a text
// or of the data, does not count as one.
func TestMembersWithinDataAreNoDuplicates(t *testing.T) {
	for _, data := range []string{
		`{"id":1,"id":2}`, `[{"id":1,"id":2},{"id":3}]`, `"{\"id\":1}"`, `"\\"`, `"\\\":\""`, `"a:b\":"`,
		`{"\"id\":":[[],{},":"]}`, `{}`, `1`,
	} {
		value := `{ "specversion" : "1.0", "data" : ` + data + ` , "id":"1","source":"s:\"t\":","type":"t","ext":"{:"}`
		m := message(t, envelope.DecoderConfig{}, record(value, "content-type", "application/cloudevents+json"))
		require.Equal(t, data, string(m.Content))
		batch := decoder(t, envelope.DecoderConfig{}).Decode(channel,
			record("["+value+", "+value+"]", "content-type", "application/cloudevents-batch+json"))
		require.NoError(t, batch.Err)
		require.Len(t, batch.Messages, 2)
	}
}

func BenchmarkDecode(b *testing.B) {
	event := func(data string) string {
		return `{"specversion":"1.0","id":"0190f3c4-5b1e-7c3a-9d53-0a3c5c8f2f11","source":"/shop","type":"order.placed","time":"2026-01-02T03:04:05.1Z",` +
			`"datacontenttype":"application/json","partitionkey":"p","data":` + data + `}`
	}
	lines := func(n int) string {
		return `{"lines":[` + strings.Repeat(`{"sku":"A-1","quantity":12,"price":{"amount":"12.50","currency":"EUR"}},`, n) +
			`{}]}`
	}
	for name, r := range map[string]envelope.Record{
		"structured/1KB":  record(event(lines(14)), "content-type", "application/cloudevents+json"),
		"structured/64KB": record(event(lines(900)), "content-type", "application/cloudevents+json"),
		"batched/50x1KB": record("["+strings.Repeat(event(lines(14))+",", 49)+event(lines(14))+"]", "content-type",
			"application/cloudevents-batch+json"),
	} {
		b.Run(name, func(b *testing.B) {
			d, err := envelope.NewDecoder(envelope.DecoderConfig{}, nil)
			require.NoError(b, err)
			b.SetBytes(int64(len(r.Value)))
			b.ReportAllocs()
			for b.Loop() {
				if received := d.Decode(channel, r); received.Err != nil {
					b.Fatal(received.Err)
				}
			}
		})
	}
}

func TestEmptyBatchHasNoMessages(t *testing.T) {
	received := decoder(t, envelope.DecoderConfig{}).Decode(channel,
		record(`[]`, "content-type", "application/cloudevents-batch+json"))
	require.NoError(t, received.Err)
	require.Empty(t, received.Messages)
}

func TestPlainModeIgnoresCloudEventHeaders(t *testing.T) {
	r := record("x", "ce_specversion", "9", "MessageId", "m", "MessageType", "t")
	require.Equal(t, "m", message(t, envelope.DecoderConfig{Mode: envelope.Plain}, r).ID)
}

func TestPanickingFunctionsMakeABadRecordNotACrash(t *testing.T) {
	m := message(t, envelope.DecoderConfig{Type: "t",
		ID: envelope.Func(func(envelope.IDInput) (string, error) { panic("oh") })}, record(""))
	require.ErrorContains(t, m.IDErr, "oh")
	received := decoder(t, envelope.DecoderConfig{Type: "t",
		OrderingKey: func(envelope.Record) []byte { panic("oh") }}).Decode(channel, record(""))
	require.ErrorContains(t, received.Err, "oh")
}

func TestConfigErrorsNameFieldValueAndAllowedValues(t *testing.T) {
	_, err := envelope.NewDecoder(envelope.DecoderConfig{Mode: "avro"}, nil)
	require.EqualError(t, err, `option Decoder.Mode = "avro": must be auto, cloudevents or plain`)
	_, err = envelope.NewDecoder(envelope.DecoderConfig{Type: strings.Repeat("x", 256)}, nil)
	require.EqualError(t, err, "option Decoder.Type has 256 characters: must have 0 to 255")
	_, err = envelope.NewDecoder(envelope.DecoderConfig{Source: "a\x00"}, nil)
	require.ErrorContains(t, err, "Source")
	require.NoError(t, envelope.DefaultDecoderConfig().Validate())
}

func TestMissingIDIsLoggedOncePerChannel(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	d, err := envelope.NewDecoder(envelope.DecoderConfig{Type: "t", AllowMissingID: true}, zap.New(core))
	require.NoError(t, err)
	for range 3 {
		received := d.Decode(channel, record(""))
		require.NoError(t, received.Messages[0].IDErr)
		require.Equal(t, "orders/3/42@1700000000123", received.Messages[0].ID)
		d.Decode("other", record(""))
	}
	require.Equal(t, 2, logs.Len())
}

func TestIDStrategies(t *testing.T) {
	event := []string{"ce_specversion", "1.0", "ce_id", "ce-1", "ce_source", "s", "ce_type", "t"}
	boom := errors.New("boom")
	for _, test := range []struct {
		name     string
		strategy envelope.IDStrategy
		headers  []string
		want     string
		err      error
	}{
		{"default plain", envelope.IDStrategy{}, []string{"MessageId", "m"}, "m", nil},
		{"header, other case", envelope.HeaderID(), []string{"messageid", "m"}, "m", nil},
		{"header, exact first", envelope.HeaderID(), []string{"MESSAGEID", "no", "MessageId", "m"}, "m", nil},
		{"Debezium", envelope.HeaderID(), []string{"id", "d-1"}, "d-1", nil},
		{"MessageId before Debezium", envelope.HeaderID(), []string{"id", "d-1", "messageID", "m"}, "m", nil},
		{"own header only", envelope.HeaderID("uid"), []string{"MessageId", "m", "id", "d"}, "", envelope.ErrMissingID},
		{"empty header", envelope.HeaderID(), []string{"MessageId", ""}, "", envelope.ErrMissingID},
		{"empty header before another", envelope.HeaderID(), []string{"MessageId", "", "MessageId", "m"}, "m", nil},
		{"empty header before one of other case", envelope.HeaderID(), []string{"MessageId", "", "messageid", "m"}, "m", nil},
		{"header twice", envelope.HeaderID(), []string{"MessageId", "first", "MessageId", "second"}, "first", nil},
		{"header of other cases twice", envelope.HeaderID(), []string{"messageID", "first", "MESSAGEID", "second"}, "first",
			nil},
		{"white space and quotes", envelope.HeaderID(), []string{"MessageId", " \"m\"\t\n"}, " \"m\"\t\n", nil},
		{"only white space", envelope.HeaderID(), []string{"MessageId", " "}, " ", nil},
		{"another name that is no text", envelope.HeaderID(), []string{"MessageId\xff", "no", "MessageId", "m"}, "m", nil},
		{"default CloudEvent", envelope.IDStrategy{}, append([]string{"MessageId", "m"}, event...), "ce-1", nil},
		{"header over CloudEvent", envelope.HeaderID(), append([]string{"MessageId", "m"}, event...), "m", nil},
		{"CloudEvents id of plain", envelope.CloudEventsID(), []string{"MessageId", "m"}, "", envelope.ErrMissingID},
		{"CloudEvent without id", envelope.IDStrategy{}, []string{"ce_specversion", "1.0", "ce_source", "s", "ce_type", "t"},
			"", envelope.ErrMissingID},
		{"correlation ID", envelope.CorrelationID(""), []string{"correlationid", "c"}, "orders.events:c", nil},
		{"own correlation ID", envelope.CorrelationID("X"), []string{"X", "c"}, "orders.events:c", nil},
		{"no correlation ID", envelope.CorrelationID(""), nil, "", envelope.ErrMissingID},
		{"Kafka key", envelope.KafkaKey(), nil, "orders.events:k-1", nil},
		{"coordinates", envelope.KafkaCoordinates(), nil, "orders/3/42@1700000000123", nil},
		{"function", envelope.Func(func(in envelope.IDInput) (string, error) {
			return string(in.Record.Value), nil
		}), nil, "body", nil},
		{"function of an event", envelope.Func(func(in envelope.IDInput) (string, error) {
			return in.Attributes["source"] + string(in.Data), nil
		}), event, "sbody", nil},
		{"source and id", envelope.SourceAndID(), event, "s ce-1", nil},
		{"source and id of plain", envelope.SourceAndID(), []string{"MessageId", "m"}, "", envelope.ErrMissingID},
		{"source without id", envelope.SourceAndID(), []string{"ce_specversion", "1.0", "ce_source", "s", "ce_type", "t"},
			"", envelope.ErrMissingID},
		{"source with a space", envelope.SourceAndID(), []string{"ce_specversion", "1.0", "ce_id", "c", "ce_source", "a b",
			"ce_type", "t"}, "", envelope.ErrMalformed},
		{"function without result", envelope.Func(func(envelope.IDInput) (string, error) { return "", nil }), nil, "",
			envelope.ErrMissingID},
		{"failing function", envelope.Func(func(envelope.IDInput) (string, error) { return "", boom }), nil, "", boom},
		{"not UTF-8", envelope.HeaderID(), []string{"MessageId", "\xff"}, "\xff", envelope.ErrBadID},
		{"NUL", envelope.HeaderID(), []string{"MessageId", "a\x00"}, "a\x00", envelope.ErrBadID},
		{"200 characters", envelope.HeaderID(), []string{"MessageId", strings.Repeat("ä", 200)}, strings.Repeat("ä", 200),
			nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := message(t, envelope.DecoderConfig{Type: "t", ID: test.strategy}, record("body", test.headers...))
			require.Equal(t, test.want, m.ID)
			if test.err == nil {
				require.NoError(t, m.IDErr)
			} else {
				require.ErrorIs(t, m.IDErr, test.err)
			}
		})
	}
	t.Run("201 characters", func(t *testing.T) {
		m := message(t, envelope.DecoderConfig{Type: "t"}, record("", "MessageId", strings.Repeat("ä", 201)))
		var long *envelope.IDTooLongError
		require.ErrorAs(t, m.IDErr, &long)
		require.Equal(t, 201, long.Length)
	})
	t.Run("a prefix counts", func(t *testing.T) {
		prefix := len(channel) + 1
		for _, strategy := range []envelope.IDStrategy{envelope.KafkaKey(), envelope.CorrelationID("")} {
			for _, length := range []int{200, 201} {
				value := strings.Repeat("ä", length-prefix)
				r := record("", "CorrelationId", value)
				r.Key = []byte(value)
				m := message(t, envelope.DecoderConfig{Type: "t", ID: strategy}, r)
				require.Equal(t, channel+":"+value, m.ID)
				if length == 200 {
					require.NoError(t, m.IDErr)
					continue
				}
				var long *envelope.IDTooLongError
				require.ErrorAs(t, m.IDErr, &long)
				require.Equal(t, 201, long.Length)
			}
		}
	})
	t.Run("a key that is no text", func(t *testing.T) {
		r := record("")
		r.Key = []byte{0xff, 0xfe}
		require.ErrorIs(t, message(t, envelope.DecoderConfig{Type: "t", ID: envelope.KafkaKey()}, r).IDErr, envelope.ErrBadID)
	})
	t.Run("no Kafka key", func(t *testing.T) {
		for _, key := range [][]byte{nil, {}} {
			r := record("")
			r.Key = key
			require.ErrorIs(t, message(t, envelope.DecoderConfig{Type: "t", ID: envelope.KafkaKey()}, r).IDErr,
				envelope.ErrMissingID)
		}
	})
}

func TestBatchedEventsNeverShareARecordsID(t *testing.T) {
	r := record(`[{"specversion":"1.0","id":"1","source":"s","type":"t"},{"specversion":"1.0","source":"s","type":"t"}]`,
		"content-type", "application/cloudevents-batch+json")
	received := decoder(t, envelope.DecoderConfig{ID: envelope.KafkaCoordinates()}).Decode(channel, r)
	for _, m := range received.Messages {
		require.ErrorIs(t, m.IDErr, envelope.ErrSharedID)
	}
	received = decoder(t, envelope.DecoderConfig{AllowMissingID: true}).Decode(channel, r)
	require.Equal(t, "1", received.Messages[0].ID)
	require.Equal(t, "orders/3/42@1700000000123#1", received.Messages[1].ID)
	require.NoError(t, received.Messages[1].IDErr)
}

// TestIDFunctionRunsForEachEventOfABatch proves contract 4.4.
func TestIDFunctionRunsForEachEventOfABatch(t *testing.T) {
	r := record(`[{"specversion":"1.0","id":"1","source":"a","type":"t","data":"x"},
		{"specversion":"1.0","id":"1","source":"b","type":"t","data":"y"},
		{"specversion":"1.0","id":"2","source":"b","type":"t","data":"y"}]`, "content-type",
		"application/cloudevents-batch+json")
	for name, each := range map[string]struct {
		find   func(in envelope.IDInput) string
		want   []string
		shared []bool
	}{
		"attributes": {func(in envelope.IDInput) string { return in.Attributes["source"] + "/" + in.Attributes["id"] },
			[]string{"a/1", "b/1", "b/2"}, []bool{false, false, false}},
		"record and place": {func(in envelope.IDInput) string { return fmt.Sprint(in.Record.Offset, "-", in.Index) },
			[]string{"42-0", "42-1", "42-2"}, []bool{false, false, false}},
		"data that two share": {func(in envelope.IDInput) string { return string(in.Data) },
			[]string{`"x"`, `"y"`, `"y"`}, []bool{false, true, true}},
		"record alone": {func(in envelope.IDInput) string { return string(in.Record.Key) },
			[]string{"k-1", "k-1", "k-1"}, []bool{true, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			received := decoder(t, envelope.DecoderConfig{ID: envelope.Func(func(in envelope.IDInput) (string, error) {
				return each.find(in), nil
			})}).Decode(channel, r)
			require.Len(t, received.Messages, 3)
			for i, m := range received.Messages {
				require.Equal(t, each.want[i], m.ID)
				require.Equal(t, i, m.Properties.Kafka.Index)
				require.Equal(t, each.shared[i], errors.Is(m.IDErr, envelope.ErrSharedID), "%v", m.IDErr)
			}
		})
	}
}

func TestSourceCountsTowardsTheIDLength(t *testing.T) {
	for length, long := range map[int]bool{200: false, 201: true} {
		source := strings.Repeat("s", 190)
		m := message(t, envelope.DecoderConfig{ID: envelope.SourceAndID()}, record("", "ce_specversion", "1.0", "ce_id",
			strings.Repeat("i", length-191), "ce_source", source, "ce_type", "t"))
		var tooLong *envelope.IDTooLongError
		require.Equal(t, long, errors.As(m.IDErr, &tooLong))
	}
}

func TestHeaderIDWithoutANameIsRefused(t *testing.T) {
	for _, strategy := range []envelope.IDStrategy{envelope.HeaderID(""), envelope.HeaderID("MessageId", " ")} {
		err := envelope.DecoderConfig{ID: strategy}.Validate()
		require.ErrorContains(t, err, "decoder ID: HeaderID has names")
		require.ErrorContains(t, err, "must be names of headers")
	}
	require.NoError(t, envelope.DecoderConfig{ID: envelope.HeaderID("MessageId")}.Validate())
	require.NoError(t, envelope.DecoderConfig{ID: envelope.HeaderID()}.Validate())
}

func TestMissingIDErrorNamesTheOptions(t *testing.T) {
	received := decoder(t, envelope.DecoderConfig{Type: "t"}).Decode(channel, record("x"))
	require.ErrorIs(t, received.Messages[0].IDErr, envelope.ErrMissingID)
	require.EqualError(t, received.Messages[0].IDErr,
		`message ID is missing: no header ["MessageId" "id"]: set option Decoder.ID to where it is, or Decoder.AllowMissingID`)
}
