package kafkaconsumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
	"github.com/gorm-inbox/inbox/internal/routine"
)

// ErrRange means that the records to read again are none of the topic's: it has no such partition, or its log ends
// before them.
var ErrRange = errors.New("not in the topic")

const (
	// againTries is how often in a row a request may fail before reading again ends.
	againTries = 10
	// againEmpty is how often in a row a log must have no batch before the end of a range, of which compaction has
	// removed all.
	againEmpty = 3
	// letterTimeout bounds how long reading again waits for a dead-letter topic that does not acknowledge.
	letterTimeout = 30 * time.Second
)

// ReadAgain reads records of one of the consumer's topics and passes them to accept, batch by batch, in the order of
// their partition (contract 7.11). It joins no group and reads and commits no offset of the group. Bad records that
// accept wants published go to the dead-letter topic, unless it is a dry run. Only one partition is read at a time, in
// the consumer's bounds for memory.
//
// It takes the place of Start: make a consumer for each call. The result is valid also with an error, such as that of
// ctx or a *envelope.HaltError, and Left then begins with the first record that is not accepted, or may be accepted
// without being counted. ErrRange, *TopicRecreatedError and the errors of a log that cannot be read are final. Others
// may pass: after a few tries the call ends, and may go on later.
func (c *Consumer) ReadAgain(ctx context.Context, r envelope.ReadAgain,
	accept func(context.Context, []envelope.Received) ([]envelope.Result, error),
) (envelope.ReadAgainResult, error) {
	defer c.network.Cut()
	a := &rereader{shared: c.shared, request: r, accept: accept}
	err := a.locate(ctx)
	for err == nil && len(a.result.Left) > 0 && !a.full() {
		left := &a.result.Left[0]
		if err = a.read(ctx, left); err == nil && left.From == left.To {
			a.result.Left = a.result.Left[1:]
		}
		if gap, ok := errors.AsType[*OffsetGapError](err); ok && gap.Offset < gap.First {
			next := min(gap.First, left.To)
			a.result.Gaps = append(a.result.Gaps, envelope.Gap{Topic: r.Topic, Partition: left.Partition, From: left.From,
				To: next, Reason: fmt.Sprintf("%d records were deleted", next-left.From)})
			left.From, err = next, nil
		}
	}
	if len(a.result.Left) == 0 {
		a.result.Left = nil
	}
	if err != nil {
		err = c.cfg.explain(err)
	}
	return a.result, err
}

// rereader is one running ReadAgain.
type rereader struct {
	*shared
	request envelope.ReadAgain
	accept  func(context.Context, []envelope.Received) ([]envelope.Result, error)
	result  envelope.ReadAgainResult
}

// full reports whether MaxRecords were read.
func (a *rereader) full() bool {
	return a.request.MaxRecords > 0 && a.result.Read >= a.request.MaxRecords
}

// locate finds the ranges to read. It asks for the topic's ID before the offsets, so that none of another log counts
// for this one.
func (a *rereader) locate(ctx context.Context) error {
	topic := a.request.Topic
	partitions, err := a.partitions(ctx)
	if err != nil {
		return err
	}
	conn, err := a.network.dialLeader(ctx, topic, 0)
	if err != nil {
		return err
	}
	defer conn.HangUp()
	topicID, cluster, err := conn.TopicID(ctx, topic)
	if err != nil {
		return fmt.Errorf("ask for the ID of topic %s: %w", topic, err)
	}
	keys := make([]partitionKey, len(partitions))
	for i, id := range partitions {
		keys[i] = partitionKey{topic, id}
	}
	at := func(place int64) (found map[int]int64, err error) {
		found = map[int]int64{}
		for key, its := range a.network.listOffsets(ctx, keys, place, a.cfg.Isolation) {
			found[key.id], err = its.offset, cmp.Or(err, its.err)
		}
		return found, err
	}
	ends, err := at(kafka.LastOffset)
	if err != nil {
		return err
	}
	log := logID{topicID, cluster}
	if len(a.request.Ranges) > 0 {
		return a.check(ends, log)
	}
	firsts, err := at(kafka.FirstOffset)
	if err != nil {
		return err
	}
	from, err := at(milliseconds(a.request.From))
	if err != nil {
		return err
	}
	to := ends
	if !a.request.To.IsZero() {
		if to, err = at(milliseconds(a.request.To)); err != nil {
			return err
		}
	}
	for _, id := range partitions {
		end := ends[id]
		r := envelope.Range{Partition: id, From: within(from[id], end), To: within(to[id], end), Log: log.metadata()}
		if first := firsts[id]; first > 0 && r.From == first && r.From < r.To {
			a.result.Gaps = append(a.result.Gaps, envelope.Gap{Topic: topic, Partition: id, From: -1, To: first,
				Reason: "records before were deleted, maybe also some of the period"})
		}
		if r.From < r.To {
			a.result.Left = append(a.result.Left, r)
		}
	}
	return nil
}

