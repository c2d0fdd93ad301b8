package kafkaconsumer

import "time"

// lag returns how far accepted is behind the high watermark, -1 while unknown. The lock is held.
func (p *partition) lag() int64 { return p.distanceTo(p.highWatermark) }

// readable returns how far accepted is behind what may be read. With read_committed that is the
// last stable offset, before which no transaction is open. A consumer can be expected to reach this
// offset and not the high watermark.
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

// compare updates since when the partition is behind, after either end moved. The lock is held.
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

// assigned stores the high watermark asked for at assignment. It reports false for a value that
// cannot be true: one below the committed offset comes from a leader that lags behind. If a gap was
// passed meanwhile, the watermark of its log stays.
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

// refreshed stores watermarks that were asked for because nothing is fetched. It ignores them if a
// fetch was answered meanwhile, whose watermarks are newer. lastStable is -1 where it was not asked
// for.
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

// stalledSince returns since when there is something to read and no progress, if that is longer
// than timeout, and zero otherwise. A partition that is halted or cannot be fetched is reported as
// that and not as stalled. excused is until when accepting is known to have failed.
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
