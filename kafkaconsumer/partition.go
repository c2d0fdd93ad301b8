package kafkaconsumer

import (
	"context"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/models"
)

// partition is one assigned partition in one generation. An offset names the next record, as in Kafka. -1 is unknown.
type partition struct {
	topic string
	id    int
	// ctx ends with the session, or earlier when the partition halts. A resumed partition gets
	// another one. Only its fetcher uses it.
	ctx      context.Context
	stop     context.CancelFunc
	requests chan models.PartitionRequest // passes operators' requests to the fetcher
	found    logID                        // the log of the offset at which it begins; only the fetcher uses it

	mu        sync.Mutex
	start     int64 // where fetching began
	next      int64 // the offset to fetch next
	accepted  int64 // the next offset to commit: every record below it is accepted or was never visible
	committed int64 // the group coordinator's offset
	log       logID // the log of which accepted is an offset; only the fetcher changes it
	pinned    bool  // whether start itself must be committed, even if nothing follows
	// highWatermark, lastStable and logStart are the broker's last values, received at toldAt.
	// fresh means that a fetch has brought them since the last refresh.
	highWatermark, lastStable, logStart int64
	toldAt                              time.Time
	fresh                               bool
	assignedWatermark                   int64 // the high watermark asked for at assignment
	answered                            bool  // whether a fetch was answered, so the log has the offset that was asked for
	// mark is the end of the log at a moment that the partition has not caught up to yet. caughtUp is
	// the last such moment that it has, zero if there is none.
	mark     mark
	caughtUp time.Time

	assignedAt, progressAt time.Time
	// behindSince and readableSince are since when the high watermark and the last readable offset are above accepted.
	behindSince, readableSince time.Time
	err                        error // last error of fetching; nil since it worked again
	errSince, wellSince        time.Time
	watermarkErr               error // last error of asking for watermarks
	halted                     *halt // nil if the partition is not halted
	haltedAt                   time.Time
	run                        int // how often the partition was resumed

	clock         clock.Clock // the session's, as readCommitted is
	readCommitted bool
}

// chunk is a run of records of one partition, in order. It may be empty if there were only control
// records or aborted transactions.
type chunk struct {
	partition *partition
	received  []envelope.Received
	next      int64 // the offset to continue at once the chunk is accepted
	bytes     int
	// messages counts the records' messages. A record without messages counts as one.
	messages int
	run      int // the partition's run when the chunk was fetched
	// skipping, if not nil, means that the chunk has one record, which an operator skips.
	skipping *granted
}

func newPartition(ctx context.Context, topic string, id int, committed int64) *partition {
	p := &partition{topic: topic, id: id, start: -1, next: -1, accepted: -1, committed: -1, highWatermark: -1,
		lastStable: -1, logStart: -1, assignedWatermark: -1, requests: make(chan models.PartitionRequest, 1)}
	if committed >= 0 {
		p.committed = committed
	}
	p.clock = clock.System{}
	p.ctx, p.stop = context.WithCancel(ctx)
	return p
}

func (p *partition) key() partitionKey { return partitionKey{p.topic, p.id} }

// begin sets where fetching begins.
func (p *partition) begin(offset int64, pinned bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start, p.next, p.accepted, p.pinned = offset, offset, offset, pinned
	p.compare()
}

// reads notes which log is read from now on.
func (p *partition) reads(log logID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = log
}

// mark is a moment with the end that the log had then, or later. at is zero if there is none.
type mark struct {
	at  time.Time
	end int64
}

// shorterAfter is after what time a log that ends before a mark has lost its end, by an unclean
// election. A leader that was just elected knows the true end sooner.
const shorterAfter = time.Minute

// fetched stores the watermarks of a response, when it was asked for, and where the next fetch continues.
func (p *partition) fetched(asked time.Time, next, highWatermark, lastStable, logStart int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mark.at.IsZero() || p.mark.end > highWatermark && asked.Sub(p.mark.at) > shorterAfter {
		// A leader that was just elected may know less than the one before it.
		p.mark = mark{at: asked, end: max(highWatermark, p.highWatermark)}
	}
	defer p.catchUp()
	p.next, p.highWatermark, p.lastStable, p.logStart = next, highWatermark, lastStable, logStart
	p.toldAt, p.fresh, p.answered = p.clock.Now(), true, true
	if p.err != nil {
		p.err, p.errSince, p.wellSince = nil, time.Time{}, p.toldAt
	}
	p.compare()
}

// catchUp moves caughtUp to the moment of the mark if everything that was in the log then is accepted
// and committed. The end that was asked for at assignment must be reached, too. The lock is held.
func (p *partition) catchUp() {
	if p.mark.at.IsZero() || !p.answered || p.assignedWatermark < 0 || p.toCommit() ||
		p.accepted < max(p.mark.end, p.assignedWatermark) {
		return
	}
	p.caughtUp, p.mark = p.mark.at, mark{}
}

func (p *partition) failing(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.errSince = p.clock.Now()
	}
	p.err = brief.Error(err)
}

// accept moves accepted forward, never back.
func (p *partition) accept(next int64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if next > p.accepted {
		p.accepted, p.progressAt = next, now
		p.compare()
	}
}

func (p *partition) acceptedTo() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// halt stops fetching until the partition is resumed or assigned again. Accepted records may still be committed.
// Records that were fetched before are still accepted, unless one of them halts the partition earlier: then this
// becomes the reason. It reports whether h is the reason now.
func (p *partition) halt(h halt) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.halted != nil && !h.record {
		return false
	}
	if p.halted == nil {
		p.haltedAt = p.clock.Now()
	}
	h.reason = brief.Error(h.reason)
	p.halted = &h
	p.stop()
	return true
}

// due returns what to commit, and whether the coordinator does not have it yet.
func (p *partition) due() (position, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return position{p.accepted, p.log}, p.toCommit()
}

// toCommit reports whether the coordinator does not have accepted yet. The lock is held.
func (p *partition) toCommit() bool {
	return p.accepted > p.committed && (p.accepted > p.start || p.pinned)
}

func (p *partition) commit(offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.committed = max(p.committed, offset)
	p.catchUp()
}

func (p *partition) caughtUpAt() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.caughtUp
}
