package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// halt is why a partition is stopped.
type halt struct {
	reason error
	// record means that a record halted it. Records that were fetched after it are dropped.
	record    bool
	decisions []string // that an operator may take
}

// recordHalt is a halt before a record. skippable means that it is about this record alone.
func recordHalt(reason error, skippable bool) halt {
	h := halt{reason: reason, record: true, decisions: []string{columns.DecisionResume}}
	if skippable {
		h.decisions = append(h.decisions, columns.DecisionSkip)
	}
	return h
}

// granted is an operator's request with the halt that it is for.
type granted struct {
	request models.PartitionRequest
	halt    halt
}

// pollRequests polls for operators' requests while a partition is halted, and passes each request to the
// fetcher of its partition (contract 7.10).
func (s *session) pollRequests(ctx context.Context) {
	c := s.consumer
	defer c.attending.Clear()
	for routine.Sleep(ctx, c.cfg.HeartbeatInterval) {
		if !slices.ContainsFunc(s.partitions, (*partition).isHalted) {
			c.attending.End(nil)
			continue
		}
		requests, err := protect(func() ([]models.PartitionRequest, error) {
			return c.acceptor.PartitionRequests(ctx, c.channel)
		})
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.attending.Begin(nil, err)
		default:
			c.attending.End(nil)
			s.passRequests(requests)
		}
	}
}

// passRequests passes requests to the partitions that they are for.
func (s *session) passRequests(requests []models.PartitionRequest) {
	for _, r := range requests {
		i := slices.IndexFunc(s.partitions, func(p *partition) bool {
			return p.topic == r.Topic && p.id == int(r.Partition)
		})
		if i < 0 {
			continue // another member's
		}
		if _, matches := s.partitions[i].haltFor(r); matches {
			select {
			case s.partitions[i].requests <- r:
			default: // the fetcher has not taken the last one yet; the next poll finds this one again
			}
		}
	}
}

// awaitRequest waits until a request lets the halted partition go on. It returns the offset to
// fetch, and false if the session ended first.
func (f *fetcher) awaitRequest(session context.Context) (offset int64, ok bool) {
	f.skipping, f.passing = nil, nil
	for {
		select {
		case r := <-f.partition.requests:
			if f.resumes(session, r) {
				f.epoch = 0 // the records that are read again may be of an earlier epoch
				return f.partition.resume(session), true
			}
		case <-session.Done():
			return 0, false
		}
	}
}

// resumes reports whether a request lets the partition be fetched again. A skip and a passed gap are
// carried out later, when they can be stored.
func (f *fetcher) resumes(session context.Context, r models.PartitionRequest) bool {
	h, matches := f.partition.haltFor(r)
	if !matches {
		return false // of the time before another halt
	}
	fields := []zap.Field{zap.String(telemetry.FieldTopic, r.Topic), zap.Int32(telemetry.FieldPartition, r.Partition),
		zap.Int64(telemetry.FieldOffset, r.Offset), zap.String(telemetry.FieldActor, r.Actor),
		zap.String(telemetry.FieldAction, r.Decision)}
	switch possible := slices.Contains(h.decisions, r.Decision); {
	case possible && r.Decision == columns.DecisionSkip:
		f.skipping = &granted{r, h}
	case possible && r.Decision == columns.DecisionContinue:
		f.passing = &granted{r, h}
	default:
		// There is nothing to store, so the request is deleted before it takes effect. After a crash
		// in between, the partition is read again anyway.
		disposition, err := f.carryOut(session, r, nil, nil)
		switch {
		case err != nil: // the next poll finds the request again
			f.log.Warn("inbox: an operator's request cannot be carried out yet", append(fields, zap.Error(err))...)
			return false
		case !possible:
			f.log.Warn("inbox: an operator's request is dropped: the partition has halted for another reason since",
				append(fields, zap.Error(h.reason))...)
			return false
		case disposition != envelope.Durable: // replaced by another request
			return false
		}
	}
	f.log.Info("inbox: an operator resumes a halted partition", fields...)
	return true
}

// carryOut calls the acceptor once.
func (s *shared) carryOut(
	ctx context.Context, r models.PartitionRequest, record *envelope.Received, gap *envelope.Gap,
) (envelope.Disposition, error) {
	return protect(func() (envelope.Disposition, error) { return s.acceptor.CarryOut(ctx, r, record, gap) })
}

