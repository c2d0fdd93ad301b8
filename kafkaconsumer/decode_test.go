package kafkaconsumer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/compress"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/kafkaclient"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
)

// TestOversizedHeadersStayUnparsed proves contract 4.5: the number that a record claims
// never sizes an allocation, and nothing of the record is lost.
func TestOversizedHeadersStayUnparsed(t *testing.T) {
	headers := []handler.Header{{Key: "a", Value: []byte("1")}, {Key: "", Value: nil}, {Key: "a", Value: []byte{}}}
	for limit, whole := range map[int]bool{2: false, 3: true} {
		w := written{layout: layout{base: 5, last: 6}, records: []envelope.Record{
			{Offset: 5, Timestamp: time.UnixMilli(0).UTC(), Value: []byte("v"), Headers: headers},
			{Offset: 6, Timestamp: time.UnixMilli(0).UTC(), Headers: headers[:2]},
		}}
		out := deliver(t, w.bytes(t), 5, nil, func(c *Config) { c.Decoder.MaxHeaders = limit })
		require.NoError(t, out.err)
		require.Len(t, out.records, 2)
		require.Equal(t, headers[:2], out.records[1].Headers)
		require.Nil(t, out.records[1].RawHeaders)
		first := out.records[0]
		if !whole {
			require.Nil(t, first.Headers)
			decoder, err := envelope.NewDecoder(envelope.DecoderConfig{Type: "t"}, nil)
			require.NoError(t, err)
			first = decoder.Decode("c", first).Record
		}
		require.Equal(t, headers, first.Headers)
		require.Nil(t, first.RawHeaders)
		require.Zero(t, out.left)
	}
}

func TestOldMessageFormatHaltsByName(t *testing.T) {
	for magic := range byte(2) {
		message := make([]byte, 34)
		message[7], message[11], message[formatAt] = 9, 22, magic
		out := deliver(t, message, 0, nil, nil)
		require.ErrorIs(t, out.err, ErrUnreadable)
		require.ErrorContains(t, out.err, "the checksum of the message at offset 9 is wrong",
			"a flipped bit is not taken for a format")
		binary.BigEndian.PutUint32(message[oldChecksumAt:], crc32.ChecksumIEEE(message[formatAt:]))
		out = deliver(t, message, 0, nil, nil)
		require.ErrorIs(t, out.err, ErrUnreadable)
		require.ErrorContains(t, out.err, fmt.Sprintf("the message at offset 9 is in format %d, of before Kafka 0.11", magic))
		require.Empty(t, out.records)
	}
}

// claim returns a batch with this header and content.
func claim(codec compress.Compression, count uint32, content []byte) []byte {
	checked := make([]byte, 40, 40+len(content))
	checked[1] = byte(codec)
	binary.BigEndian.PutUint32(checked[2:], 1<<20)
	binary.BigEndian.PutUint32(checked[36:], count)
	return framed(0, 0, append(checked, content...))
}

// bombs returns inputs of a few bytes each that claim, or become, very much.
func bombs() map[string][]byte {
	oneHeaderOf := func(n int64) []byte {
		record := binary.AppendVarint([]byte{0, 0, 0, 1, 1}, n)
		return append(binary.AppendVarint(nil, int64(len(record))), record...)
	}
	repeated := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x88} // a window of 128 MiB
	for range 100 {
		repeated = append(repeated, 0x02, 0x00, 0x10, 'x') // 128 KiB of the same byte
	}
	repeated = append(repeated, 0x01, 0, 0)
	return map[string][]byte{
		"records": claim(compress.None, 1<<31-1, []byte("short")),
		"headers": claim(compress.None, 1, oneHeaderOf(1<<40)),
		"value":   claim(compress.None, 1, []byte{20, 0, 0, 0, 1, 0xfe, 0xff, 0xff, 0xff, 0x0f}),
		"a zstd frame's content": claim(compress.Zstd, 1,
			[]byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 1, 0, 0, 0, 0x01, 0, 0}),
		"a zstd frame's window": claim(compress.Zstd, 1, []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x09, 0, 0, 'x'}),
		"the zstd frame behind": claim(compress.Zstd, 1, append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58, 0x01, 0, 0},
			0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 1, 0, 0, 0, 0x01, 0, 0)),
		"what zstd becomes": claim(compress.Zstd, 1, repeated),
		"a snappy block":    claim(compress.Snappy, 1, []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0}),
		"a framed snappy block": claim(compress.Snappy, 1,
			append([]byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1}, 0x7f, 0xff, 0xff, 0xff, 1)),
		"what is in a snappy frame": claim(compress.Snappy, 1, append([]byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0, 0, 0, 0,
			1, 0, 0, 0, 1}, 0, 0, 0, 6, 0xff, 0xff, 0xff, 0xff, 0x0f, 0)),
	}
}

