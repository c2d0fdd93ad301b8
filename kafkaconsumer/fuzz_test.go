package kafkaconsumer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
)

// scriptedLog is a partition's log as producers with and without transactions write it, and the
// offsets that a reader of committed data must not see.
type scriptedLog struct {
	batches []written
	end     int64
	aborted []fetch.ResponseTransaction
	markers []int64 // where each of aborted ends
	hidden  map[int64]bool
}

// script writes one batch per byte of program. The byte chooses the kind of batch and its producer,
// how many records it has, and whether compaction has left a gap after it.
func script(program []byte) *scriptedLog {
	l := &scriptedLog{hidden: map[int64]bool{}}
	open := map[int64]int64{} // producer → where its transaction begins
	inside := map[int64][]int64{}
	for _, step := range program {
		producer := int64(step>>2&1) + 1
		begun, inTransaction := open[producer]
		switch step & 3 {
		case 0:
			l.data(-1, int64(step>>3&3))
		case 1:
			if !inTransaction {
				open[producer] = l.end
			}
			inside[producer] = append(inside[producer], l.data(producer, int64(step>>3&3))...)
		default: // 2 commits, 3 aborts
			if !inTransaction {
				continue
			}
			if step&3 == 3 {
				l.aborted = append(l.aborted, fetch.ResponseTransaction{ProducerID: producer, FirstOffset: begun})
				l.markers = append(l.markers, l.end)
				for _, offset := range inside[producer] {
					l.hidden[offset] = true
				}
			}
			l.marker(producer, byte(3-step&3))
			delete(open, producer)
			delete(inside, producer)
		}
		l.end += int64(step >> 6)
	}
	return l
}

// data writes a batch. With 0 records it is one that compaction has emptied.
func (l *scriptedLog) data(producer, count int64) (offsets []int64) {
	base := l.end
	w := written{layout: layout{base: base, producer: producer, transactional: producer >= 0, firstTime: base}}
	for i := range count {
		offsets = append(offsets, base+i)
		text := fmt.Appendf(nil, "%d", base+i)
		w.records = append(w.records, envelope.Record{Offset: base + i, Timestamp: time.UnixMilli(base + i), Key: text,
			Value:   []byte{},
			Headers: []handler.Header{{Key: "h", Value: text}}})
	}
	l.end += max(count, 1)
	w.last = l.end - 1
	if count > 0 {
		w.codec = compress.Compression(base % 5)
	}
	l.batches = append(l.batches, w)
	return offsets
}

func (l *scriptedLog) marker(producer int64, kind byte) {
	base := l.end
	l.end++
	l.hidden[base] = true
	l.batches = append(l.batches, written{
		layout: layout{base: base, last: base, producer: producer, transactional: true, control: true},
		records: []envelope.Record{{Offset: base, Timestamp: time.UnixMilli(0), Key: []byte{0, 0, 0, kind},
			Value: []byte{0, 0, 0, 0, 0, 0}}},
	})
}

