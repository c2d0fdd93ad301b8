package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/kafkaclient"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Retrying a fetch. fatalTries is how often an error of the data must occur without progress in
// between before we believe it: a broken connection can look like one.
const (
	fetchBackoffFirst = 100 * time.Millisecond
	maxFetchBackoff   = 2 * time.Second
	fatalTries        = 3
	// emptyPause limits how often we ask a broker that answers an empty fetch at once instead of waiting for FetchMaxWait.
	emptyPause = 10 * time.Millisecond
)

// fetcher reads one partition from its start until the session ends. While the partition is halted,
// it waits for an operator's request.
type fetcher struct {
	*shared
	partition *partition
	buffer    *kafkawire.Budget
	decode    func(envelope.Record) envelope.Received
	// sizeBound returns an upper bound of the memory that decode adds to a record's size.
	sizeBound func(envelope.Record) int
	// groupOffsets returns the group's committed offsets, including those of the given partition.
	groupOffsets func(ctx context.Context, of map[string][]int) (groupOffsets, error)
	// out takes chunks in order. It is full while the worker is busy, which keeps the fetcher from fetching.
	out chan<- *chunk
	// skipping is a request to skip the next record, passing one to continue after a gap, nil if there is none.
	skipping, passing *granted
	// oneLog makes a topic that was created again an error, even if the new log begins at the very offset to read.
	oneLog bool

	conn *kafkawire.Conn // nil: to be made
	// identified is when the topic's ID was last confirmed, zero on a new connection. unsure means that it has to be
	// confirmed again.
	identified time.Time
	unsure     bool
	ask        int // the size to ask for, more than usual after a batch came cut off
	usual      int // the number of records in the last chunk
	epoch      int32
	fell       EpochError // the last fall of the epoch that was passed
	losses     int        // connections lost in a row
}

func (f *fetcher) run(session context.Context, committed int64) {
	defer f.fetching.Forget(f.partition)
	offset, ok := f.begin(committed)
	for ok {
		f.read(offset)
		offset, ok = f.awaitRequest(session)
	}
}

// read fetches until the session ends or the partition halts.
func (f *fetcher) read(offset int64) {
	p := f.partition
	defer f.fetching.Forget(p)
	defer f.hangUp()
	ok := true
	if f.passing != nil {
		if offset, ok = f.passGap(offset, f.passing.halt.reason); !ok {
			return
		}
	}
	retry := routine.Backoff{First: fetchBackoffFirst, Max: maxFetchBackoff}
	fatals := 0
	for f.buffer.Wait(p.ctx) {
		asked := time.Now()
		next, some, err := f.fetchOnce(offset)
		if p.ctx.Err() != nil {
			return
		}
		if next > offset {
			offset, fatals = next, 0
		}
		if errors.Is(err, errThrottled) {
			continue // a throttled answer neither proves an error nor clears one
		}
		if err == nil {
			f.succeeded()
			retry.Reset()
			fatals = 0
			if !some && time.Since(asked) < emptyPause && !routine.Sleep(p.ctx, emptyPause) {
				return
			}
			continue
		}
		f.hangUp() // the rest of the connection's data cannot be trusted
		if fatal(err) {
			if fatals++; fatals >= fatalTries {
				if offset, ok = f.passGap(offset, err); !ok {
					return
				}
				fatals = 0
				continue
			}
		}
		f.failed(err, zap.Int64(telemetry.FieldOffset, offset))
		if !retry.Wait(p.ctx) {
			return
		}
	}
}

// lossesToReport is how many connections must be lost in a row before that is reported.
const lossesToReport = 3

// failed reports an error to health and log. It reports a lost connection only from the third loss in a row: brokers
// close a connection whose SASL session expired, or that was idle for too long, and the next one works.
func (f *fetcher) failed(err error, fields ...zap.Field) {
	p := f.partition
	if kafkaclient.Lost(err) {
		if f.losses++; f.losses < lossesToReport {
			return
		}
	}
	err = f.cfg.explain(err)
	p.failing(err)
	f.fetching.Begin(p, err, append(fields, zap.String(telemetry.FieldTopic, p.topic),
		zap.Int(telemetry.FieldPartition, p.id))...)
}

// succeeded notes that fetching works.
func (f *fetcher) succeeded() {
	f.losses = 0
	f.fetching.End(f.partition)
}

func (f *fetcher) hangUp() {
	if f.conn != nil {
		f.conn.HangUp()
		f.conn = nil
	}
}

// errThrottled is a broker's answer to a client that has used up its quota.
var errThrottled = errors.New("the broker throttled the fetch")

// fetchOnce fetches once and hands over the records. It returns the offset to continue at, also with an error, and
// whether the response had records.
func (f *fetcher) fetchOnce(offset int64) (next int64, some bool, err error) {
	held := f.buffer.NewHold()
	defer held.End()
	next = offset
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: reading it panicked: %v", ErrUnreadable, p)
		}
	}()
	asked := time.Now()
	response, err := f.fetch(offset, held)
	if err != nil {
		return next, false, err
	}
	defer f.conn.GiveBack() // records are copied out of it
	if response.Nothing {
		return next, false, errThrottled
	}
	if f.conn.Idle() > unaskedFor {
		f.identified, f.unsure = time.Time{}, true
	}
	f.unsure = f.unsure || len(response.Records) > 0
	if f.unsure && time.Since(f.identified) >= identifyEvery {
		before := f.partition.log
		if err := f.identify(offset); err != nil {
			return next, false, err
		}
		if f.partition.log != before {
			return next, false, nil // the response is of the log before; the new one begins at this very offset
		}
		f.identified, f.unsure = time.Now(), false
	}
	d := &responseReader{fetcher: f, held: held, response: response, asked: asked, wanted: offset, next: offset,
		chunk: f.newChunk()}
	err = d.run()
	return d.sent, len(response.Records) > 0, err
}