// milliseconds returns the first millisecond at t or later.
func milliseconds(t time.Time) int64 {
	return max(t.Add(time.Millisecond-time.Nanosecond).UnixMilli(), 0) // below are places such as kafka.LastOffset
}

// within returns the offset that was found, or the end if there is none before it.
func within(found, end int64) int64 {
	if found < 0 {
		return end
	}
	return min(found, end)
}

// partitions returns the partitions to read.
func (a *rereader) partitions(ctx context.Context) ([]int, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.RequestTimeout)
	defer cancel()
	n, err := a.network.Partitions(ctx, a.request.Topic)
	if err != nil {
		return nil, err
	}
	wanted := slices.Sorted(slices.Values(a.request.Partitions))
	for _, r := range a.request.Ranges {
		wanted = append(wanted, r.Partition)
	}
	if len(wanted) == 0 {
		for id := range n {
			wanted = append(wanted, id)
		}
	}
	for i, id := range wanted {
		if id < 0 || id >= n || slices.Contains(wanted[:i], id) {
			return nil, fmt.Errorf("%w: partition %d, once each of 0 to %d of topic %s", ErrRange, id, n-1, a.request.Topic)
		}
	}
	return wanted, nil
}

// check takes the ranges of the request.
func (a *rereader) check(ends map[int]int64, log logID) error {
	for _, r := range a.request.Ranges {
		end := ends[r.Partition]
		r.To = cmp.Or(r.To, end)
		if before := logOf(r.Log); before != (logID{}) && before != log {
			return &TopicRecreatedError{Topic: a.request.Topic, Partition: r.Partition, Offset: r.From, id: log}
		}
		if r.From < 0 || r.From > r.To || r.To > end {
			return fmt.Errorf("%w: offsets %d to %d of %s/%d, which ends at %d", ErrRange, r.From, r.To, a.request.Topic,
				r.Partition, end)
		}
		if r.Log = log.metadata(); r.From < r.To {
			a.result.Left = append(a.result.Left, r)
		}
	}
	return nil
}

// read reads a range and accepts its records. left begins after what is accepted. The fetcher's goroutine ends before
// read returns.
func (a *rereader) read(ctx context.Context, left *envelope.Range) error {
	ctx, cancel := context.WithCancel(ctx)
	chunks := make(chan *chunk)
	p := newPartition(ctx, a.request.Topic, left.Partition, -1)
	p.clock, p.readCommitted, p.log = a.clock, a.cfg.Isolation == ReadCommitted, logOf(left.Log)
	f := &fetcher{shared: a.shared, partition: p, buffer: kafkawire.NewBudget(a.cfg.BufferBytes), decode: a.decode,
		sizeBound: a.decoder.SizeBound, out: chunks}
	var failed error
	from, to := left.From, left.To
	go func() {
		defer close(chunks)
		failed = routine.Protect("reading again", func() error { return f.readRange(from, to) })
	}()
	defer func() {
		cancel()
		for range chunks {
			continue // until the fetcher has ended
		}
	}()
	for c := range chunks {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err := a.take(ctx, c, left)
		f.buffer.Release(c.bytes)
		if err != nil || a.full() {
			return err
		}
	}
	if failed == nil {
		left.From = left.To
	}
	return failed
}

// readRange sends the records from an offset on, and ends once it has sent or passed all before another.
func (f *fetcher) readRange(offset, to int64) error {
	defer f.hangUp()
	p, log := f.partition, f.partition.log
	retry := routine.Backoff{First: fetchBackoffFirst, Max: maxFetchBackoff}
	for tries, empty := 0, 0; offset < to; {
		if !f.buffer.Wait(p.ctx) {
			return p.ctx.Err()
		}
		next, some, err := f.fetchFrom(offset, log)
		switch {
		case p.ctx.Err() != nil:
			return p.ctx.Err()
		case next > offset:
			offset, tries, empty = next, 0, 0
			retry.Reset()
		}
		if errors.Is(err, errThrottled) {
			continue
		}
		if err == nil {
			if some || p.readableTo() < to {
				empty = 0
			} else if empty++; empty == againEmpty {
				return nil
			}
			continue
		}
		f.hangUp()
		if tries++; fatal(err) && tries >= fatalTries || tries >= againTries || !retry.Wait(p.ctx) {
			return err
		}
	}
	return nil
}

