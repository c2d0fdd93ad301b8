package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
)

// Retrying a fetch, and how often an error of the data must come back before
// it is believed: a broken connection can look like it.
const (
	fetchBackoffFirst = 100 * time.Millisecond
	fetchBackoffMost  = 2 * time.Second
	fatalTries        = 3
)

// fetcher reads one partition from its start until the session ends or the
// partition halts.
type fetcher struct {
	network   *network
	cfg       Config
	partition *partition
	buffer    *budget
	decode    func(envelope.Record) envelope.Received
	// out takes chunks in order; it is full while the worker is busy, which
	// keeps the fetcher from fetching.
	out  chan<- *chunk
	halt func(*partition, error)
	// trouble is shared by all partitions.
	trouble *trouble
	epoch   int32
}

func (f *fetcher) run(committed int64) {
	p := f.partition
	defer f.trouble.forget(p)
	offset, ok := f.begin(committed)
	if !ok {
		return
	}
	retry := backoff{first: fetchBackoffFirst, most: fetchBackoffMost}
	fatal := 0
	for f.buffer.wait(p.ctx) {
		batch, err := f.next(offset)
		if p.ctx.Err() != nil {
			return
		}
		if err != nil {
			if !retryable(err) {
				if fatal++; fatal >= fatalTries {
					f.halt(p, err)
					return
				}
			}
			p.failing(err)
			f.trouble.begin(p, err, zap.String("topic", p.topic), zap.Int("partition", p.id), zap.Int64("offset", offset))
			if !retry.wait(p.ctx) {
				return
			}
			continue
		}
		f.trouble.end(p)
		retry.reset()
		fatal = 0
		if !f.send(batch, offset) {
			return
		}
		offset = batch.next
	}
}

// begin finds the offset to start at, trying until it is known.
func (f *fetcher) begin(committed int64) (int64, bool) {
	p := f.partition
	if committed >= 0 {
		p.begin(committed, false)
		return committed, true
	}
	at := int64(kafka.FirstOffset)
	if f.cfg.StartOffset == Last {
		at = kafka.LastOffset
	}
	retry := backoff{first: fetchBackoffFirst, most: fetchBackoffMost}
	for {
		offset, err := f.listOffset(at)
		if err == nil {
			// The end of the log moves on: unless it is committed now, records
			// that come before the first commit would be lost by a restart.
			p.begin(offset, f.cfg.StartOffset == Last)
			f.trouble.end(p)
			return offset, true
		}
		if p.ctx.Err() != nil {
			return 0, false
		}
		p.failing(err)
		f.trouble.begin(p, err, zap.String("topic", p.topic), zap.Int("partition", p.id))
		if !retry.wait(p.ctx) {
			return 0, false
		}
	}
}

// send splits a response into chunks no larger than an accept may be and hands
// them to the worker. It reports false when the partition ended first.
func (f *fetcher) send(batch decoded, offset int64) bool {
	p := f.partition
	f.buffer.add(batch.bytes)
	left := batch.bytes
	defer func() { f.buffer.add(-left) }()
	c := &chunk{partition: p}
	flush := func(next int64) bool {
		c.next = next
		select {
		case f.out <- c:
			left -= c.bytes // the worker gives them back
			c = &chunk{partition: p}
			return true
		case <-p.ctx.Done():
			return false
		}
	}
	for _, r := range batch.records {
		size := recordSize(r)
		if len(c.received) > 0 && (len(c.received) >= f.cfg.BatchRecords || c.bytes+size > f.cfg.BatchBytes) {
			if !flush(r.Offset) {
				return false
			}
		}
		c.received = append(c.received, f.decode(r))
		c.bytes += size
	}
	// Hidden records are passed too, or else lag would never reach zero.
	if len(c.received) > 0 || batch.next > offset {
		return flush(batch.next)
	}
	return true
}

// next asks for the records from offset on; there may be none.
func (f *fetcher) next(offset int64) (decoded, error) {
	p := f.partition
	response, err := f.fetch(offset, f.cfg.FetchMaxWait, f.cfg.FetchMinBytes, f.cfg.FetchMaxBytes)
	if err != nil {
		return decoded{}, err
	}
	batch, err := decodeRecords(p.topic, response, offset)
	if err != nil {
		return decoded{}, err
	}
	if batch.epoch >= 0 {
		if batch.epoch < f.epoch {
			return decoded{}, &EpochError{From: f.epoch, To: batch.epoch}
		}
		f.epoch = batch.epoch
	}
	if batch.next == offset && batch.lastBase >= 0 {
		end := response.HighWatermark
		if f.cfg.Isolation == ReadCommitted && response.LastStableOffset >= 0 {
			end = response.LastStableOffset
		}
		if batch.next, err = f.afterEmptyBatch(batch.lastBase, offset, end); err != nil {
			return decoded{}, err
		}
	}
	p.fetched(batch.next, response.HighWatermark, response.LastStableOffset, response.LogStartOffset)
	return batch, nil
}