func TestDeclaredSizeOfABatchAllocatesNoMemory(t *testing.T) {
	for name, content := range bombs() {
		t.Run(name, func(t *testing.T) {
			const limit = 8 << 20
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			out := deliver(t, content, 0, nil, func(c *Config) { c.MaxBatchBytes = limit })
			runtime.ReadMemStats(&after)
			require.ErrorIs(t, out.err, ErrUnreadable)
			require.NotContains(t, out.err.Error(), "panicked")
			require.Empty(t, out.records)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4*limit))
		})
	}
}

func TestBatchLargerThanMaxBatchBytesHaltsByName(t *testing.T) {
	const limit = 300_000
	size := func(w written, value int) written {
		w.records = []envelope.Record{{Offset: 1, Timestamp: time.UnixMilli(0),
			Value: bytes.Repeat([]byte("abcdefgh"), value/8)}}
		return w
	}
	for codec := range compress.Compression(5) {
		t.Run(codec.String(), func(t *testing.T) {
			good := written{layout: layout{base: 0, last: 0},
				records: []envelope.Record{{Timestamp: time.UnixMilli(0), Value: []byte("v")}}}
			w := written{layout: layout{base: 1, last: 1, codec: codec}}
			smaller := func(c *Config) { c.MaxBatchBytes = limit }
			out := deliver(t, append(good.bytes(t), size(w, limit+8).bytes(t)...), 0, nil, smaller)
			require.ErrorIs(t, out.err, ErrUnreadable)
			require.ErrorContains(t, out.err, "MaxBatchBytes (300000)")
			require.Len(t, out.records, 1, "what is before it is not lost")
			require.Equal(t, int64(1), out.next)
			require.Zero(t, out.left)
			out = deliver(t, size(w, limit-200).bytes(t), 0, nil, smaller)
			require.NoError(t, out.err)
			require.Len(t, out.records, 1)
		})
	}
}

func TestDamagedBatchesAreReportedWithoutRecords(t *testing.T) {
	record := func(offset int64) envelope.Record {
		return envelope.Record{Offset: offset, Timestamp: time.UnixMilli(0), Value: []byte("v")}
	}
	good := written{layout: layout{base: 0, last: 9}, records: []envelope.Record{record(0), record(9)}}
	whole := good.bytes(t)
	flipped := func(at int) []byte {
		content := bytes.Clone(whole)
		content[at] ^= 1
		return content
	}
	hides := claim(compress.None, 0, []byte{12, 0, 0, 0, 1, 1, 0})
	for name, content := range map[string][]byte{
		"a flipped bit of a record":   flipped(len(whole) - 1),
		"a flipped bit of the header": flipped(24),
		"an unknown format":           flipped(formatAt),
		"an unknown codec":            claim(7, 1, []byte("content")),
		"a record behind the last": written{layout: layout{base: 0, last: 3},
			records: []envelope.Record{record(0), record(4)}}.bytes(t),
		"records out of order": written{layout: layout{base: 0, last: 9},
			records: []envelope.Record{record(5), record(4)}}.bytes(t),
		"fewer records than it says":   claim(compress.None, 2, []byte{12, 0, 0, 0, 1, 1, 0}),
		"a record that is not counted": hides,
		"records that are not counted": claim(compress.None, 1, []byte{12, 0, 0, 0, 1, 1, 0, 12, 0, 0, 2, 1, 1, 0}),
		"a control record without type": written{layout: layout{base: 0, last: 0, control: true},
			records: []envelope.Record{{Timestamp: time.UnixMilli(0), Key: []byte{0}}}}.bytes(t),
		"a length that is none": bytes.Repeat([]byte{0xff}, 100),
	} {
		t.Run(name, func(t *testing.T) {
			out := deliver(t, content, 0, nil, nil)
			require.ErrorIs(t, out.err, ErrUnreadable)
			require.NotContains(t, out.err.Error(), "panicked")
			require.Empty(t, out.records)
			require.Zero(t, out.next)
		})
	}
	t.Run("the same but for the count", func(t *testing.T) { // otherwise the others would prove nothing
		require.NoError(t, deliver(t, claim(compress.None, 1, []byte{12, 0, 0, 0, 1, 1, 0}), 0, nil, nil).err)
	})
	t.Run("a batch that ends before the requested offset", func(t *testing.T) {
		require.ErrorIs(t, deliver(t, whole, 10, nil, nil).err, ErrUnreadable)
	})
	t.Run("records before it are shown", func(t *testing.T) {
		second := written{layout: layout{base: 10, last: 10}, records: []envelope.Record{record(10)}}.bytes(t)
		second[len(second)-1] ^= 1
		out := deliver(t, append(bytes.Clone(whole), second...), 0, nil, nil)
		require.ErrorIs(t, out.err, ErrUnreadable)
		require.Len(t, out.records, 2)
		require.Equal(t, int64(10), out.next)
	})
}

