package kafkaconsumer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// observe refreshes the state that fetching does not report and logs stalls, until ctx ends.
func (s *session) observe(ctx context.Context) {
	var first sync.WaitGroup
	first.Go(func() { s.awaitAssignedWatermarks(ctx) })
	defer first.Wait()
	defer s.consumer.stalling.Clear()
	defer func() {
		for _, p := range s.partitions {
			s.consumer.stalling.Forget(p)
		}
	}()
	idle := idleWatch{consumer: s.consumer}
	for routine.Sleep(ctx, s.consumer.cfg.WatchInterval) {
		if len(s.partitions) == 0 {
			idle.check(ctx)
			continue
		}
		s.refreshWatermarks(ctx)
		s.logStalls()
	}
}

// awaitAssignedWatermarks asks for the high watermark of each partition until it is known. Everything below it counts
// as present at assignment. The first answer to a fetch cannot be used: a leader that was just elected may know less
// than the true watermark. It refuses this request until it knows it.
func (s *session) awaitAssignedWatermarks(ctx context.Context) {
	retry := routine.Backoff{First: fetchBackoffFirst, Max: s.consumer.cfg.WatchInterval}
	for unknown := s.partitions; len(unknown) > 0; {
		ends := s.listEnds(ctx, unknown, kafka.ReadUncommitted)
		var left []*partition
		for _, p := range unknown {
			end := ends[p]
			if end.err == nil && !p.assigned(end.offset) {
				end.err = fmt.Errorf("high watermark of %s/%d: %d is below what is committed", p.topic, p.id, end.offset)
			}
			if end.err != nil {
				p.watermarkUnknown(end.err)
				left = append(left, p)
			}
		}
		unknown = left
		if len(unknown) > 0 && !retry.Wait(ctx) {
			return
		}
	}
}

// refreshWatermarks asks for the ends of the partitions for which no fetch has reported watermarks since the last time.
// Halted, failing or full partitions would otherwise show the lag of their last fetch.
func (s *session) refreshWatermarks(ctx context.Context) {
	var stale []*partition
	for _, p := range s.partitions {
		if p.stale() {
			stale = append(stale, p)
		}
	}
	if len(stale) == 0 {
		return
	}
	ends := s.listEnds(ctx, stale, kafka.ReadUncommitted)
	var stable map[*partition]end
	if s.consumer.cfg.Isolation == ReadCommitted {
		stable = s.listEnds(ctx, stale, kafka.ReadCommitted)
	}
	for _, p := range stale {
		if ends[p].err != nil {
			p.watermarkUnknown(ends[p].err)
			continue
		}
		lastStable := int64(-1)
		if e, asked := stable[p]; asked && e.err == nil {
			lastStable = e.offset
		}
		p.refreshed(ends[p].offset, lastStable)
	}
}

// end is where a partition ends, or why that is unknown.
type end struct {
	offset int64
	err    error
}

// endsAtOnce is how many partitions are asked about at once. kafka-go sends one request for each of them, and opens a
// connection for each that has no answer yet.
const endsAtOnce = 16

// listEnds asks for the ends of partitions as an isolation level sees them: the high watermark, or the last stable
// offset. The result has an entry for each partition.
func (s *session) listEnds(
	ctx context.Context, partitions []*partition, isolation kafka.IsolationLevel,
) map[*partition]end {
	ends := make(map[*partition]end, len(partitions))
	var err error
	for some := range slices.Chunk(partitions, endsAtOnce) {
		if err == nil {
			err = s.listSomeEnds(ctx, some, isolation, ends)
		}
		for _, p := range some {
			if _, known := ends[p]; known {
				continue
			}
			reason := err // as for the chunks before: no broker could be reached
			if reason == nil {
				reason = fmt.Errorf("the answer is not about it: %w", kafka.Unknown)
			}
			ends[p] = end{err: fmt.Errorf("list the end of %s/%d: %w", p.topic, p.id, reason)}
		}
	}
	return ends
}

