package kafkaconsumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
	"github.com/gorm-inbox/inbox/internal/routine"
)

// ErrRange means that the records to read again are none of the topic's: it has no such partition, or its log ends
// before them.
var ErrRange = errors.New("not in the topic")

const (
	// againTries is how often in a row a request may fail, or be answered without records, before reading again ends.
	againTries = 10
	// deadLetterTimeout bounds how long reading again waits for a dead-letter topic that does not acknowledge.
	deadLetterTimeout = 30 * time.Second
)

// ReadAgain reads records of one of the consumer's topics and passes them to accept, batch by batch, in the order of
// their partition (contract 7.11). It joins no group and commits no offset. Records from the group's committed offset
// on are left to the consumer: accepted here, they would come before earlier ones of their lane. Bad records that
// accept wants published go to the dead-letter topic, unless it is a dry run. Only one partition is read at a time, in
// the consumer's bounds for memory.
//
// It takes the place of Start: make a consumer for each call. The result is valid also with an error, such as that of
// ctx or of a record that halts, and Left then begins with the first record that is not accepted, or may be accepted
// without being counted. ErrRange, *TopicRecreatedError and the errors of a log that cannot be read are final. Others
// may pass: after a few tries the call ends, and may go on later.
func (c *Consumer) ReadAgain(ctx context.Context, r envelope.ReadAgain,
	accept func(context.Context, []envelope.Received) ([]envelope.Result, error),
) (envelope.ReadAgainResult, error) {
	defer c.network.Cut()
	a := &rereader{Consumer: c, request: r, accept: accept}
	err := a.locate(ctx)
	for err == nil && len(a.result.Left) > 0 && !a.full() {
		left := &a.result.Left[0]
		if err = a.read(ctx, left); err == nil && left.From == left.To {
			a.result.Left = a.result.Left[1:]
		}
		if gap, ok := errors.AsType[*OffsetGapError](err); ok && gap.Offset < gap.First {
			next := min(gap.First, left.To)
			a.result.Gaps = append(a.result.Gaps, envelope.Gap{Topic: r.Topic, Partition: left.Partition, From: left.From,
				To: next, Reason: fmt.Sprintf("%d records were deleted, or compacted away", next-left.From)})
			left.From, err = next, nil
		}
	}
	if len(a.result.Left) == 0 {
		a.result.Left = nil
	}
	if errors.As(err, new(*TopicRecreatedError)) {
		err = fmt.Errorf("the records to read are gone, only times select those of the new log: %w", err)
	} else if err != nil {
		err = c.cfg.explain(err)
	}
	return a.result, err
}

// rereader is one running ReadAgain.
type rereader struct {
	*Consumer
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
	ranges, keys, err := a.wanted(ctx)
	if err != nil {
		return err
	}
	conn, err := a.network.dialLeader(ctx, topic, keys[0].id)
	if err != nil {
		return err
	}
	defer conn.HangUp()
	topicID, cluster, err := conn.TopicID(ctx, topic)
	if err != nil {
		return fmt.Errorf("ask for the ID of topic %s: %w", topic, err)
	}
	log := logID{topicID, cluster}
	committed, err := a.committed(ctx, ranges, log)
	if err != nil {
		return err
	}
	ends, err := a.offsetsAt(ctx, keys, kafka.LastOffset)
	var firsts, from map[int]int64
	to, timed := ends, len(a.request.Ranges) == 0
	if timed && err == nil {
		firsts, err = a.offsetsAt(ctx, keys, kafka.FirstOffset)
	}
	if timed && err == nil {
		from, err = a.offsetsAt(ctx, keys, milliseconds(a.request.From))
	}
	if timed && err == nil && !a.request.To.IsZero() {
		to, err = a.offsetsAt(ctx, keys, milliseconds(a.request.To))
	}
	if err != nil {
		return err
	}
	for _, r := range ranges {
		end, first := ends[r.Partition], firsts[r.Partition]
		if timed {
			r.From, r.To = min(from[r.Partition], end), min(to[r.Partition], end)
		} else if r.To = cmp.Or(r.To, end); r.Log != "" && logOf(r.Log) != log {
			return &TopicRecreatedError{Topic: topic, Partition: r.Partition, Offset: r.From, id: log}
		} else if r.From < 0 || r.From > r.To || r.To > end {
			return fmt.Errorf("%w: offsets %d to %d of %s/%d, which ends at %d", ErrRange, r.From, r.To, topic, r.Partition,
				end)
		}
		if first > 0 && r.From == first {
			a.result.Gaps = append(a.result.Gaps, envelope.Gap{Topic: topic, Partition: r.Partition, From: -1, To: first,
				Reason: "records before were deleted, maybe also some of the period"})
		}
		if r.From >= r.To {
			continue
		}
		r.Log = log.metadata()
		if read, known := committed[r.Partition]; known && r.To > read {
			unread := r
			unread.From = max(r.From, read)
			a.result.Unconsumed = append(a.result.Unconsumed, unread)
			if r.To = read; r.From >= r.To {
				continue
			}
		}
		a.result.Left = append(a.result.Left, r)
	}
	return nil
}

