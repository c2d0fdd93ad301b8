package kafkaconsumer

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
)

// responseReader hands the records of one response to the worker, batch by batch, in chunks no larger
// than an accept may be. A decompressed response is therefore never in memory as a whole.
type responseReader struct {
	fetcher  *fetcher
	held     *kafkawire.Hold
	response *kafkawire.Response
	asked    time.Time // when the response was asked for
	// wanted is the offset that was asked for. A response begins with the batch that holds it, so
	// it may begin with earlier records.
	wanted  int64
	aborted *kafkawire.Aborted

	chunk *chunk
	// count is the number of records in the batch that is being read. messages counts what was made of them.
	count, messages int
	// next is the offset after what is in chunk or passed. sent is the offset up to which the
	// worker has been given chunks.
	next, sent int64
}

// run delivers all batches. Batches before an error are delivered too.
func (d *responseReader) run() error {
	d.sent = d.wanted
	var ok bool
	if d.aborted, ok = kafkawire.NewAborted(d.fetcher.partition.ctx, d.response, d.held); !ok {
		return d.fetcher.partition.ctx.Err()
	}
	d.note(d.wanted)
	err := d.batches()
	// Pass hidden records too: otherwise the lag would never reach zero.
	if d.next > d.sent && !d.flush(d.next) {
		return d.fetcher.partition.ctx.Err()
	}
	return err
}

func (d *responseReader) batches() error {
	f := d.fetcher
	if len(d.response.Records) == 0 {
		return nil
	}
	last := int64(-1)
	for rest := d.response.Records; len(rest) > 0; {
		b, after, err := kafkawire.CutBatch(rest)
		var cut *kafkawire.CutError
		if errors.As(err, &cut) {
			if last < 0 {
				return f.askFor(cut.Need, d.wanted)
			}
			break
		}
		if err == nil && b.Base <= last {
			err = fmt.Errorf("%w: the batch at offset %d follows offset %d", ErrUnreadable, b.Base, last)
		}
		if err == nil {
			err = d.batch(b)
		}
		if err != nil {
			return err
		}
		last, rest = b.Last, after
	}
	f.ask = 0
	if d.next == d.wanted {
		return fmt.Errorf("%w: all batches end at %d, before offset %d, for which they were sent", ErrUnreadable, last,
			d.wanted)
	}
	return nil
}

// askFor makes the next fetch large enough for a batch that was cut off. Brokers since 0.10.1
// always send a first batch whole.
func (f *fetcher) askFor(need int, offset int64) error {
	if need-kafkawire.BatchPrefix > f.cfg.MaxBatchBytes {
		return fmt.Errorf("%w: the batch for offset %d has %d bytes, more than MaxBatchBytes (%d)", ErrUnreadable, offset,
			need, f.cfg.MaxBatchBytes)
	}
	asked := max(f.ask, f.cfg.FetchMaxBytes)
	if asked >= need {
		return fmt.Errorf("fetch %s/%d from offset %d: %d bytes were asked for, but a batch of %d is cut off: %w",
			f.partition.topic, f.partition.id, offset, asked, need, io.ErrUnexpectedEOF)
	}
	f.ask = need
	return nil
}

// batch adds the records of one batch: all of them, or none if one cannot be read.
func (d *responseReader) batch(b kafkawire.Batch) (err error) {
	f := d.fetcher
	ctx := f.partition.ctx
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: reading the batch at offset %d panicked: %v", ErrUnreadable, b.Base, p)
		}
	}()
	if b.Epoch >= 0 {
		if b.Epoch < f.epoch {
			return f.epochFell(b)
		}
		f.epoch = b.Epoch
	}
	hidden := b.Transactional && !b.Control && d.aborted.Covers(b.Producer, b.Base)
	if !b.Control && (hidden || b.Last < d.wanted) {
		d.next = max(d.next, b.Last+1)
		return nil
	}
	content, held, err := f.network.inflater.Inflate(ctx, b, d.held)
	if err != nil {
		return err
	}
	defer d.held.GiveBack(held)
	if b.Control {
		err = d.aborted.ReadControl(b, content)
	} else if b.Count > maxMessages {
		err = tooManyMessages(b)
	} else if err = b.Walk(content, 0, nil); err == nil {
		d.count, d.messages = b.Count, 0
		err = b.Walk(content, f.cfg.Decoder.HeaderLimit(), func(r envelope.Record) error {
			if d.messages >= maxMessages {
				return tooManyMessages(b)
			}
			return d.add(r)
		})
	}
	if err == nil {
		d.next = max(d.next, b.Last+1)
	}
	return err
}

