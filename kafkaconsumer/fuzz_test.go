package kafkaconsumer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/stretchr/testify/require"
)

// scriptedLog is a partition's log as producers with and without transactions
// write it, and which of its offsets a reader of committed data must see.
type scriptedLog struct {
	batches []scriptedBatch
	end     int64
	aborted []fetch.ResponseTransaction
	markers []int64 // where each of aborted ends
	hidden  map[int64]bool
}

type scriptedBatch struct {
	base, last int64
	read       func() protocol.RecordReader
}

// script writes one batch per byte: what it is and for whom, how many records,
// and whether compaction has left a gap behind it.
func script(program []byte) *scriptedLog {
	l := &scriptedLog{hidden: map[int64]bool{}}
	open := map[int64]int64{} // producer → where its transaction begins
	written := map[int64][]int64{}
	for _, step := range program {
		producer := int64(step>>2&1) + 1
		begun, inTransaction := open[producer]
		switch step & 3 {
		case 0:
			l.data(-1, 0, int64(step>>3&3))
		case 1:
			if !inTransaction {
				open[producer] = l.end
			}
			written[producer] = append(written[producer], l.data(producer, protocol.Transactional, int64(step>>3&3))...)
		default: // 2 commits, 3 aborts
			if !inTransaction {
				continue
			}
			if step&3 == 3 {
				l.aborted = append(l.aborted, fetch.ResponseTransaction{ProducerID: producer, FirstOffset: begun})
				l.markers = append(l.markers, l.end)
				for _, offset := range written[producer] {
					l.hidden[offset] = true
				}
			}
			l.marker(producer, int16(3-step&3))
			delete(open, producer)
			delete(written, producer)
		}
		l.end += int64(step >> 6)
	}
	return l
}

// data writes a batch; with 0 records it is one that compaction has emptied.
func (l *scriptedLog) data(producer int64, attributes protocol.Attributes, count int64) (offsets []int64) {
	base := l.end
	for i := range count {
		offsets = append(offsets, base+i)
	}
	l.end += max(count, 1)
	l.batches = append(l.batches, scriptedBatch{base: base, last: l.end - 1, read: func() protocol.RecordReader {
		records := make([]protocol.Record, 0, count)
		for _, offset := range offsets {
			text := fmt.Appendf(nil, "%d", offset)
			records = append(records, protocol.Record{
				Offset: offset, Time: time.UnixMilli(offset), Key: protocol.NewBytes(text), Value: protocol.NewBytes(nil),
				Headers: []protocol.Header{{Key: "h", Value: text}},
			})
		}
		return &protocol.RecordBatch{Attributes: attributes, BaseOffset: base, ProducerID: producer, Records: protocol.NewRecordReader(records...)}
	}})
	return offsets
}

func (l *scriptedLog) marker(producer int64, kind int16) {
	base := l.end
	l.end++
	l.hidden[base] = true
	l.batches = append(l.batches, scriptedBatch{base: base, last: base, read: func() protocol.RecordReader {
		batch := protocol.NewControlBatch(protocol.ControlRecord{Offset: base, Type: kind, Data: []byte{}})
		batch.BaseOffset, batch.ProducerID = base, producer
		return batch
	}})
}