// afterEmptyBatch finds the offset after a batch of which compaction has left
// no record at or above offset. Its last offset is not in what kafka-go
// decodes, and a fetch never crosses the end of a segment: without this step
// the same batch would come for ever. A fetch answers with the batch that
// holds the offset, or else the next one; so the wanted offset is the smallest
// above base that is answered with another batch. It is at most end, where
// there is nothing more to read.
func (f *fetcher) afterEmptyBatch(base, offset, end int64) (int64, error) {
	same, other := base, end // known to be answered with the batch, and not
	probe := func(at int64) error {
		response, err := f.fetch(at, 0, 0, 1)
		if err != nil {
			return err
		}
		found, err := decodeRecords(f.partition.topic, response, at)
		if err != nil {
			return err
		}
		if found.firstBase == base {
			same = at
		} else {
			other = at
		}
		return nil
	}
	for step := int64(1); base+step < other; step *= 2 {
		if err := probe(base + step); err != nil {
			return 0, err
		}
	}
	for other-same > 1 {
		if err := probe(same + (other-same)/2); err != nil {
			return 0, err
		}
	}
	if other <= offset {
		return 0, fmt.Errorf("%w: the batch at %d ends before offset %d, for which it was sent", ErrUndecodable, base, offset)
	}
	return other, nil
}

// fetch asks for the partition once.
func (f *fetcher) fetch(offset int64, wait time.Duration, minBytes, maxBytes int) (*fetch.ResponsePartition, error) {
	p := f.partition
	isolation := kafka.ReadUncommitted
	if f.cfg.Isolation == ReadCommitted {
		isolation = kafka.ReadCommitted
	}
	// The deadline also ends the connection's own wait when ctx is cancelled.
	ctx, cancel := context.WithTimeout(p.ctx, wait+f.cfg.RequestTimeout)
	defer cancel()
	answer, err := f.network.transport.RoundTrip(ctx, f.network.client.Addr, &fetch.Request{
		ReplicaID: -1, MaxWaitTime: int32(wait.Milliseconds()), MinBytes: int32(minBytes), MaxBytes: int32(maxBytes),
		IsolationLevel: int8(isolation), SessionEpoch: -1,
		Topics: []fetch.RequestTopic{{Topic: p.topic, Partitions: []fetch.RequestPartition{{
			Partition: int32(p.id), CurrentLeaderEpoch: -1, FetchOffset: offset, LogStartOffset: -1, PartitionMaxBytes: int32(maxBytes),
		}}}},
	})
	if err != nil {
		return nil, fmt.Errorf("fetch %s/%d from offset %d: %w", p.topic, p.id, offset, err)
	}
	response, ok := answer.(*fetch.Response)
	if !ok || response.ErrorCode == 0 && (len(response.Topics) != 1 || len(response.Topics[0].Partitions) != 1) {
		return nil, fmt.Errorf("fetch %s/%d from offset %d: the answer %T is not about it: %w", p.topic, p.id, offset, answer, kafka.Unknown)
	}
	code := response.ErrorCode
	if code == 0 {
		code = response.Topics[0].Partitions[0].ErrorCode
	}
	switch {
	case code == 0:
		return &response.Topics[0].Partitions[0], nil
	case kafka.Error(code) == kafka.OffsetOutOfRange:
		return nil, f.gap(offset)
	default:
		return nil, fmt.Errorf("fetch %s/%d from offset %d: %w", p.topic, p.id, offset, kafka.Error(code))
	}
}

// gap describes why an offset is out of range.
func (f *fetcher) gap(offset int64) error {
	gap := &OffsetGapError{Topic: f.partition.topic, Partition: f.partition.id, Offset: offset}
	var err error
	if gap.First, err = f.listOffset(kafka.FirstOffset); err != nil {
		return err
	}
	if gap.Last, err = f.listOffset(kafka.LastOffset); err != nil {
		return err
	}
	return gap
}

// listOffset asks for the first or last offset.
func (f *fetcher) listOffset(at int64) (int64, error) {
	p := f.partition
	ctx, cancel := context.WithTimeout(p.ctx, f.cfg.RequestTimeout)
	defer cancel()
	answer, err := f.network.transport.RoundTrip(ctx, f.network.client.Addr, &listoffsets.Request{
		ReplicaID: -1,
		Topics: []listoffsets.RequestTopic{{Topic: p.topic, Partitions: []listoffsets.RequestPartition{{
			Partition: int32(p.id), CurrentLeaderEpoch: -1, Timestamp: at,
		}}}},
	})
	if err != nil {
		return 0, fmt.Errorf("list offsets of %s/%d: %w", p.topic, p.id, err)
	}
	response, ok := answer.(*listoffsets.Response)
	if !ok || len(response.Topics) != 1 || len(response.Topics[0].Partitions) != 1 {
		return 0, fmt.Errorf("list offsets of %s/%d: the answer %T is not about it: %w", p.topic, p.id, answer, kafka.Unknown)
	}
	found := response.Topics[0].Partitions[0]
	if found.ErrorCode != 0 {
		return 0, fmt.Errorf("list offsets of %s/%d: %w", p.topic, p.id, kafka.Error(found.ErrorCode))
	}
	if found.Offset < 0 {
		return 0, fmt.Errorf("list offsets of %s/%d: the answer is offset %d: %w", p.topic, p.id, found.Offset, kafka.Unknown)
	}
	return found.Offset, nil
}

// retryable tells errors that pass from those that halt the partition.
func retryable(err error) bool {
	var gap *OffsetGapError
	var epoch *EpochError
	if errors.As(err, &gap) || errors.As(err, &epoch) || errors.Is(err, ErrUndecodable) {
		return false
	}
	return transient(err)
}