// skip stores the record of a chunk as rejected and moves the offset after it. If the request is no
// longer there, or the database refuses the record, the partition halts again as before.
func (w *worker) skip(ctx context.Context, c *chunk) bool {
	disposition := envelope.Halt
	if !w.untilDone(ctx, 1, func() (err error) {
		disposition, err = w.carryOut(ctx, c.skipping.request, &c.received[0], nil)
		return err
	}) {
		return false
	}
	if disposition == envelope.Durable {
		c.partition.accept(c.next, w.clock.Now())
	} else {
		w.halt(c.partition, c.skipping.halt)
	}
	return true
}

func (p *partition) isHalted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.halted != nil
}

// haltFor returns the partition's halt, and whether a request is for it: for the offset at which the
// partition is halted, once nothing that was fetched can move that offset any more.
func (p *partition) haltFor(r models.PartitionRequest) (halt, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.halted == nil || p.accepted != r.Offset || !p.halted.record && p.next != p.accepted {
		return halt{}, false
	}
	return *p.halted, true
}

// resume lets the fetcher of a halted partition fetch again, from the offset that it returns. Chunks
// of the run before are dropped from now on: they may begin after the record that halted it.
func (p *partition) resume(session context.Context) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ctx, p.stop = context.WithCancel(session)
	p.halted, p.haltedAt, p.err, p.errSince = nil, time.Time{}, nil, time.Time{}
	p.next, p.wellSince = p.accepted, p.clock.Now()
	p.run++
	return p.accepted
}

// takes reports whether chunks of a run are still accepted.
func (p *partition) takes(run int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run == run && (p.halted == nil || !p.halted.record)
}

// commitCheckPause is how often passGap checks whether all it sent is committed.
const commitCheckPause = 10 * time.Millisecond

// Before the offset moves back, the log must confirm the reason this often. A leader that lags may report an old end,
// or an old topic.
const (
	agreeAnswers = 12
	agreePause   = 250 * time.Millisecond
)

// passGap continues after a gap if the acceptor stored the gap and allows it, or if an operator requested it (passing).
// It halts the partition if the acceptor does not, or if reason is no gap. It returns the offset to continue at, and
// false if there is none. If the log turns out to hold the offset, reading continues there.
//
// Only passGap may move the committed offset back: to the beginning of a log that ends before the offset, or to the
// beginning of another log than the one that was read. Topic IDs or leader epochs show that it is another log. The
// offsets of a deleted log are worthless, and all records of the new one are unread. Records that both logs contain are
// recognized by their message IDs.
//
// Moving back is safe only if nothing of the old log can move the offset afterwards. So we first wait until all records
// that were sent to workers are accepted and committed. Otherwise:
//
//  1. A chunk still on its way to a worker is accepted after the move, and its acceptance carries
//     the offset past records of the new log.
//  2. A commit still on its way to the coordinator overtakes the commit that moves the offset back.
//
// The coordinator itself fences commits of earlier generations.
//
// Waiting and storing the gap may take any time, so the gap that is stored is the one the log shows at that moment. It
// is stored before the offset moves. After a crash in between, the same gap is found again and is then already known.
func (f *fetcher) passGap(offset int64, reason error) (next int64, ok bool) {
	p := f.partition
	if _, err := f.describeGap(offset, reason); err != nil {
		f.halt(p, halt{reason: err, decisions: []string{columns.DecisionResume}})
		return 0, false
	}
	for !p.isCommitted(offset) {
		if !routine.Sleep(p.ctx, commitCheckPause) {
			return 0, false
		}
	}
	defer f.accepting.Forget(f)
	retry := routine.Backoff{First: acceptBackoffFirst, Max: maxAcceptBackoff}
	for {
		gap, now, err := f.confirm(offset, reason)
		if p.ctx.Err() != nil {
			return 0, false
		}
		switch {
		case err != nil:
			f.failed(err, zap.Int64(telemetry.FieldOffset, offset))
		case now == nil && f.passing == nil:
			return offset, true
		default:
			disposition, err := f.keepGap(gap, now != nil)
			if p.ctx.Err() != nil {
				return 0, false
			}
			if err == nil {
				f.accepting.End(f)
				f.passing = nil
				if now == nil {
					return offset, true
				}
				reason = now
				if disposition == envelope.Halt {
					f.halt(p, halt{reason: reason, decisions: []string{columns.DecisionContinue}})
					return 0, false
				}
				return f.restart(gap.To, reason)
			}
			f.accepting.Begin(f, err, zap.String(telemetry.FieldTopic, p.topic), zap.Int(telemetry.FieldPartition, p.id),
				zap.Int64(telemetry.FieldOffset, offset))
		}
		if !retry.Wait(p.ctx) {
			return 0, false
		}
	}
}

