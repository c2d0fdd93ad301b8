package envelope_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
)

const (
	structuredType = "application/cloudevents+json"
	batchedType    = "application/cloudevents-batch+json"
)

// event returns a JSON event with n attributes, at least 4, and this data.
func event(id, n int, data string) string {
	var out strings.Builder
	fmt.Fprintf(&out, `{"specversion":"1.0","id":"%d","source":"s","type":"t"`, id)
	for i := range n - 4 {
		fmt.Fprintf(&out, `,"a%d":"v"`, i)
	}
	return out.String() + `,"data":` + data + `}`
}

func eventsOfJSON(n int, one func(id int) string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = one(i)
	}
	return "[" + strings.Join(all, " , ") + "]"
}

func binaryEventOf(n int) envelope.Record {
	r := record("x", "ce_specversion", "1.0", "ce_id", "1", "ce_source", "s", "ce_type", "t")
	for i := range n - 4 {
		r.Headers = append(r.Headers, handler.Header{Key: fmt.Sprintf("ce_a%d", i), Value: []byte("v")})
	}
	return r
}

func headersOf(n int) envelope.Record {
	r := record("x", "MessageType", "t", "MessageId", "1")
	for range n - 2 {
		r.Headers = append(r.Headers, handler.Header{})
	}
	return r
}

// TestRecordsAreBadJustBeyondTheirBounds proves contract 4.5.
func TestRecordsAreBadJustBeyondTheirBounds(t *testing.T) {
	nested := `{"a":[1,2,{"b":"}],,,\"{"}],"c":",","d":[]}`
	batchOf := func(n int) envelope.Record {
		return record(eventsOfJSON(n, func(id int) string { return event(id, 4, nested) }), "content-type", batchedType)
	}
	for name, test := range map[string]struct {
		option      string
		cfg         envelope.DecoderConfig
		fits, above envelope.Record
	}{
		"headers":      {"MaxHeaders (1000)", envelope.DecoderConfig{}, headersOf(1000), headersOf(1001)},
		"headers, set": {"MaxHeaders (3)", envelope.DecoderConfig{MaxHeaders: 3}, headersOf(3), headersOf(4)},
		"events":       {"MaxEvents (10000)", envelope.DecoderConfig{}, batchOf(10_000), batchOf(10_001)},
		"events, set":  {"MaxEvents (1)", envelope.DecoderConfig{MaxEvents: 1}, batchOf(1), batchOf(2)},
		"attributes in headers": {"MaxAttributes (100)", envelope.DecoderConfig{}, binaryEventOf(100),
			binaryEventOf(101)},
		"attributes in JSON": {"MaxAttributes (100)", envelope.DecoderConfig{},
			record(event(1, 100, nested), "content-type", structuredType),
			record(event(1, 101, nested), "content-type", structuredType)},
		"attributes in JSON, no data": {"MaxAttributes (4)", envelope.DecoderConfig{MaxAttributes: 4},
			record(event(1, 4, "null"), "content-type", structuredType),
			record(strings.Replace(event(1, 5, "1"), `,"data":1`, "", 1), "content-type", structuredType)},
		"attributes of one of several": {"MaxAttributes (5)", envelope.DecoderConfig{MaxAttributes: 5},
			record("["+event(1, 5, "1")+","+event(2, 5, "1")+"]", "content-type", batchedType),
			record("["+event(1, 5, "1")+","+event(2, 6, "1")+"]", "content-type", batchedType)},
		"bytes": {"MaxRecordBytes", envelope.DecoderConfig{Type: "t", MaxRecordBytes: 2000},
			record(strings.Repeat("x", 1700)), record(strings.Repeat("x", 2000))},
		"bytes by default": {"MaxRecordBytes", envelope.DecoderConfig{Type: "t"},
			record(strings.Repeat("x", 16<<20-1000)), record(strings.Repeat("x", 16<<20))},
		// Every event is stored with the record's headers.
		"bytes by events": {"MaxRecordBytes", envelope.DecoderConfig{MaxRecordBytes: 100 << 10},
			record(eventsOfJSON(8, func(id int) string {
				return event(id, 4, "1")
			}), "content-type", batchedType, "h", strings.Repeat("x", 10<<10)),
			record(eventsOfJSON(11, func(id int) string {
				return event(id, 4, "1")
			}), "content-type", batchedType, "h", strings.Repeat("x", 10<<10))},
		"a media type's parameters": {"content type", envelope.DecoderConfig{},
			record(event(1, 4, "1"), "content-type", structuredType+strings.Repeat(";", 255-len(structuredType))),
			record(event(1, 4, "1"), "content-type", structuredType+strings.Repeat(";", 256-len(structuredType)))},
		"a datacontenttype's": {"content type", envelope.DecoderConfig{},
			record(strings.Replace(event(1, 4, "1"), `"data"`, `"datacontenttype":"application/json`+strings.Repeat(";", 200)+
				`","data"`, 1), "content-type", structuredType),
			record(strings.Replace(event(1, 4, "1"), `"data"`, `"datacontenttype":"application/json`+strings.Repeat(";", 300)+
				`","data"`, 1), "content-type", structuredType)},
	} {
		d := decoder(t, test.cfg)
		received := d.Decode(channel, test.fits)
		require.NotErrorIs(t, received.Err, envelope.ErrTooLarge, name)
		require.LessOrEqual(t, received.Size()-test.fits.Size(), d.SizeBound(test.fits), name)
		require.Zero(t, testing.AllocsPerRun(1, func() { d.SizeBound(test.fits) }), name)
		received = d.Decode(channel, test.above)
		require.ErrorIs(t, received.Err, envelope.ErrTooLarge, name)
		require.ErrorContains(t, received.Err, test.option, name)
		require.Empty(t, received.Messages, name)
		require.Equal(t, test.above, received.Record, "%s: it is kept as it is", name)
	}
}

