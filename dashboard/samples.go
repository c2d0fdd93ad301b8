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
	// window is how much the charts show.
	window = time.Hour
	// sampleEvery is the time between two samples.
	sampleEvery = 15 * time.Second
	// sharedFor is how long an overview serves everybody who asks for one: many
	// lookers cost as much as one.
	sharedFor = time.Second
	// glanceFor is how long the navigation repeats an overview's counts.
	glanceFor = 10 * time.Second
)

// sample is what the charts draw of an overview.
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

// glance is what the navigation shows beside its links.
type glance struct {
	Known    bool
	Inbox    string
	Poisoned ops.Count
	Rejected ops.Count
	Gaps     ops.Count
	Paused   int
}

// samples are those of the last hour, in order, and the last overview.
type samples struct {
	mu   sync.Mutex
	list []sample
	last ops.Overview
	// taken is when last was, by the dashboard's clock.
	taken time.Time

	// turn has room for who asks the database, so that one does for all who come
	// meanwhile.
	turn chan struct{}
}

// overview is one of just now, kept as a sample.
func (d *Dashboard) overview(ctx context.Context) (ops.Overview, error) {
	s := &d.samples
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ops.Overview{}, fmt.Errorf("wait for an overview that somebody else asked for: %w", ctx.Err())
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

// forget has the next page ask anew, so that it shows what was just done.
func (s *samples) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = time.Time{}
}

// total adds the handlers up; the age is that of the oldest of all.
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

// glance returns the counts beside the navigation. A page is worth having
// without them.
func (d *Dashboard) glance(ctx context.Context) glance {
	d.samples.mu.Lock()
	seen, taken := d.samples.last, d.samples.taken
	d.samples.mu.Unlock()
	if taken.IsZero() || d.clock.Now().Sub(taken) > glanceFor {
		var err error
		if seen, err = d.overview(ctx); err != nil {
			d.log.Warn("dashboard has no counts for its navigation", zap.Error(err))
			return glance{}
		}
	}
	g := glance{Known: true, Inbox: seen.Inbox, Poisoned: total(seen).Poisoned, Rejected: seen.Rejected, Gaps: seen.Gaps}
	for _, h := range seen.Handlers {
		if h.Paused {
			g.Paused++
		}
	}
	return g
}

// sample is the sampler's goroutine, see Start. It tries again with the next
// tick; charts show a failure as a gap.
func (d *Dashboard) sample(ctx context.Context) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		bounded, cancel := context.WithTimeout(ctx, d.deadline)
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