// FuzzResponseShowsWhatIsCommitted checks responses that begin and end anywhere, even within a
// batch (contract 7.1). Of the records from the wanted one on, all come out in order that are data
// and not of an aborted transaction. Nothing that was passed is asked for again.
func FuzzResponseShowsWhatIsCommitted(f *testing.F) {
	f.Add([]byte{0x08, 0x09, 0x0d, 0x03, 0x10, 0x06, 0x09, 0x02}, int64(0), uint8(8), uint16(0))
	f.Add([]byte{0x11, 0x03, 0x11, 0x02, 0x11, 0x03, 0xc8}, int64(4), uint8(4), uint16(30))
	f.Add([]byte{0x00, 0x40, 0x01, 0x18, 0x03}, int64(2), uint8(200), uint16(1))
	f.Add([]byte{0x00, 0xc0, 0x00, 0x18}, int64(0), uint8(1), uint16(0))
	f.Add([]byte{0x18}, int64(0), uint8(1), uint16(30)) // the beginning of one batch
	f.Fuzz(func(t *testing.T, program []byte, wanted int64, limit uint8, cut uint16) {
		if len(program) > 200 || wanted < 0 {
			return
		}
		l := script(program)
		var (
			content            []byte
			sent, whole, first int
			last               = int64(-1)
		)
		expected, next := []int64{}, wanted
		var batches []written
		for _, w := range l.batches {
			if w.last < wanted || sent == int(limit) {
				continue
			}
			encoded := w.bytes(t)
			if sent == 0 {
				first = len(encoded)
			}
			sent++
			content, batches = append(content, encoded...), append(batches, w)
		}
		content = content[:len(content)-min(int(cut), len(content)-min(len(content), 1))]
		for size, i := 0, 0; i < len(batches); i++ {
			if size += len(batches[i].bytes(t)); size > len(content) {
				break // cut off
			}
			whole++
			for _, r := range batches[i].records {
				if r.Offset >= wanted && !l.hidden[r.Offset] {
					expected = append(expected, r.Offset)
				}
			}
			last = batches[i].last
			next = max(next, last+1)
		}
		var aborted []fetch.ResponseTransaction
		for i, transaction := range l.aborted { // those that touch the response
			if l.markers[i] >= wanted && transaction.FirstOffset <= last {
				aborted = append(aborted, transaction)
			}
		}
		out := deliver(t, content, wanted, aborted, func(c *Config) { c.BatchRecords, c.FetchMaxBytes = 2, 1 })
		require.NoError(t, out.err)
		if len(content) > 0 && whole == 0 && len(content) >= prefixLength {
			require.Equal(t, first, out.ask, "a batch that is cut off is asked for")
		}
		found := []int64{}
		for _, r := range out.records {
			found = append(found, r.Offset)
			text := fmt.Sprint(r.Offset)
			require.Equal(t, text, string(r.Key))
			require.True(t, r.Value != nil && len(r.Value) == 0)
			require.Equal(t, text, string(r.Headers[0].Value))
			require.Equal(t, 3, r.Partition)
			require.Equal(t, time.UnixMilli(r.Offset).UTC(), r.Timestamp)
		}
		require.Equal(t, expected, found)
		require.Equal(t, next, out.next)
		require.IsIncreasing(t, append([]int64{wanted - 1}, out.bounds...))
		require.Zero(t, out.left)
	})
}

// FuzzRecordsRoundTrip checks that the content of records comes out as it was
// written, whatever their batch's compression and time, including batches that kafka-go wrote.
func FuzzRecordsRoundTrip(f *testing.F) {
	f.Add([]byte("key"), []byte("value"), "header", []byte("content"), uint8(0), int64(1700000000000), int64(5), uint8(3))
	f.Add([]byte{}, []byte(nil), "", []byte{}, uint8(0x1f), int64(-1), int64(0), uint8(1))
	f.Add(bytes.Repeat([]byte("0"), 100_000), []byte{0}, "h", []byte(nil), uint8(0x2c), int64(1<<50), int64(1<<40),
		uint8(1))
	f.Fuzz(func(t *testing.T, key, value []byte, name string, content []byte, shape uint8, at, base int64, count uint8) {
		if base < 0 || base > 1<<62 || at < -1<<61 || at > 1<<61 || count == 0 ||
			int(count)*(len(key)+len(value)+len(content)) > 1<<17 {
			return
		}
		w := written{layout: layout{base: base, last: base + 3*int64(count), codec: compress.Compression(shape % 5),
			appended:  shape&0x08 != 0,
			firstTime: at, maxTime: at + 77, producer: -1, epoch: 7}}
		var want []envelope.Record
		for i := range int64(count) {
			r := envelope.Record{Offset: base + 3*i, Timestamp: time.UnixMilli(at - i).UTC(), Key: key, Value: value}
			if shape&0x10 != 0 {
				r.Key = nil
			}
			if shape&0x20 != 0 {
				r.Value = nil
			}
			if i%2 == 1 {
				r.Headers = []handler.Header{{Key: name, Value: content}, {Key: name, Value: nil}}
			}
			w.records = append(w.records, r)
			if r.Topic, r.Partition = "t", 3; w.appended {
				r.Timestamp = time.UnixMilli(at + 77).UTC()
			}
			want = append(want, r)
		}
		out := deliver(t, w.bytes(t), base, nil, nil)
		require.NoError(t, out.err)
		require.Equal(t, want, out.records)
		require.Equal(t, int32(7), out.epoch)
		require.Equal(t, w.last+1, out.next)

		var records []protocol.Record // kafka-go knows no offsets, no times before 1970 and no append time
		at = max(at, 1)
		for i := range want {
			want[i].Offset, want[i].Timestamp = int64(i), time.UnixMilli(at).UTC()
			r := protocol.Record{Time: time.UnixMilli(at)}
			if want[i].Key != nil {
				r.Key = protocol.NewBytes(want[i].Key)
			}
			if want[i].Value != nil {
				r.Value = protocol.NewBytes(want[i].Value)
			}
			for _, h := range want[i].Headers {
				r.Headers = append(r.Headers, protocol.Header{Key: h.Key, Value: h.Value})
			}
			records = append(records, r)
		}
		if at > 1<<42 { // nor such late times
			return
		}
		var encoded bytes.Buffer
		set := protocol.RecordSet{Version: 2, Attributes: protocol.Attributes(w.codec),
			Records: protocol.NewRecordReader(records...)}
		_, err := set.WriteTo(&encoded)
		require.NoError(t, err)
		out = deliver(t, encoded.Bytes()[4:], 0, nil, nil)
		require.NoError(t, out.err)
		require.Equal(t, want, out.records)
	})
}