func TestRepeatedEpochFallHaltsUnderAnyPolicy(t *testing.T) {
	_, err := (&fetcher{partition: &partition{topic: "t", id: 1}, fell: EpochError{From: 2, To: 1}}).describeGap(7,
		&EpochError{From: 2, To: 1})
	require.ErrorContains(t, err, "each time")
	gap, err := (&fetcher{partition: &partition{topic: "t", id: 1}}).describeGap(7, &EpochError{From: 2, To: 1, First: 3})
	require.NoError(t, err)
	require.Equal(t, []int64{7, 3}, []int64{gap.From, gap.To})
}

func TestPanicOutsideABatchIsAnError(t *testing.T) {
	f := &fetcher{partition: newPartition(t.Context(), "t", 1, 0), buffer: kafkawire.NewBudget(1)} // no network
	next, _, err := f.fetchOnce(5)
	require.ErrorIs(t, err, ErrUnreadable)
	require.Equal(t, int64(5), next)
	require.Zero(t, f.buffer.Bytes())
}

// TestRecordThatCannotBeDecodedYetIsFetchedAgain proves contract 4.5, 7.2: what comes before the record is passed on,
// nothing passes the record, and no memory is kept meanwhile.
func TestRecordThatCannotBeDecodedYetIsFetchedAgain(t *testing.T) {
	w := written{layout: layout{base: 5, last: 7}}
	for offset := int64(5); offset < 8; offset++ {
		w.records = append(w.records, envelope.Record{Offset: offset, Timestamp: time.UnixMilli(0), Value: []byte("v")})
	}
	cfg := Config{}.withDefaults()
	buffer, out := kafkawire.NewBudget(cfg.BufferBytes), make(chan *chunk, 2)
	available := false
	f := &fetcher{
		shared:    &shared{network: &network{inflater: kafkawire.NewInflater(cfg.MaxBatchBytes)}, cfg: cfg},
		partition: newPartition(t.Context(), "t", 3, 5), buffer: buffer, out: out,
		sizeBound: func(envelope.Record) int { return 0 },
		decode: func(r envelope.Record) envelope.Received {
			if r.Offset == 6 && !available {
				return envelope.Received{Record: r, Err: fmt.Errorf("registry: %w: %w", envelope.ErrUnavailable, io.EOF)}
			}
			return envelope.Received{Record: r}
		},
	}
	read := func(from int64) (next int64, err error) {
		held := buffer.NewHold()
		defer held.End()
		d := &responseReader{fetcher: f, held: held, response: &kafkawire.Response{Records: w.bytes(t)}, wanted: from,
			next: from, chunk: f.newChunk()}
		err = d.run()
		return d.sent, err
	}

	next, err := read(5)
	require.EqualError(t, err, "decode the record at offset 6: registry: temporarily unavailable: EOF")
	require.False(t, fatal(err) || kafkaclient.Lost(err), "it is an error neither of the log nor of a broker")
	require.EqualValues(t, 6, next)
	first := <-out
	require.Len(t, first.received, 1)
	require.Equal(t, first.bytes, buffer.Bytes(), "only what is passed on is held")
	next, err = read(6)
	require.Error(t, err)
	require.EqualValues(t, 6, next)
	require.Empty(t, out)

	available = true
	next, err = read(6)
	require.NoError(t, err)
	require.EqualValues(t, 8, next)
	rest := <-out
	require.Len(t, rest.received, 2)
	require.NoError(t, rest.received[0].Err)
}