// listSomeEnds sends one request and stores the answer's offsets in ends. It fails if there is no answer.
func (s *session) listSomeEnds(
	ctx context.Context, partitions []*partition, isolation kafka.IsolationLevel, ends map[*partition]end,
) error {
	c := s.consumer
	request := &listoffsets.Request{ReplicaID: -1, IsolationLevel: int8(isolation)}
	asked := make(map[string]map[int32]*partition)
	for _, p := range partitions { // sorted by topic
		if asked[p.topic] == nil {
			asked[p.topic] = map[int32]*partition{}
			request.Topics = append(request.Topics, listoffsets.RequestTopic{Topic: p.topic})
		}
		asked[p.topic][int32(p.id)] = p
		topic := &request.Topics[len(request.Topics)-1]
		topic.Partitions = append(topic.Partitions, listoffsets.RequestPartition{Partition: int32(p.id),
			CurrentLeaderEpoch: -1, Timestamp: kafka.LastOffset})
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	answer, err := c.network.transport.RoundTrip(ctx, c.network.client.Addr, request)
	if err != nil {
		return err
	}
	response, ok := answer.(*listoffsets.Response)
	if !ok {
		return fmt.Errorf("the answer is %T: %w", answer, kafka.Unknown)
	}
	for _, topic := range response.Topics {
		for _, found := range topic.Partitions {
			p, ok := asked[topic.Topic][found.Partition]
			switch {
			case !ok:
			case found.ErrorCode != 0:
				ends[p] = end{err: fmt.Errorf("list the end of %s/%d: %w", p.topic, p.id, kafka.Error(found.ErrorCode))}
			case found.Offset < 0:
				ends[p] = end{err: fmt.Errorf("list the end of %s/%d: the answer is offset %d: %w", p.topic, p.id, found.Offset,
					kafka.Unknown)}
			default:
				ends[p] = end{offset: found.Offset}
			}
		}
	}
	return nil
}

// logStalls logs when the first partition stalls and when the last one has recovered.
func (s *session) logStalls() {
	c := s.consumer
	for i, h := range c.partitionHealth(s) {
		if h.StalledSince.IsZero() {
			c.stalling.End(s.partitions[i])
			continue
		}
		c.stalling.Begin(s.partitions[i], h.Problem(), zap.String(telemetry.FieldTopic, h.Topic),
			zap.Int(telemetry.FieldPartition, h.Partition),
			zap.Int64(telemetry.FieldLag, h.Lag), zap.Time(telemetry.FieldSince, h.StalledSince))
	}
}

// partitionHealth returns a snapshot of a session's partitions. While accepting or publishing fails, and for
// ProgressTimeout after that, no partition is reported as stalled.
func (c *Consumer) partitionHealth(s *session) []PartitionHealth {
	excused, full := c.accepting.Until(), s.buffer.Bytes() >= c.cfg.BufferBytes
	if until := c.publishing.Until(); until.After(excused) {
		excused = until
	}
	all := make([]PartitionHealth, len(s.partitions))
	for i, p := range s.partitions {
		all[i] = p.health(full, c.cfg.ProgressTimeout, excused)
		all[i].Generation = s.gen.ID
	}
	return all
}

// lag returns how far accepted is behind the high watermark, -1 while unknown. The lock is held.
func (p *partition) lag() int64 { return p.distanceTo(p.highWatermark) }

// readable returns how far accepted is behind the last readable offset. With read_committed that is the last stable
// offset, before which no transaction is open. A consumer can be expected to reach this offset and not the high
// watermark.
func (p *partition) readable() int64 {
	if p.readCommitted && p.lastStable >= 0 {
		return p.distanceTo(min(p.lastStable, p.highWatermark))
	}
	return p.lag()
}

func (p *partition) distanceTo(end int64) int64 {
	if end < 0 || p.accepted < 0 {
		return -1
	}
	return max(end-p.accepted, 0)
}

// compare updates since when the partition lags, after either end moved. The lock is held.
func (p *partition) compare() {
	for _, each := range []struct {
		lag   int64
		since *time.Time
	}{{p.lag(), &p.behindSince}, {p.readable(), &p.readableSince}} {
		switch {
		case each.lag <= 0:
			*each.since = time.Time{}
		case each.since.IsZero():
			*each.since = p.clock.Now()
		}
	}
}

// assigned stores the high watermark asked for at assignment. It reports false for a value that cannot be true: one
// below the committed offset comes from a leader that lags. If a gap was passed in between, the watermark of its log
// stays.
func (p *partition) assigned(highWatermark int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if highWatermark < p.committed {
		return false
	}
	p.watermarkErr = nil
	if p.assignedWatermark < 0 {
		p.assignedWatermark = highWatermark
	}
	return true
}

// stale reports whether no fetch has updated the watermarks since the last call.
func (p *partition) stale() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	stale := !p.fresh
	p.fresh = false
	return stale
}

// refreshed stores watermarks that were requested because nothing is fetched. It ignores them if a fetch was answered
// in between, whose watermarks are newer. lastStable is -1 where it was not asked for.
func (p *partition) refreshed(highWatermark, lastStable int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watermarkErr = nil
	if p.fresh {
		return
	}
	p.highWatermark, p.toldAt = highWatermark, p.clock.Now()
	if lastStable >= 0 {
		p.lastStable = lastStable
	}
	p.compare()
}

func (p *partition) watermarkUnknown(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watermarkErr = err
}

// stalledSince returns since when there is something to read and no progress, if that is longer than timeout, and zero
// otherwise. A partition that is halted or cannot be fetched is reported as that and not as stalled. excused is until
// when accepting is known to have failed.
func (p *partition) stalledSince(timeout time.Duration, excused time.Time) time.Time {
	if p.halted != nil || p.err != nil || p.readable() <= 0 {
		return time.Time{}
	}
	since := p.assignedAt
	for _, at := range []time.Time{p.progressAt, p.readableSince, p.wellSince, excused} {
		if at.After(since) {
			since = at
		}
	}
	if p.clock.Now().Sub(since) < timeout {
		return time.Time{}
	}
	return since
}