// FuzzResponseOfAnyBytes checks that bytes that are no batches are an error and never a panic. They
// take no more memory than MaxBatchBytes and some for the codecs, and never move the consumer
// backwards.
func FuzzResponseOfAnyBytes(f *testing.F) {
	for codec := range compress.Compression(5) {
		w := written{layout: layout{base: 5, last: 9, codec: codec, producer: -1}}
		for i := range int64(3) {
			w.records = append(w.records, envelope.Record{Offset: 5 + i, Timestamp: time.UnixMilli(1), Key: []byte("k"),
				Value:   []byte("v"),
				Headers: []handler.Header{{Key: "h", Value: []byte("v")}}})
		}
		f.Add(w.bytes(f), int64(5), false)
		f.Add(w.bytes(f), int64(6), true)
	}
	for _, bomb := range bombs() {
		f.Add(bomb, int64(0), false)
	}
	f.Add(bytes.Repeat([]byte{1}, 61), int64(0), true)
	f.Fuzz(func(t *testing.T, content []byte, wanted int64, repair bool) {
		if wanted < 0 || wanted > 1<<62 || len(content) > 4096 {
			return
		}
		if repair {
			content = bytes.Clone(content) // the original belongs to the fuzzer
			repaired(content)
		}
		const limit, codecs = 1 << 20, 40 << 20
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		out := deliver(t, content, wanted, nil, func(c *Config) { c.MaxBatchBytes = limit })
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(codecs))
		require.GreaterOrEqual(t, out.next, wanted)
		require.Zero(t, out.left)
		previous := wanted - 1
		for _, r := range out.records {
			require.Greater(t, r.Offset, previous)
			require.Less(t, r.Offset, out.next)
			previous = r.Offset
		}
		var epoch *EpochError
		if out.err != nil && !errors.As(out.err, &epoch) && !errors.Is(out.err, io.ErrUnexpectedEOF) {
			require.ErrorIs(t, out.err, ErrUnreadable)
			require.NotContains(t, out.err.Error(), "panicked")
		}
	})
}

// repaired gives the bytes the length and checksum of one batch. Without these, nothing after them
// would ever be read.
func repaired(content []byte) {
	if len(content) < prefixLength+headerLength {
		return
	}
	binary.BigEndian.PutUint32(content[8:], uint32(len(content)-prefixLength))
	binary.BigEndian.PutUint32(content[17:], crc32.Checksum(content[21:], checksums))
}
