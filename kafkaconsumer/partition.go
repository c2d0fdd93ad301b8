package kafkaconsumer

import (
	"context"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/envelope"
)

// partition is one assigned partition in one generation. Offsets are those of
// the next record, as Kafka counts them; -1 means not known yet.
type partition struct {
	topic string
	id    int
	// ctx ends with the session, or earlier when the partition halts.
	ctx  context.Context
	stop context.CancelFunc

	mu sync.Mutex
	// start is where fetching began.
	start int64
	// next is what to fetch next.
	next int64
	// accepted: everything below is accepted, or there was nothing to.
	accepted int64
	// committed is what the group coordinator has.
	committed int64
	// pinned: start itself must be committed, even if nothing follows.
	pinned bool
	// highWatermark, lastStable and logStart are as of the last response.
	highWatermark, lastStable, logStart int64
	// assignedWatermark is the high watermark of the first response.
	assignedWatermark int64
	progressAt        time.Time
	err               error // last error of fetching, nil since it worked again
	halted            error
}

// chunk is a run of records of one partition, in order; it may be empty, when
// there was nothing but control records or aborted transactions.
type chunk struct {
	partition *partition
	received  []envelope.Received
	// next is the offset to continue at once the chunk is accepted.
	next  int64
	bytes int
}

func newPartition(ctx context.Context, topic string, id int, committed int64) *partition {
	p := &partition{topic: topic, id: id, start: -1, next: -1, accepted: -1, committed: -1, highWatermark: -1, lastStable: -1, logStart: -1, assignedWatermark: -1}
	if committed >= 0 {
		p.committed = committed
	}
	p.ctx, p.stop = context.WithCancel(ctx)
	return p
}

// begin notes where fetching begins.
func (p *partition) begin(offset int64, pinned bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start, p.next, p.accepted, p.pinned = offset, offset, offset, pinned
}

// fetched notes what a response said and where the next fetch continues.
func (p *partition) fetched(next, highWatermark, lastStable, logStart int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.highWatermark, p.lastStable, p.logStart, p.err = next, highWatermark, lastStable, logStart, nil
	if p.assignedWatermark < 0 {
		p.assignedWatermark = highWatermark
	}
}

func (p *partition) failing(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

// accept moves accepted forward, never back.
func (p *partition) accept(next int64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if next > p.accepted {
		p.accepted, p.progressAt = next, now
	}
}

// halt stops fetching for the rest of the generation. What was accepted may
// still be committed, and what was fetched before is still accepted, unless a
// record of it halts earlier: then that is the reason.
func (p *partition) halt(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.halted = reason
	p.stop()
}

// due returns the offset to commit, if there is one that the coordinator does
// not have.
func (p *partition) due() (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted, p.accepted > p.committed && (p.accepted > p.start || p.pinned)
}

func (p *partition) commit(offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.committed = max(p.committed, offset)
}

func (p *partition) health() PartitionHealth {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := PartitionHealth{
		Topic: p.topic, Partition: p.id, Next: p.next, Accepted: p.accepted, Committed: p.committed,
		HighWatermark: p.highWatermark, LastStable: p.lastStable, LogStart: p.logStart, Lag: -1,
		CaughtUp: p.assignedWatermark >= 0 && p.accepted >= p.assignedWatermark, ProgressAt: p.progressAt,
		Halted: p.halted, Err: p.err,
	}
	if p.highWatermark >= 0 && p.accepted >= 0 {
		h.Lag = max(p.highWatermark-p.accepted, 0)
	}
	return h
}
