package kafkaconsumer

import "time"

// lag is how far accepted is behind the high watermark; -1 while not known.
// The lock is held.
func (p *partition) lag() int64 { return p.behind(p.highWatermark) }

// readable is how far accepted is behind what may be read: with read_committed
// the last stable offset, before which no transaction is open. It is what can
// be asked of a consumer.
func (p *partition) readable() int64 {
	if p.readCommitted && p.lastStable >= 0 {
		return p.behind(min(p.lastStable, p.highWatermark))
	}
	return p.lag()
}

func (p *partition) behind(end int64) int64 {
	if end < 0 || p.accepted < 0 {
		return -1
	}
	return max(end-p.accepted, 0)
}

// compare notes since when the partition is behind, after either end moved.
// The lock is held.
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

// assigned notes the high watermark asked for at assignment, and reports false
// if it cannot be true: below what was committed there were records, so a
// leader that is behind has answered. Where a gap was passed meanwhile, what
// its log held then stays.
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

// stale says whether no fetch told the watermarks since it was asked last.
func (p *partition) stale() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	stale := !p.fresh
	p.fresh = false
	return stale
}

// refreshed notes watermarks that were asked for because nothing is fetched;
// those of a fetch that was answered meanwhile are newer. lastStable is -1
// where it was not asked for.
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

// stalledSince is since when there is something to read and no progress, if
// that is longer than timeout; zero otherwise. What is halted or cannot be
// fetched is said to be so and not stalled. excused is until when accepting is
// known to have failed.
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
