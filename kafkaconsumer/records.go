package kafkaconsumer

import (
	"errors"
	"fmt"
	"io"
	"sort"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
)

// decoded are the records of one response.
type decoded struct {
	records []envelope.Record
	bytes   int
	// next is the offset after the last record seen, also a hidden one.
	next int64
	// firstBase and lastBase are the base offsets of the first and the last
	// batch; -1 if there was none.
	firstBase, lastBase int64
	// epoch is the last batch's leader epoch; -1 if there was none.
	epoch int32
}

func (d *decoded) sawBase(base int64) {
	d.lastBase = base
	if d.firstBase < 0 {
		d.firstBase = base
	}
}

// recordOverhead is what a record costs beside its bytes, roughly.
const recordOverhead = 128

// recordBatch is what batches of the current format, of data or of control
// records, have in common.
type recordBatch interface {
	protocol.RecordReader
	Offset() int64
}

// decodeRecords reads the records from offset wanted on. Control records are
// hidden, and of aborted transactions all records: their list comes only with
// read_committed.
func decodeRecords(topic string, response *fetch.ResponsePartition, wanted int64) (out decoded, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: decoding panicked: %v", ErrUndecodable, p)
		}
	}()
	out = decoded{next: wanted, firstBase: -1, lastBase: -1, epoch: -1}
	set := response.RecordSet.Records
	if set == nil {
		return out, nil
	}
	stream, ok := set.(*protocol.RecordStream)
	if !ok {
		return out, fmt.Errorf("%w: unexpected record set %T", ErrUndecodable, set)
	}
	aborted := newAborted(response.AbortedTransactions)
	for _, batch := range stream.Records {
		out.lastBase = -1
		if b, ok := batch.(recordBatch); ok {
			out.sawBase(b.Offset())
		}
		hidden := false
		switch b := batch.(type) {
		case *protocol.ControlBatch:
			out.epoch = b.PartitionLeaderEpoch
			if err := readControl(b, aborted, &out); err != nil {
				return out, err
			}
			continue
		case *protocol.RecordBatch:
			out.epoch = b.PartitionLeaderEpoch
			hidden = b.Attributes.Transactional() && aborted.covers(b.ProducerID, b.BaseOffset)
		}
		if err := readBatch(topic, int(response.Partition), batch, wanted, hidden, &out); err != nil {
			return out, err
		}
	}
	return out, nil
}

func readBatch(topic string, partition int, batch protocol.RecordReader, wanted int64, hidden bool, out *decoded) error {
	for {
		r, err := batch.ReadRecord()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUndecodable, err)
		}
		if out.lastBase < 0 {
			out.sawBase(r.Offset) // old formats: a batch begins with its first record
		}
		key, err := readBytes(r.Key)
		if err != nil {
			return err
		}
		value, err := readBytes(r.Value)
		if err != nil {
			return err
		}
		out.next = max(out.next, r.Offset+1)
		if r.Offset < wanted || hidden {
			continue
		}
		record := envelope.Record{Topic: topic, Partition: partition, Offset: r.Offset, Timestamp: r.Time.UTC(), Key: key, Value: value}
		if len(r.Headers) > 0 {
			record.Headers = make([]handler.Header, len(r.Headers))
			for i, h := range r.Headers {
				record.Headers[i] = handler.Header{Key: h.Key, Value: h.Value}
			}
		}
		out.bytes += recordSize(record)
		out.records = append(out.records, record)
	}
}

func recordSize(r envelope.Record) int {
	size := len(r.Key) + len(r.Value) + recordOverhead
	for _, h := range r.Headers {
		size += len(h.Key) + len(h.Value)
	}
	return size
}

// readBytes copies b out of the library's pages and lets go of them; nil stays
// nil.
func readBytes(b protocol.Bytes) ([]byte, error) {
	if b == nil {
		return nil, nil
	}
	content, err := protocol.ReadAll(b)
	if closeErr := b.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUndecodable, err)
	}
	return content, nil
}

// readControl follows the markers at the ends of transactions.
func readControl(batch *protocol.ControlBatch, aborted *abortedTransactions, out *decoded) error {
	const abortMarker = 0
	for {
		r, err := batch.ReadRecord()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUndecodable, err)
		}
		offset := r.Offset
		control, err := protocol.ReadControlRecord(r)
		if err != nil {
			return fmt.Errorf("%w: control record at offset %d: %w", ErrUndecodable, offset, err)
		}
		if control.Type == abortMarker {
			aborted.end(batch.ProducerID, offset)
		}
		out.next = max(out.next, offset+1)
	}
}

// abortedTransactions are those of one response, each known by its producer
// and where it begins; it ends with its marker.
type abortedTransactions struct {
	byProducer map[int64][]int64 // first offsets, ascending
}

func newAborted(list []fetch.ResponseTransaction) *abortedTransactions {
	a := &abortedTransactions{byProducer: map[int64][]int64{}}
	for _, t := range list {
		a.byProducer[t.ProducerID] = append(a.byProducer[t.ProducerID], t.FirstOffset)
	}
	for _, offsets := range a.byProducer {
		sort.Slice(offsets, func(i, j int) bool { return offsets[i] < offsets[j] })
	}
	return a
}

// covers says whether a transactional batch belongs to an aborted transaction.
func (a *abortedTransactions) covers(producer, base int64) bool {
	offsets := a.byProducer[producer]
	return len(offsets) > 0 && offsets[0] <= base
}

// end forgets what the marker at offset aborts: a producer has one transaction
// at a time, so everything of it that began before is over.
func (a *abortedTransactions) end(producer, offset int64) {
	offsets := a.byProducer[producer]
	for len(offsets) > 0 && offsets[0] <= offset {
		offsets = offsets[1:]
	}
	a.byProducer[producer] = offsets
}