// offsetsAt returns each partition's first or last offset, or the first one with a time or a later one. It is
// math.MaxInt64 where no record has such a time.
func (a *rereader) offsetsAt(ctx context.Context, keys []partitionKey, at int64) (map[int]int64, error) {
	found := map[int]int64{}
	for key, its := range a.network.listOffsets(ctx, keys, at, a.cfg.Isolation) {
		if its.err != nil {
			return nil, its.err
		}
		if found[key.id] = its.offset; its.offset < 0 {
			found[key.id] = math.MaxInt64
		}
	}
	return found, nil
}

// committed returns the group's committed offsets of the ranges' partitions that have one. An offset of a deleted log
// counts as 0: the consumer has read nothing of this one.
func (a *rereader) committed(ctx context.Context, ranges []envelope.Range, log logID) (map[int]int64, error) {
	topic, of := a.request.Topic, map[string][]int{}
	for _, r := range ranges {
		of[topic] = append(of[topic], r.Partition)
	}
	var group groupOffsets
	if err := againTried(ctx, func() (err error) {
		if group, err = a.groupOffsets(ctx, of); errors.Is(err, kafka.GroupIdNotFound) {
			return nil // no member has joined it yet, and no offset was committed
		}
		return err
	}); err != nil {
		return nil, fmt.Errorf("committed offsets of group %q: %w", a.cfg.GroupID, err)
	}
	committed := map[int]int64{}
	for id, at := range group.of[topic] {
		if at.log.cluster == log.cluster && at.log.topic != log.topic && at.log.topic != (kafkawire.TopicID{}) &&
			log.topic != (kafkawire.TopicID{}) {
			at.offset = min(at.offset, 0)
		}
		if at.offset >= 0 {
			committed[id] = at.offset
		}
	}
	return committed, nil
}

// againTried makes a call until it succeeds, againTries times at most.
func againTried(ctx context.Context, call func() error) error {
	retry := routine.Backoff{First: acceptBackoffFirst, Max: maxAcceptBackoff}
	for tries := 1; ; tries++ {
		if err := call(); err == nil || tries == againTries || !retry.Wait(ctx) {
			return err
		}
	}
}

// milliseconds returns the first millisecond at t or later.
func milliseconds(t time.Time) int64 {
	return max(t.Add(time.Millisecond-time.Nanosecond).UnixMilli(), 0) // below are places such as kafka.LastOffset
}

// wanted returns the ranges of the request, or empty ones of its partitions, and their partitions.
func (a *rereader) wanted(ctx context.Context) (ranges []envelope.Range, keys []partitionKey, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.RequestTimeout)
	defer cancel()
	topic := a.request.Topic
	n, err := a.network.Partitions(ctx, topic)
	if err != nil {
		return nil, nil, err
	}
	ranges = slices.Clone(a.request.Ranges)
	for _, id := range slices.Sorted(slices.Values(a.request.Partitions)) {
		ranges = append(ranges, envelope.Range{Partition: id})
	}
	if len(a.request.Ranges)+len(a.request.Partitions) == 0 {
		for _, id := range a.cfg.own(n) {
			ranges = append(ranges, envelope.Range{Partition: id})
		}
	}
	for _, r := range ranges {
		if !a.cfg.names(r.Partition) {
			return nil, nil, fmt.Errorf("%w: partition %d of topic %s is not one of option Partitions, another group reads it",
				ErrRange, r.Partition, topic)
		}
		key := partitionKey{topic, r.Partition}
		if r.Partition < 0 || r.Partition >= n || slices.Contains(keys, key) {
			return nil, nil, fmt.Errorf("%w: partition %d, once each of 0 to %d of topic %s", ErrRange, r.Partition, n-1, topic)
		}
		keys = append(keys, key)
	}
	return ranges, keys, nil
}

