package kafkaconsumer

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
)

// Retrying a fetch, and how often an error of the data must come back before
// it is believed: a broken connection can look like it.
const (
	fetchBackoffFirst = 100 * time.Millisecond
	fetchBackoffMost  = 2 * time.Second
	fatalTries        = 3
	// emptyPause keeps a broker that answers "nothing" at once, instead of
	// waiting for FetchMaxWait, from being asked without end.
	emptyPause = 10 * time.Millisecond
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
	// losses counts connections lost in a row.
	losses int
}

func (f *fetcher) run(committed int64) {
	p := f.partition
	defer f.trouble.forget(p)
	offset, ok := f.begin(committed)
	if !ok {
		return
	}
	retry := backoff{first: fetchBackoffFirst, most: fetchBackoffMost}
	fatals := 0
	for f.buffer.wait(p.ctx) {
		asked := time.Now()
		batch, err := f.next(offset)
		if p.ctx.Err() != nil {
			return
		}
		if err != nil {
			if fatal(err) {
				if fatals++; fatals >= fatalTries {
					f.halt(p, err)
					return
				}
			}
			f.failed(err, zap.Int64("offset", offset))
			if !retry.wait(p.ctx) {
				return
			}
			continue
		}
		f.works()
		retry.reset()
		fatals = 0
		if !f.send(batch, offset) {
			return
		}
		offset = batch.next
		if batch.firstBase < 0 && time.Since(asked) < emptyPause && !pause(p.ctx, emptyPause) {
			return
		}
	}
}

// failed tells of an error. A lost connection is told only if it is lost again
// and again: brokers close one whose SASL session is over, or that was idle for
// too long, and the next one works.
func (f *fetcher) failed(err error, fields ...zap.Field) {
	const lossesToTell = 3
	p := f.partition
	if lost(err) {
		if f.losses++; f.losses < lossesToTell {
			return
		}
	}
	err = f.cfg.explain(err)
	p.failing(err)
	f.trouble.begin(p, err, append(fields, zap.String("topic", p.topic), zap.Int("partition", p.id))...)
}

func (f *fetcher) works() {
	f.losses = 0
	f.trouble.end(f.partition)
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

// fetch asks for the partition once.
func (f *fetcher) fetch(offset int64, wait time.Duration, minBytes, maxBytes int) (*fetch.ResponsePartition, error) {
	p := f.partition
	isolation := kafka.ReadUncommitted
	if f.cfg.Isolation == ReadCommitted {
		isolation = kafka.ReadCommitted
	}
	// The limit is the partition's: it is the only one in the request. With one
	// for the whole response some brokers leave out the aborted transactions
	// when it cuts the response short.
	//
	// The deadline also ends the connection's own wait when ctx is cancelled.
	ctx, cancel := context.WithTimeout(p.ctx, wait+f.cfg.RequestTimeout)
	defer cancel()
	answer, err := f.network.transport.RoundTrip(ctx, f.network.client.Addr, &fetch.Request{
		ReplicaID: -1, MaxWaitTime: int32(wait.Milliseconds()), MinBytes: int32(minBytes), MaxBytes: math.MaxInt32,
		IsolationLevel: int8(isolation), SessionEpoch: -1,
		Topics: []fetch.RequestTopic{{Topic: p.topic, Partitions: []fetch.RequestPartition{{
			Partition: int32(p.id), CurrentLeaderEpoch: -1, FetchOffset: offset, LogStartOffset: -1, PartitionMaxBytes: int32(maxBytes),
		}}}},
	})
	if err != nil {
		return nil, fmt.Errorf("fetch %s/%d from offset %d: %w", p.topic, p.id, offset, classify(err))
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
		return nil, fmt.Errorf("fetch %s/%d from offset %d: %w", p.topic, p.id, offset, classify(kafka.Error(code)))
	}
}