// maxMessages bounds the messages of a batch: a few bytes can decompress to any number of small
// records, and each of them to many events.
const maxMessages = 250_000

func tooManyMessages(b kafkawire.Batch) error {
	return fmt.Errorf("%w: the batch at offset %d has more than %d messages", ErrUnreadable, b.Base, maxMessages)
}

// add puts a record into the chunk.
func (d *responseReader) add(r envelope.Record) error {
	if r.Offset < d.wanted {
		return nil
	}
	f := d.fetcher
	r.Topic, r.Partition = f.partition.topic, f.partition.id
	size := r.Size()
	if len(d.chunk.received) > 0 && (d.chunk.messages >= f.cfg.BatchRecords || d.chunk.bytes+
		size > f.cfg.BatchBytes) && !d.flush(r.Offset) {
		return f.partition.ctx.Err()
	}
	// Reserve the memory for decoding first: a record of kilobytes may become megabytes.
	bound := size + f.sizeBound(r)
	if !d.held.Take(f.partition.ctx, bound) {
		return f.partition.ctx.Err()
	}
	received := envelope.Received{Record: kafkawire.Owned(r)}
	skipping := f.skipping
	if skipping != nil && r.Offset == skipping.request.Offset {
		received.Err = skipping.halt.reason
	} else {
		skipping, received = nil, f.decode(received.Record)
	}
	f.skipping = nil // it is the first record; if it is gone, there is nothing to skip
	size = received.Size()
	if size <= bound {
		d.held.GiveBack(bound - size)
	} else if !d.held.Take(f.partition.ctx, size-bound) { // the application's functions make IDs and keys
		return f.partition.ctx.Err()
	}
	n := max(len(received.Messages), 1)
	if len(d.chunk.received) > 0 && d.chunk.messages+n > f.cfg.BatchRecords && !d.flush(r.Offset) {
		return f.partition.ctx.Err()
	}
	if d.chunk.received == nil {
		d.chunk.received = make([]envelope.Received, 0, max(min(f.cfg.BatchRecords, max(d.count, f.usual)), 1))
	}
	d.chunk.skipping = skipping
	d.chunk.received = append(d.chunk.received, received)
	d.chunk.bytes += size
	d.chunk.messages += n
	d.messages += n
	d.next = r.Offset + 1
	if skipping != nil && !d.flush(d.next) {
		return f.partition.ctx.Err()
	}
	return nil
}

// flush sends the chunk to the worker, with next as the offset to continue at.
func (d *responseReader) flush(next int64) bool {
	d.note(next)
	d.fetcher.usual = len(d.chunk.received)
	d.chunk.next = next
	if !d.fetcher.send(d.fetcher.partition.ctx, d.chunk, d.held) {
		return false
	}
	d.sent, d.chunk = next, d.fetcher.newChunk()
	return true
}

// newChunk returns an empty chunk of the partition's run. Only the fetcher begins another run.
func (f *fetcher) newChunk() *chunk { return &chunk{partition: f.partition, run: f.partition.run} }

// note records the offset and the response's watermarks for the partition's health.
func (d *responseReader) note(next int64) {
	d.fetcher.partition.fetched(d.asked, next, d.response.HighWatermark, d.response.LastStable, d.response.LogStart)
}

// RecordOf converts a message that an application has read with kafka-go itself into the record
// that ID strategies read. Pass it to idempotent.RecordBy. It shares the message's memory.
func RecordOf(m kafka.Message) envelope.Record {
	headers := make([]handler.Header, len(m.Headers))
	for i, h := range m.Headers {
		headers[i] = handler.Header{Key: h.Key, Value: h.Value}
	}
	return envelope.Record{Topic: m.Topic, Partition: m.Partition, Offset: m.Offset, Timestamp: m.Time, Key: m.Key,
		Value: m.Value, Headers: headers}
}