// read reads a range and accepts its records. left begins after what is accepted. The fetcher's goroutine ends before
// read returns.
func (a *rereader) read(ctx context.Context, left *envelope.Range) error {
	reading, cancel := context.WithCancel(ctx)
	chunks := make(chan *chunk)
	p := newPartition(reading, a.request.Topic, left.Partition, -1)
	p.clock, p.readCommitted, p.log = a.clock, a.cfg.Isolation == ReadCommitted, logOf(left.Log)
	f := &fetcher{shared: a.shared, partition: p, buffer: kafkawire.NewBudget(a.cfg.BufferBytes), decode: a.decode,
		sizeBound: a.decoder.SizeBound, oneLog: true, out: chunks}
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
	switch {
	case failed == nil:
		left.From = left.To
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return failed
}

// readRange sends the records from an offset on, and ends once it has sent or passed all before another.
func (f *fetcher) readRange(offset, to int64) error {
	defer f.hangUp()
	p := f.partition
	retry := routine.Backoff{First: fetchBackoffFirst, Max: maxFetchBackoff}
	for tries := 0; offset < to; {
		if !f.buffer.Wait(p.ctx) {
			return p.ctx.Err()
		}
		next, some, err := f.fetchOnce(offset)
		if next > offset {
			offset, tries = next, 0
			retry.Reset()
		}
		readable := p.readableTo()
		switch {
		case errors.Is(err, errThrottled) || err == nil && some:
			continue
		case err != nil:
			f.hangUp() // the rest of the connection's data cannot be trusted
		case readable >= to && tries >= fatalTries-1:
			return &OffsetGapError{Topic: p.topic, Partition: p.id, Offset: offset, First: to, Last: readable}
		default:
			err = fmt.Errorf("%s/%d has no records from offset %d on, it is readable up to %d and not to %d", p.topic, p.id,
				offset, readable, to)
		}
		if tries++; fatal(err) && tries >= fatalTries || tries >= againTries || !retry.Wait(p.ctx) {
			return err
		}
	}
	return nil
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
	c.next = min(c.next, left.To)
	if i := slices.IndexFunc(c.received, func(r envelope.Received) bool { return r.Record.Offset >= left.To }); i >= 0 {
		c.received = c.received[:i]
	}
	if rest := a.request.MaxRecords - a.result.Read; a.request.MaxRecords > 0 && int64(len(c.received)) > rest {
		c.received, c.next = c.received[:rest], c.received[rest].Record.Offset
	}
	var results []envelope.Result
	if err := againTried(ctx, func() (err error) {
		results, err = try(c.received, func() ([]envelope.Result, error) { return a.accept(ctx, c.received) })
		return err
	}); err != nil {
		return fmt.Errorf("accept records of %s/%d from offset %d: %w", a.request.Topic, left.Partition, left.From, err)
	}
	outcome := batchOutcome{partition: c.partition}
	outcome.take(c, results, a.deadLetters != nil)
	if len(outcome.deadLetters) > 0 && !a.request.DryRun {
		session, cancel := context.WithTimeout(ctx, deadLetterTimeout)
		defer cancel()
		acknowledged, err := a.deadLetters.publish(ctx, session, c.partition, outcome.deadLetters)
		if errors.As(err, new(*DeadLetterError)) {
			h := recordHalt(err, true)
			outcome.next, outcome.halted = outcome.deadLetters[acknowledged].record.Offset, &h
		} else if err != nil {
			return fmt.Errorf("publish bad records of %s/%d to dead-letter topic %q: %w", a.request.Topic, left.Partition,
				a.cfg.DeadLetterTopic, err) // they all come again
		}
	}
	left.From = outcome.next
	a.count(c.received, results, outcome.next)
	if a.request.Progress != nil {
		result := a.result
		result.Left, result.ByType = slices.Clone(result.Left), maps.Clone(result.ByType)
		a.request.Progress(result)
	}
	if outcome.halted != nil {
		return fmt.Errorf("reading again ends before offset %d of %s/%d, fix the cause and go on there, or go on after it: %w",
			left.From, a.request.Topic, left.Partition, outcome.halted.reason)
	}
	return nil
}

// count adds the results of the records before an offset.
func (a *rereader) count(received []envelope.Received, results []envelope.Result, next int64) {
	n := &a.result
	for i, r := range results {
		if received[i].Record.Offset >= next {
			return
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
		for k, outcome := range r.Outcomes {
			a.countType(received[i].Messages[k].Type, outcome)
		}
	}
}

// maxTypes bounds what producers can make of a result.
const maxTypes = 50

func (a *rereader) countType(messageType string, outcome handler.AcceptOutcome) {
	if a.result.ByType == nil {
		a.result.ByType = map[string]envelope.TypeCounts{}
	}
	n, known := a.result.ByType[messageType]
	if !known && len(a.result.ByType) >= maxTypes {
		messageType = envelope.OtherTypes
		n = a.result.ByType[messageType]
	}
	switch outcome {
	case handler.OutcomeAccepted:
		n.Accepted++
	case handler.OutcomeDuplicate:
		n.Duplicates++
	case handler.OutcomeUnrouted:
		n.Unrouted++
	default:
		return
	}
	a.result.ByType[messageType] = n
}