// A response may begin and end anywhere: of the records in it from the wanted
// one on, those that are data and not of an aborted transaction come out, all
// of them, in order, and none is asked for again (contract 7.1).
func FuzzDecodeRecordsShowsWhatIsCommitted(f *testing.F) {
	f.Add([]byte{0x08, 0x09, 0x0d, 0x03, 0x10, 0x06, 0x09, 0x02}, int64(0), uint8(8))
	f.Add([]byte{0x11, 0x03, 0x11, 0x02, 0x11, 0x03, 0xc8}, int64(4), uint8(4))
	f.Add([]byte{0x00, 0x40, 0x01, 0x18, 0x03}, int64(2), uint8(200))
	f.Fuzz(func(t *testing.T, program []byte, wanted int64, limit uint8) {
		if len(program) > 200 || wanted < 0 {
			return
		}
		l := script(program)
		response := &fetch.ResponsePartition{Partition: 3}
		stream := &protocol.RecordStream{}
		expected, next, last := []int64{}, wanted, int64(-1)
		for _, batch := range l.batches {
			if batch.last < wanted || len(stream.Records) == int(limit) {
				continue
			}
			stream.Records = append(stream.Records, batch.read())
			records := batch.read()
			for {
				r, err := records.ReadRecord()
				if err != nil {
					break
				}
				if next = max(next, r.Offset+1); r.Offset >= wanted && !l.hidden[r.Offset] {
					expected = append(expected, r.Offset)
				}
			}
			last = batch.last
		}
		if len(stream.Records) > 0 {
			response.RecordSet = protocol.RecordSet{Records: stream}
		}
		for i, transaction := range l.aborted { // those that touch the response
			if l.markers[i] >= wanted && transaction.FirstOffset <= last {
				response.AbortedTransactions = append(response.AbortedTransactions, transaction)
			}
		}
		out, err := decodeRecords("t", response, wanted)
		require.NoError(t, err)
		found, size := []int64{}, 0
		for _, r := range out.records {
			found = append(found, r.Offset)
			size += recordSize(r)
			text := fmt.Sprint(r.Offset)
			require.Equal(t, text, string(r.Key))
			require.Equal(t, text, string(r.Headers[0].Value))
			require.Equal(t, 3, r.Partition)
			require.Equal(t, time.UnixMilli(r.Offset).UTC(), r.Timestamp)
		}
		require.Equal(t, expected, found)
		require.Equal(t, next, out.next)
		require.Equal(t, size, out.bytes)
	})
}

// Bytes that are no record set are an error of ours, never a panic, and never
// move the consumer backwards.
func FuzzDecodeRecordsOfAnyBytes(f *testing.F) {
	for _, version := range []int8{1, 2} {
		var encoded bytes.Buffer
		set := protocol.RecordSet{Version: version, Records: protocol.NewRecordReader(
			protocol.Record{Offset: 0, Time: time.UnixMilli(1), Key: protocol.NewBytes([]byte("k")), Value: protocol.NewBytes([]byte("v"))},
			protocol.Record{Offset: 1, Time: time.UnixMilli(2), Value: protocol.NewBytes(nil)},
		)}
		_, err := set.WriteTo(&encoded)
		require.NoError(f, err)
		f.Add(encoded.Bytes()[4:], int64(0), false)
		f.Add(encoded.Bytes()[4:], int64(1), true)
	}
	f.Add(bytes.Repeat([]byte{1}, 61), int64(0), true)
	f.Fuzz(func(t *testing.T, content []byte, wanted int64, repair bool) {
		response := &fetch.ResponsePartition{}
		if len(content) < 61 { // the header of a batch
			return
		}
		if repair {
			content = bytes.Clone(content) // the fuzzer's own
			repaired(content)
		}
		if !readSet(&response.RecordSet, content) {
			return
		}
		out, err := decodeRecords("t", response, wanted)
		if err != nil {
			require.True(t, errors.Is(err, ErrUndecodable), err)
			return
		}
		require.GreaterOrEqual(t, out.next, wanted)
		for _, r := range out.records {
			require.GreaterOrEqual(t, r.Offset, wanted)
			require.Less(t, r.Offset, out.next)
		}
	})
}

// repaired gives the bytes the length and checksum of one batch, without which
// nothing behind them would ever be looked at.
func repaired(content []byte) {
	binary.BigEndian.PutUint32(content[8:], uint32(len(content)-12))
	if content[16] == 2 {
		binary.BigEndian.PutUint32(content[17:], crc32.Checksum(content[21:], crc32.MakeTable(crc32.Castagnoli)))
	} else {
		binary.BigEndian.PutUint32(content[12:], crc32.ChecksumIEEE(content[16:]))
	}
}

// readSet has kafka-go read the bytes as it does a response's; what it makes
// of them, or cannot, is not ours. It takes memory for as many records as a
// batch says it has: more than there are bytes would end the process.
func readSet(set *protocol.RecordSet, content []byte) (read bool) {
	if content[16] == 2 && binary.BigEndian.Uint32(content[57:]) > uint32(len(content)) {
		return false
	}
	defer func() {
		if recover() != nil {
			read = false
		}
	}()
	sized := binary.BigEndian.AppendUint32(nil, uint32(len(content)))
	_, err := set.ReadFrom(bytes.NewBuffer(append(sized, content...)))
	return err == nil
}
