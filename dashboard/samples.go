package dashboard

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/ops"
)

const (
	// window is the period that the charts show.
	window = time.Hour
	// sampleEvery is the time between two samples.
	sampleEvery = 15 * time.Second
	// sharedFor is how long one overview is reused for all requests, so that many viewers cost as
	// much as one.
	sharedFor = time.Second
	// navCountsFor is how long the navigation reuses an overview's counts.
	navCountsFor = 10 * time.Second
)

// sample has the values of one overview that the charts show.
type sample struct {
	at       time.Time
	backlog  int64
	poisoned int64
	rejected int64
	workers  int64
	oldest   time.Duration
}

func sampleOf(seen ops.Overview, at time.Time) sample {
	all := total(seen)
	return sample{at: at, backlog: all.Pending.N + all.Processing.N, poisoned: all.Poisoned.N, rejected: seen.Rejected.N,
		workers: int64(seen.WorkersAlive), oldest: all.OldestDueAge}
}

// navCounts has the counts that the navigation shows beside its links.
type navCounts struct {
	Known    bool
	Inbox    string
	Poisoned ops.Count
	Rejected ops.Count
	Gaps     ops.Count
	Paused   int
}

// samples holds the samples of the last hour, oldest first, and the latest overview.
type samples struct {
	mu   sync.Mutex
	list []sample
	last ops.Overview
	// taken is when last was taken, by the dashboard's clock.
	taken time.Time

	// sem is a one-slot semaphore: one request queries the database while the others wait for its
	// result.
	sem chan struct{}
}

// overview returns an overview that is at most sharedFor old. A new one is stored as a sample.
func (d *Dashboard) overview(ctx context.Context) (ops.Overview, error) {
	s := &d.samples
	select {
	case s.sem <- struct{}{}:
		defer func() { <-s.sem }()
	case <-ctx.Done():
		return ops.Overview{}, fmt.Errorf("wait for the overview of another request: %w", ctx.Err())
	}
	now := d.clock.Now()
	s.mu.Lock()
	last, taken := s.last, s.taken
	s.mu.Unlock()
	if since := now.Sub(taken); !taken.IsZero() && since >= 0 && since < sharedFor {
		return last, nil
	}
	seen, err := d.ops.Overview(ctx)
	if err != nil {
		return ops.Overview{}, err
	}
	s.keep(seen, d.clock.Now())
	return seen, nil
}

func (s *samples) keep(seen ops.Overview, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.taken = seen, now
	if n := len(s.list); n > 0 && now.Sub(s.list[n-1].at) < sampleEvery/2 {
		return
	}
	s.list = append(s.list, sampleOf(seen, now))
	for len(s.list) > 0 && now.Sub(s.list[0].at) > window {
		s.list = s.list[1:]
	}
}

// forget makes the next page query again, so that it shows the action that was just done.
func (s *samples) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = time.Time{}
}

// total sums up all handlers. The age is that of the oldest due status.
func total(o ops.Overview) (all ops.HandlerOverview) {
	add := func(to *ops.Count, c ops.Count) { to.N += c.N; to.Capped = to.Capped || c.Capped }
	for _, h := range o.Handlers {
		add(&all.Pending, h.Pending)
		add(&all.Due, h.Due)
		add(&all.Waiting, h.Waiting)
		add(&all.Processing, h.Processing)
		add(&all.Poisoned, h.Poisoned)
		all.OldestDueAge = max(all.OldestDueAge, h.OldestDueAge)
	}
	return all
}

// hour returns the samples of the last hour.
func (s *samples) hour() []sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]sample{}, s.list...)
}

// navCounts returns the counts of the navigation. Without them, it returns zeros instead of an error,
// so that the page is still shown.
func (d *Dashboard) navCounts(ctx context.Context) navCounts {
	d.samples.mu.Lock()
	seen, taken := d.samples.last, d.samples.taken
	d.samples.mu.Unlock()
	if taken.IsZero() || d.clock.Now().Sub(taken) > navCountsFor {
		var err error
		if seen, err = d.overview(ctx); err != nil {
			d.log.Warn("dashboard has no counts for its navigation", zap.Error(err))
			return navCounts{}
		}
	}
	g := navCounts{Known: true, Inbox: seen.Inbox, Poisoned: total(seen).Poisoned, Rejected: seen.Rejected,
		Gaps: seen.Gaps}
	for _, h := range seen.Handlers {
		if h.Paused {
			g.Paused++
		}
	}
	return g
}

// sample is the loop that Start runs. After an error it tries again at the next tick, and the
// charts have a gap.
func (d *Dashboard) sample(ctx context.Context) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		bounded, cancel := context.WithTimeout(ctx, d.opts.Deadline)
		if _, err := d.overview(bounded); err != nil && ctx.Err() == nil {
			d.log.Warn("dashboard sample failed", zap.Error(err))
		}
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
