package kafkaconsumer

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
)

// The protocol's constants for batches, repeated independently of the code under test.
const (
	prefixLength    = 12 // the base offset and the length of what follows
	headerLength    = 49
	formatAt        = 16
	oldChecksumAt   = 12 // of formats 0 and 1
	appendTime      = 1 << 3
	isTransactional = 1 << 4
	isControl       = 1 << 5
)

var checksums = crc32.MakeTable(crc32.Castagnoli)

// layout is the content of a batch's header.
type layout struct {
	base, last                       int64
	epoch                            int32
	codec                            compress.Compression
	appended, transactional, control bool
	producer, firstTime, maxTime     int64
}

// written is a batch as a test writes it.
type written struct {
	layout
	records []envelope.Record // with offsets and timestamps
}

func (w written) bytes(t testing.TB) []byte {
	t.Helper()
	var content []byte
	for _, r := range w.records {
		record := []byte{0}
		record = binary.AppendVarint(record, r.Timestamp.UnixMilli()-w.firstTime)
		record = binary.AppendVarint(record, r.Offset-w.base)
		record = appendBytes(appendBytes(record, r.Key), r.Value)
		record = binary.AppendVarint(record, int64(len(r.Headers)))
		for _, h := range r.Headers {
			record = appendBytes(appendBytes(record, append([]byte{}, h.Key...)), h.Value)
		}
		content = append(binary.AppendVarint(content, int64(len(record))), record...)
	}
	content = compressed(t, w.codec, content)
	attributes := int16(w.codec)
	for _, flag := range []struct {
		on  bool
		bit int16
	}{{w.appended, appendTime}, {w.transactional, isTransactional}, {w.control, isControl}} {
		if flag.on {
			attributes |= flag.bit
		}
	}
	checked := binary.BigEndian.AppendUint16(nil, uint16(attributes))
	checked = binary.BigEndian.AppendUint32(checked, uint32(w.last-w.base))
	for _, v := range []int64{w.firstTime, w.maxTime, w.producer} {
		checked = binary.BigEndian.AppendUint64(checked, uint64(v))
	}
	checked = append(checked, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	checked = append(binary.BigEndian.AppendUint32(checked, uint32(len(w.records))), content...)
	return framed(w.base, w.epoch, checked)
}

// framed puts the beginning of a batch before its checked part.
func framed(base int64, epoch int32, checked []byte) []byte {
	out := binary.BigEndian.AppendUint64(nil, uint64(base))
	out = binary.BigEndian.AppendUint32(out, uint32(len(checked)+9))
	out = append(binary.BigEndian.AppendUint32(out, uint32(epoch)), 2)
	out = binary.BigEndian.AppendUint32(out, crc32.Checksum(checked, checksums))
	return append(out, checked...)
}

func appendBytes(to, b []byte) []byte {
	if b == nil {
		return binary.AppendVarint(to, -1)
	}
	return append(binary.AppendVarint(to, int64(len(b))), b...)
}

func compressed(t testing.TB, codec compress.Compression, content []byte) []byte {
	t.Helper()
	if codec == compress.None {
		return content
	}
	var out bytes.Buffer
	w := codec.Codec().NewWriter(&out)
	_, err := w.Write(content)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

// delivered is the result of a response.
type delivered struct {
	records []envelope.Record
	// bounds are the next offsets of the chunks, and messages how many each has.
	bounds   []int64
	messages []int
	next     int64
	err      error
	epoch    int32
	ask      int
	// most and left are of the budget.
	most, left int
}

// deliver has a fetcher read a response to a fetch of the wanted offset.
func deliver(
	t testing.TB, content []byte, wanted int64, aborted []fetch.ResponseTransaction, change func(*Config),
) delivered {
	t.Helper()
	return deliverDecoded(t, content, wanted, aborted, change, func(envelope.Record) int { return 0 })
}

// deliverDecoded is deliver with a decoder that makes so many messages of a record.
func deliverDecoded(
	t testing.TB, content []byte, wanted int64, aborted []fetch.ResponseTransaction, change func(*Config),
	messages func(envelope.Record) int,
) delivered {
	t.Helper()
	cfg := Config{}.withDefaults()
	if change != nil {
		change(&cfg)
	}
	var d delivered
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	buffer, out, done := kafkawire.NewBudget(cfg.BufferBytes), make(chan *chunk), make(chan struct{})
	go func() {
		defer close(done)
		for c := range out {
			d.most = max(d.most, buffer.Bytes())
			for _, r := range c.received {
				d.records = append(d.records, r.Record)
			}
			d.bounds, d.messages = append(d.bounds, c.next), append(d.messages, c.messages)
			buffer.Release(c.bytes)
		}
	}()
	f := &fetcher{
		shared:    &shared{network: &network{inflater: kafkawire.NewInflater(cfg.MaxBatchBytes)}, cfg: cfg},
		partition: newPartition(ctx, "t", 3, wanted), buffer: buffer,
		decode: func(r envelope.Record) envelope.Received {
			return envelope.Received{Record: r, Messages: make([]handler.RawMessage, messages(r))}
		},
		sizeBound: func(envelope.Record) int { return 0 }, out: out,
	}
	held := buffer.NewHold()
	var list []byte
	for _, a := range aborted {
		list = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(list, uint64(a.ProducerID)), uint64(a.FirstOffset))
	}
	run := &responseReader{fetcher: f, held: held, response: &kafkawire.Response{Records: content, Aborted: list},
		wanted: wanted, next: wanted, chunk: &chunk{partition: f.partition}}
	d.err = run.run()
	held.End()
	close(out)
	<-done
	d.next, d.epoch, d.ask, d.left = run.sent, f.epoch, f.ask, buffer.Bytes()
	return d
}
