package kafkaconsumer

import (
	"context"
	"slices"
	"time"

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
