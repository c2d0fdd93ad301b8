package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// gapKeeper is where a fetcher asks what to do about a gap, and has it kept.
type gapKeeper struct {
	channel   string
	acceptor  Acceptor
	accepting *condition.Condition
}

// accept calls the acceptor once.
func (k gapKeeper) accept(ctx context.Context, gap envelope.Gap) (disposition envelope.Disposition, err error) {
	err = routine.Protect("the acceptor", func() (err error) {
		disposition, err = k.acceptor.AcceptGap(ctx, k.channel, gap)
		return err
	})
	return disposition, err
}

// settlePause is how often a fetcher looks whether all it sent is committed.
const settlePause = 10 * time.Millisecond

// Before the offset moves back, the log must have said so this often again: a
// leader that lags behind tells of an end, or of a topic, that is not the last.
const (
	agreeAnswers = 12
	agreePause   = 250 * time.Millisecond
)

// passGap goes on behind a gap if the acceptor has it kept and lets it, and
// halts the partition if not, or if reason is no gap. It returns the offset to
// go on at, and false if there is none. If the log turns out to hold the
// offset, that is where to go on.
//
// Going on may move the committed offset back, as nothing else may: to the
// beginning of a log that ends before the offset, or whose topic's ID or leader
// epochs show it to be another than the one that was read. Offsets of a log
// that is no more are worth nothing, and everything of this one is unread; what
// the two share is known by its ID. It is right only if nothing of the log
// before can move the offset any more. So first everything that was sent is
// accepted and committed: then no chunk of it is on its way to a worker, whose
// acceptance would carry the offset past records of this log, and no commit is
// on its way to the coordinator, which could overtake the one that moves it
// back. Commits of earlier generations are fenced by the coordinator.
//
// All that may take any time, and so may having the gap kept: what is kept is
// what the log says then. It is kept before the offset moves. A crash in
// between finds the same gap again, which is then known.
func (f *fetcher) passGap(offset int64, reason error) (next int64, ok bool) {
	p := f.partition
	if _, err := f.describeGap(offset, reason); err != nil {
		f.halt(p, err)
		return 0, false
	}
	for !p.settled(offset) {
		if !routine.Sleep(p.ctx, settlePause) {
			return 0, false
		}
	}
	defer f.gaps.accepting.Forget(f)
	retry := backoff{first: acceptBackoffFirst, most: acceptBackoffMost}
	for {
		gap, now, err := f.confirm(offset, reason)
		if p.ctx.Err() != nil {
			return 0, false
		}
		switch {
		case err != nil:
			f.failed(err, zap.Int64(telemetry.FieldOffset, offset))
		case now == nil:
			return offset, true
		default:
			reason = now
			disposition, err := f.gaps.accept(p.ctx, gap)
			if p.ctx.Err() != nil {
				return 0, false
			}
			if err == nil {
				f.gaps.accepting.End(f)
				if disposition == envelope.Halt {
					f.halt(p, reason)
					return 0, false
				}
				return f.restart(gap.To, reason)
			}
			f.gaps.accepting.Begin(f, err, zap.String(telemetry.FieldTopic, p.topic), zap.Int(telemetry.FieldPartition, p.id),
				zap.Int64(telemetry.FieldOffset, offset))
		}
		if !retry.wait(p.ctx) {
			return 0, false
		}
	}
}

// confirm asks for a gap again, and once more than that if going on behind it
// moves the offset back. It returns the gap as it is now, and no reason if the
// log holds the offset after all.
func (f *fetcher) confirm(offset int64, reason error) (gap envelope.Gap, now, err error) {
	var fall *EpochError
	if errors.As(reason, &fall) { // the log's own records say so, again and again
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

// askAgain returns no reason if there is no gap.
func (f *fetcher) askAgain(offset int64, reason error) (now, err error) {
	var missing *OffsetGapError
	var recreated *TopicRecreatedError
	switch {
	case errors.As(reason, &missing):
		if err = f.gap(offset); errors.Is(err, kafka.OffsetOutOfRange) {
			return nil, nil // it says so of an offset within the log
		}
	case errors.As(reason, &recreated):
		err = f.dial(offset)
		f.hangUp()
	}
	if err != nil && fatal(err) {
		return err, nil
	}
	return nil, err
}

// restart begins anew at offset, behind a gap that is kept. What the log holds
// now is what has to be caught up with.
func (f *fetcher) restart(offset int64, reason error) (next int64, ok bool) {
	p := f.partition
	retry := backoff{first: fetchBackoffFirst, most: fetchBackoffMost}
	for {
		end, err := f.listOffset(kafka.LastOffset)
		if err == nil {
			p.restart(offset, end)
			break
		}
		if p.ctx.Err() != nil {
			return 0, false
		}
		f.failed(err, zap.Int64(telemetry.FieldOffset, offset))
		if !retry.wait(p.ctx) {
			return 0, false
		}
	}
	f.epoch = 0
	var fall *EpochError
	var recreated *TopicRecreatedError
	switch {
	case errors.As(reason, &fall):
		f.fell = *fall
	case errors.As(reason, &recreated):
		f.id = recreated.id
	}
	return offset, true
}

// describeGap fails with the reason to halt.
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
		// A log that begins anew does so once. In one that falls at the same
		// place again, something is wrong that reading again does not mend.
		if f.fell == *fall {
			return gap, fmt.Errorf("it falls each time the log is read: %w", reason)
		}
		gap.To = fall.First
	default:
		return gap, reason
	}
	return gap, nil
}

// settled says whether everything below offset is accepted and committed.
func (p *partition) settled(offset int64) bool {
	if _, due := p.due(); due {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted == offset
}

// restart begins anew at offset, which is to be committed even if it is below
// what is. The caller has settled the partition.
func (p *partition) restart(offset, highWatermark int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start, p.next, p.accepted, p.committed, p.pinned = offset, offset, offset, -1, true
	p.highWatermark, p.assignedWatermark = highWatermark, highWatermark
	p.compare()
}