// TestHugeCountsAllocateNoMemory proves contract 7.2: what a record claims is counted before it
// takes memory.
func TestHugeCountsAllocateNoMemory(t *testing.T) {
	const n = 1_000_000
	many := func(before, one, after string) string {
		return before + strings.TrimPrefix(strings.Repeat(one, n), ",") + after
	}
	cfg := envelope.DecoderConfig{MaxRecordBytes: 1 << 30}
	for name, r := range map[string]envelope.Record{
		"events":     record(many("[", ",{}", "]"), "content-type", batchedType),
		"attributes": record(many("{", `,"a":0`, "}"), "content-type", structuredType),
		"parameters": record("{}", "content-type", many(structuredType+";", "a=0;", "")),
		"bytes":      record(strings.Repeat("x", 17<<20), "MessageType", "t"),
	} {
		if name == "bytes" {
			cfg.MaxRecordBytes = 0
		}
		d := decoder(t, cfg)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		d.SizeBound(r)
		received := d.Decode(channel, r)
		runtime.ReadMemStats(&after)
		require.ErrorIs(t, received.Err, envelope.ErrTooLarge, name)
		require.Less(t, len(received.Err.Error()), 1000, name)
		allowed := uint64(1 << 20)
		if name == "parameters" {
			allowed = 20 << 20 // its text, a few times
		}
		require.Less(t, after.TotalAlloc-before.TotalAlloc, allowed, name)
	}
}

// rawHeaders returns headers in Kafka's record format.
func rawHeaders(headers []handler.Header) []byte {
	raw := binary.AppendVarint(nil, int64(len(headers)))
	for _, h := range headers {
		raw = append(binary.AppendVarint(raw, int64(len(h.Key))), h.Key...)
		if h.Value == nil {
			raw = binary.AppendVarint(raw, -1)
			continue
		}
		raw = append(binary.AppendVarint(raw, int64(len(h.Value))), h.Value...)
	}
	return raw
}