// keepGap has the gap stored if the policy allows it or an operator has requested it. If there is no
// gap any more, the request has nothing to store and is only deleted.
func (f *fetcher) keepGap(gap envelope.Gap, still bool) (envelope.Disposition, error) {
	switch {
	case f.passing == nil:
		return protect(func() (envelope.Disposition, error) {
			return f.acceptor.AcceptGap(f.partition.ctx, f.channel, gap)
		})
	case still:
		return f.carryOut(f.partition.ctx, f.passing.request, nil, &gap)
	default:
		return f.carryOut(f.partition.ctx, f.passing.request, nil, nil)
	}
}

// confirm asks the broker for the gap again, and agreeAnswers times more if continuing after the gap moves the offset
// back. It returns the gap as it is now, and a nil reason if the log holds the offset after all.
func (f *fetcher) confirm(offset int64, reason error) (gap envelope.Gap, now, err error) {
	if _, fell := errors.AsType[*EpochError](reason); fell { // the log's own records have shown it several times
		gap, err = f.describeGap(offset, reason)
		return gap, reason, err
	}
	for answers := 0; ; answers++ {
		if reason, err = f.askAgain(offset, reason); err != nil || reason == nil {
			return gap, nil, err
		}
		if gap, err = f.describeGap(offset, reason); err != nil || gap.To >= offset || answers == agreeAnswers {
			return gap, reason, err
		}
		if !routine.Sleep(f.partition.ctx, agreePause) {
			return gap, nil, f.partition.ctx.Err()
		}
	}
}

// askAgain asks the broker once more. It returns a nil reason if there is no gap.
func (f *fetcher) askAgain(offset int64, reason error) (now, err error) {
	_, missing := errors.AsType[*OffsetGapError](reason)
	_, recreated := errors.AsType[*TopicRecreatedError](reason)
	switch {
	case missing:
		if err = f.gap(offset); errors.Is(err, kafka.OffsetOutOfRange) {
			return nil, nil // the offset was refused although it lies within the log
		}
	case recreated:
		err = f.dial(offset)
		f.hangUp()
	}
	if err != nil && fatal(err) {
		return err, nil
	}
	return nil, err
}

// restart begins again at offset, after a gap that is stored. The current end of the log becomes the
// watermark to catch up with.
func (f *fetcher) restart(offset int64, reason error) (next int64, ok bool) {
	p := f.partition
	retry := routine.Backoff{First: fetchBackoffFirst, Max: maxFetchBackoff}
	for {
		end, err := f.listOffset(kafka.LastOffset)
		if err == nil {
			if recreated, ok := errors.AsType[*TopicRecreatedError](reason); ok {
				p.reads(recreated.id) // nothing is due before restart
			}
			p.restart(offset, end)
			break
		}
		if p.ctx.Err() != nil {
			return 0, false
		}
		f.failed(err, zap.Int64(telemetry.FieldOffset, offset))
		if !retry.Wait(p.ctx) {
			return 0, false
		}
	}
	f.epoch, f.skipping = 0, nil // the record to skip was in the log before
	if fall, ok := errors.AsType[*EpochError](reason); ok {
		f.fell = *fall
	}
	return offset, true
}

// describeGap returns the gap that reason stands for. Its error is the reason to halt.
func (f *fetcher) describeGap(offset int64, reason error) (envelope.Gap, error) {
	gap := envelope.Gap{Topic: f.partition.topic, Partition: f.partition.id, From: offset, Reason: reason.Error()}
	var missing *OffsetGapError
	var recreated *TopicRecreatedError
	var fall *EpochError
	switch {
	case errors.As(reason, &missing):
		gap.To = missing.First
	case errors.As(reason, &recreated):
		gap.To = recreated.First
	case errors.As(reason, &fall):
		// A log that begins again does so once. If the epoch falls at the same place again, reading
		// the log again does not fix it.
		if f.fell == *fall {
			return gap, fmt.Errorf("it falls each time the log is read: %w", reason)
		}
		gap.To = fall.First
	default:
		return gap, reason
	}
	return gap, nil
}

// isCommitted reports whether everything below offset is accepted and committed.
func (p *partition) isCommitted(offset int64) bool {
	if _, due := p.due(); due {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted == offset
}

// restart begins again at offset, which is to be committed even if it is below the committed one.
// The caller has waited until everything is committed.
func (p *partition) restart(offset, highWatermark int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start, p.next, p.accepted, p.committed, p.pinned = offset, offset, offset, -1, true
	p.highWatermark, p.assignedWatermark, p.mark = highWatermark, highWatermark, mark{}
	p.watermarkErr = nil
	p.compare()
}
