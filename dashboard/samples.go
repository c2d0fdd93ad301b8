package dashboard

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/ops"
)

const (
	// window is the period that the charts show.
	window = time.Hour
	// sampleEvery is the time between two samples.
	sampleEvery = 15 * time.Second
	// sharedFor is how long one overview is reused for all requests, so that many viewers cost as much as one.
	sharedFor = time.Second
	// navCountsFor is how long the navigation reuses an overview's counts.
	navCountsFor = 10 * time.Second
)

// sample has the values of one overview that the charts show.
type sample struct {
	at                                   time.Time
	backlog, poisoned, rejected, workers int64
	oldest                               time.Duration
}

func sampleOf(seen ops.Overview, at time.Time) sample {
	all := total(seen)
	return sample{at: at, backlog: all.Pending.N + all.Processing.N, poisoned: all.Poisoned.N, rejected: seen.Rejected.N,
		workers: int64(seen.WorkersAlive), oldest: all.OldestDueAge}
}

// navCounts has the counts that the navigation shows beside its links.
type navCounts struct {
	Inbox                    string
	Poisoned, Rejected, Gaps ops.Count
	Paused, Halted           int
}

// samples holds the samples of the last hour, oldest first, and the latest overview.
type samples struct {
	mu   sync.Mutex
	list []sample
	last ops.Overview
	// taken is when last was taken, by the dashboard's clock.
	taken time.Time

	asking routine.Lock // one request queries the database while the others wait for its result
}

// overview returns an overview that is at most sharedFor old. A new one is stored as a sample.
func (d *Dashboard) overview(ctx context.Context) (ops.Overview, error) {
	s := &d.samples
	if err := s.asking.Acquire(ctx); err != nil {
		return ops.Overview{}, fmt.Errorf("wait for the overview of another request: %w", err)
	}
	defer s.asking.Release()
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
	if seen.Incomplete != "" { // the charts have a gap
		return
	}
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

// total sums up all handlers. Its age is the age of the oldest due status.
func total(o ops.Overview) (all ops.HandlerOverview) {
	add := func(to *ops.Count, c ops.Count) {
		to.N, to.Capped, to.Unknown = to.N+c.N, to.Capped || c.Capped, to.Unknown || c.Unknown
	}
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

// navCounts returns the counts of the navigation. After an error it returns zeros, so that the page is still shown.
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
	g := navCounts{Inbox: seen.Inbox, Poisoned: total(seen).Poisoned, Rejected: seen.Rejected,
		Gaps: seen.Gaps, Halted: haltsIn(seen.Reasons)}
	for _, h := range seen.Handlers {
		if h.Paused {
			g.Paused++
		}
	}
	return g
}

// sample is the loop that Start runs. After an error it tries again at the next tick, and the charts have a gap.
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

// chart is a line over the last hour, as coordinates for an SVG.
type chart struct {
	// Lines are the points of each line segment, Areas those of the area below it. Missing samples separate segments.
	Lines, Areas []string
	// DotX and DotY are the position of the last point.
	DotX, DotY string
	Some       bool
	// Lowest and Highest are the extremes of the hour, formatted.
	Lowest, Highest string
}

// The size of a chart's view box. chartMargin keeps the last point away from the edge.
const (
	chartWidth  = 240
	chartHeight = 44
	chartMargin = 3
)

// plot draws one value of the samples on an axis that starts at zero. The line is interrupted where samples are more
// than six intervals apart, because nothing was recorded there.
func plot(samples []sample, now time.Time, value func(sample) int64, words func(int64) string) chart {
	var c chart
	if len(samples) == 0 {
		return c
	}
	lowest, highest := value(samples[0]), value(samples[0])
	for _, s := range samples {
		lowest, highest = min(lowest, value(s)), max(highest, value(s))
	}
	c.Some, c.Lowest, c.Highest = true, words(lowest), words(highest)
	x := func(s sample) float64 {
		part := 1 - float64(now.Sub(s.at))/float64(window)
		return chartMargin + part*(chartWidth-2*chartMargin)
	}
	y := func(s sample) float64 {
		return chartHeight - chartMargin - float64(value(s))/float64(max(highest, 1))*(chartHeight-2*chartMargin)
	}
	from := 0
	for i, s := range samples {
		if i+1 < len(samples) && samples[i+1].at.Sub(s.at) <= 6*sampleEvery {
			continue
		}
		var points strings.Builder
		for _, p := range samples[from : i+1] {
			fmt.Fprintf(&points, "%.1f,%.1f ", x(p), y(p))
		}
		c.Lines = append(c.Lines, strings.TrimSpace(points.String()))
		c.Areas = append(c.Areas, fmt.Sprintf("%.1f,%d %s%.1f,%d", x(samples[from]), chartHeight, points.String(), x(s),
			chartHeight))
		from = i + 1
	}
	last := samples[len(samples)-1]
	c.DotX, c.DotY = fmt.Sprintf("%.1f", x(last)), fmt.Sprintf("%.1f", y(last))
	return c
}