// fetchFrom is fetchOnce for the records of one log. A consumer that has read no record of the log before goes on in
// the new one; here its records are not those that were asked for.
func (f *fetcher) fetchFrom(offset int64, log logID) (next int64, some bool, err error) {
	if f.conn == nil {
		if err := f.dial(offset); err != nil {
			return offset, false, err
		}
	}
	known := log != (logID{}) // not by brokers before Kafka 2.8
	if !known || f.partition.log == log {
		next, some, err = f.fetchOnce(offset)
	}
	if p := f.partition; known && p.log != log {
		return offset, false, &TopicRecreatedError{Topic: p.topic, Partition: p.id, Offset: offset, id: p.log}
	}
	return next, some, err
}

// readableTo returns the end of what the last response could have had.
func (p *partition) readableTo() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.readCommitted {
		return p.lastStable
	}
	return p.highWatermark
}

// take accepts a chunk's records that are within the range and MaxRecords.
func (a *rereader) take(ctx context.Context, c *chunk, left *envelope.Range) error {
	received, next := c.received, min(c.next, left.To)
	if i := slices.IndexFunc(received, func(r envelope.Received) bool { return r.Record.Offset >= left.To }); i >= 0 {
		received = received[:i]
	}
	if most := a.request.MaxRecords - a.result.Read; a.request.MaxRecords > 0 && int64(len(received)) > most {
		received, next = received[:most], received[most].Record.Offset
	}
	results, err := a.try(ctx, received)
	if err != nil {
		return fmt.Errorf("accept records of %s/%d from offset %d: %w", a.request.Topic, left.Partition, left.From, err)
	}
	before := a.result
	letters, halted := a.count(received, results)
	if len(letters) > 0 && !a.request.DryRun {
		session, cancel := context.WithTimeout(ctx, letterTimeout)
		defer cancel()
		if _, err := a.deadLetters.publish(ctx, session, c.partition, letters); err != nil {
			a.result = before // they all come again
			return fmt.Errorf("publish bad records of %s/%d to dead-letter topic %q: %w", a.request.Topic, left.Partition,
				a.cfg.DeadLetterTopic, err)
		}
	}
	if halted != nil {
		next = halted.Offset
	}
	left.From = next
	if a.request.Progress != nil {
		result := a.result
		result.Left = slices.Clone(result.Left)
		a.request.Progress(result)
	}
	if halted != nil {
		return halted
	}
	return nil
}

// try calls accept once, unless there is nothing to accept: all that was read is hidden.
func (a *rereader) try(ctx context.Context, received []envelope.Received) ([]envelope.Result, error) {
	if len(received) == 0 {
		return nil, nil
	}
	results, err := protect(func() ([]envelope.Result, error) { return a.accept(ctx, received) })
	if err == nil && len(results) != len(received) {
		err = fmt.Errorf("the acceptor returned %d results for %d records", len(results), len(received))
	}
	return results, err
}

// count adds the results up to a record that halts. It returns the records to publish, and the halt.
func (a *rereader) count(
	received []envelope.Received, results []envelope.Result,
) (letters []deadLetter, halted *envelope.HaltError) {
	n := &a.result
	for i, r := range results {
		record := received[i].Record
		if r.Disposition == envelope.Halt || r.Disposition == envelope.DeadLetter && a.deadLetters == nil {
			return letters, &envelope.HaltError{Topic: record.Topic, Partition: record.Partition, Offset: record.Offset,
				Err: r.Err}
		}
		n.Read++
		switch {
		case r.Err != nil:
			n.Bad++
		case len(received[i].Messages) == 0:
			n.Empty++
		}
		n.Accepted += int64(r.Accepted)
		n.Duplicates += int64(r.Duplicates)
		n.Unrouted += int64(r.Unrouted)
		if r.Disposition == envelope.DeadLetter {
			letters = append(letters, deadLetter{record, r.Err, r.Reason})
		}
	}
	return letters, nil
}