// TestUnreadHeadersAreReadOnceTheBoundAllows proves contract 7.4: a rejected record is accepted
// again once the bound is raised.
func TestUnreadHeadersAreReadOnceTheBoundAllows(t *testing.T) {
	whole := record("x", "MessageType", "t", "MessageId", "1", "", "")
	whole.Headers = append(whole.Headers, handler.Header{Key: "null"})
	r := whole
	r.Headers, r.RawHeaders = nil, rawHeaders(whole.Headers)
	require.Equal(t, whole.Headers, message(t, envelope.DecoderConfig{}, whole).Properties.Headers)

	received := decoder(t, envelope.DecoderConfig{MaxHeaders: 3}).Decode(channel, r)
	require.ErrorIs(t, received.Err, envelope.ErrTooLarge)
	require.Equal(t, r, received.Record)

	d := decoder(t, envelope.DecoderConfig{MaxHeaders: 4})
	received = d.Decode(channel, r)
	require.NoError(t, received.Err)
	require.Equal(t, whole, received.Record)
	require.Equal(t, d.Decode(channel, whole), received)

	for i := range r.RawHeaders {
		cut := r
		cut.RawHeaders = r.RawHeaders[:i]
		require.Error(t, d.Decode(channel, cut).Err, i)
	}
	more := r
	more.RawHeaders = append(bytes.Clone(r.RawHeaders), 0)
	require.Error(t, d.Decode(channel, more).Err)
}

func TestBoundsOutOfRangeAreRefused(t *testing.T) {
	for field, cfg := range map[string]envelope.DecoderConfig{
		"MaxHeaders = -1": {MaxHeaders: -1}, "MaxEvents = -1": {MaxEvents: -1},
		"MaxAttributes = -1": {MaxAttributes: -1}, "MaxRecordBytes = 1073741825": {MaxRecordBytes: 1<<30 + 1},
	} {
		require.ErrorContains(t, cfg.Validate(), "option Decoder."+field)
	}
}

// TestHeaderSizeIsCountedAsStored proves contract 4.5: a message is stored with its
// record's headers, as JSON.
func TestHeaderSizeIsCountedAsStored(t *testing.T) {
	const event = `{"specversion":"1.0","id":"i","source":"s","type":"t"}`
	batch := "[" + strings.Repeat(event+",", 3_999) + event + "]"
	for name, c := range map[string]struct {
		header string
		times  int
		large  bool
	}{"some text": {"aaaa", 100, false}, "nothing in many": {"", 500, true},
		"what JSON escapes": {strings.Repeat("\x01", 800), 1, true}} {
		r := record(batch, "content-type", batchedType)
		for range c.times {
			r.Headers = append(r.Headers, handler.Header{Value: []byte(c.header)})
		}
		received := decoder(t, envelope.DecoderConfig{}).Decode(channel, r)
		require.Equal(t, c.large, errors.Is(received.Err, envelope.ErrTooLarge), "%s: %v", name, received.Err)
		require.Equal(t, c.large, received.Err != nil, "%s: %v", name, received.Err)
	}
}

// TestSingleAndBatchedEventsHaveTheSameBounds proves contract 4.5.
func TestSingleAndBatchedEventsHaveTheSameBounds(t *testing.T) {
	event := `{"specversion":"1.0","id":"i","source":"s","type":"t","data":"` + strings.Repeat("x", 600) + `"}`
	for name, r := range map[string]envelope.Record{
		"batch":      record("["+event+"]", "content-type", batchedType),
		"structured": record(event, "content-type", structuredType),
		"binary": record("x", "ce_specversion", "1.0", "ce_id", "i", "ce_source", "s", "ce_type", "t", "ce_long",
			strings.Repeat("x", 600)),
	} {
		received := decoder(t, envelope.DecoderConfig{MaxRecordBytes: 1024}).Decode(channel, r)
		require.ErrorIs(t, received.Err, envelope.ErrTooLarge, name)
		require.NoError(t, decoder(t, envelope.DecoderConfig{MaxRecordBytes: 8 << 10}).Decode(channel, r).Err, name)
	}
}