// fetch requests the partition's records once.
func (f *fetcher) fetch(offset int64, held *kafkawire.Hold) (*kafkawire.Response, error) {
	p := f.partition
	if f.conn == nil {
		if err := f.dial(offset); err != nil {
			return nil, err
		}
	}
	// Limit the partition and not the response: it is the only partition in the request. If a
	// response limit cuts the response short, some brokers leave out the aborted transactions.
	response, err := f.conn.Fetch(p.ctx, &fetch.Request{
		ReplicaID: -1, MaxWaitTime: int32(f.cfg.FetchMaxWait.Milliseconds()), MinBytes: 1, MaxBytes: math.MaxInt32,
		IsolationLevel: f.cfg.Isolation.level(), SessionEpoch: -1,
		Topics: []fetch.RequestTopic{{Topic: p.topic, Partitions: []fetch.RequestPartition{{
			Partition: int32(p.id), CurrentLeaderEpoch: -1, FetchOffset: offset, LogStartOffset: -1,
			PartitionMaxBytes: int32(max(f.ask, f.cfg.FetchMaxBytes)),
		}}}},
	}, held)
	if err == nil && response.Code != 0 {
		err = kafka.Error(response.Code)
	}
	switch {
	case err == nil:
		return response, nil
	case errors.Is(err, kafka.OffsetOutOfRange):
		return nil, f.gap(offset)
	case errors.Is(err, kafka.InvalidMessage): // the broker's own copy is corrupt
		err = fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return nil, fmt.Errorf("fetch %s/%d from offset %d: %w", p.topic, p.id, offset, err)
}

// identifyEvery bounds how long records are delivered on a connection before the topic's ID is asked for again. After
// unaskedFor without a fetch in flight it is asked for at once. No topic can be deleted and created again in less time.
const (
	identifyEvery = 3 * time.Second
	unaskedFor    = 250 * time.Millisecond
)

// dial connects to the leader and asks it for the topic's ID.
func (f *fetcher) dial(offset int64) error {
	conn, err := f.network.dialLeader(f.partition.ctx, f.partition.topic, f.partition.id)
	if err != nil {
		return err
	}
	f.conn, f.identified = conn, time.Time{}
	return f.identify(offset)
}

// identify fails if the topic is not the one that was read up to offset, by this member or by the one that committed
// the offset. The offset does not reveal that once the new log has grown past it. Leader epochs do not either, since
// they begin low in each log.
//
// A fetch that is waiting while its topic is deleted gets an error. The dangerous case is this one:
//
//  1. No fetch is in flight for a while, for example because nothing can be accepted.
//  2. The topic is deleted and created again.
//  3. The next fetch, on the old connection, is answered from the new log. The answer may be empty,
//     if the new log ends at this very offset.
//
// A broker knows a topic's new ID before it has a log for it, and answers the requests of one
// connection in order. So we ask for the ID after an answer and before its records are delivered:
//
//   - with the first records on each connection, so after each error as well
//   - after unaskedFor without a fetch
//   - every identifyEvery while there are records, and once more after the last of them
//
// Once the ID is seen to have changed, the new log is read from its start, including records of it that were already
// delivered.
func (f *fetcher) identify(offset int64) error {
	p := f.partition
	id, cluster, err := f.conn.TopicID(p.ctx, p.topic)
	if err != nil {
		return fmt.Errorf("ask for the ID of topic %s: %w", p.topic, err)
	}
	now, before := logID{id, cluster}, p.log.topic
	if id == before || id == (kafkawire.TopicID{}) {
		return nil
	}
	if before == (kafkawire.TopicID{}) && p.found.cluster == cluster {
		before = p.found.topic // else a tool has copied and translated the offset of another cluster
	}
	if before == (kafkawire.TopicID{}) || before == id {
		p.reads(now)
		return nil
	}
	first, err := f.listOffset(kafka.FirstOffset)
	if err != nil {
		return err
	}
	if first == offset && !f.oneLog { // no record of the new log was skipped
		p.reads(now)
		f.epoch, f.skipping = 0, nil // a record to skip was in the log before
		return nil
	}
	return &TopicRecreatedError{Topic: p.topic, Partition: p.id, Offset: offset, First: first, id: now}
}

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
	// count is the number of records in the batch that is being read. messages counts the messages made of them.
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
		if cut, ok := errors.AsType[*kafkawire.CutError](err); ok {
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
		skipping = nil
		// A record that cannot be decoded yet is not bad, and its partition must not pass it. It is fetched again later,
		// because waiting for it here would keep the memory that other partitions need.
		if received = f.decode(received.Record); errors.Is(received.Err, envelope.ErrUnavailable) {
			// The text alone: a lost connection to another service must not count as one to a broker.
			return fmt.Errorf("decode the record at offset %d: %v", r.Offset, received.Err)
		}
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

// flush sends the chunk to the worker, with next as the offset to continue at. It reports false if the partition ended
// first.
func (d *responseReader) flush(next int64) bool {
	f := d.fetcher
	d.note(next)
	f.usual, d.chunk.next = len(d.chunk.received), next
	d.held.Send(d.chunk.bytes)
	select {
	case f.out <- d.chunk:
		d.sent, d.chunk = next, f.newChunk()
		return true
	case <-f.partition.ctx.Done():
		f.buffer.Release(d.chunk.bytes)
		return false
	}
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
