package cleanup

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// WaitingError says that cleanup keeps rows that a partition's redeliveries may need. After a downtime longer than
// Retention the partition may hold redeliveries of messages that cleanup would forget (contract 6.5).
type WaitingError struct {
	Channel string
	GroupID string
	// Topic and Partition are the partition that is furthest behind. Partition is -1 while the topic's
	// partitions are not known.
	Topic     string
	Partition int
	// Undeclared is for how long workers have run without declaring the partition. If it was removed, forgetting its
	// topic ends the waiting at once.
	Undeclared time.Duration
	// CaughtUpAt is a moment, by the database's clock, up to which the partition is read. It is zero if
	// the partition has never been read to its end; nothing is deleted then.
	CaughtUpAt time.Time
	// Err joins the run's other failures; nil if the run did everything that did not have to wait.
	Err error
}

// Error names channel, group and partition.
func (e *WaitingError) Error() string {
	text := e.position()
	if e.Undeclared > 0 {
		text += fmt.Sprintf("; workers have run for %s without declaring it: \"inboxctl forget-topic\" ends the waiting",
			e.Undeclared)
	}
	if e.Err != nil {
		text += "; " + e.Err.Error()
	}
	return text
}

// Unwrap returns Err.
func (e *WaitingError) Unwrap() error { return e.Err }

func (e *WaitingError) position() string {
	place := fmt.Sprintf("waiting for channel %q in group %q: ", e.Channel, e.GroupID)
	switch {
	case !e.CaughtUpAt.IsZero() && e.Partition < 0:
		return place + fmt.Sprintf("the partitions of topic %s were last listed at %s", e.Topic,
			e.CaughtUpAt.Format(time.RFC3339))
	case !e.CaughtUpAt.IsZero():
		return place + fmt.Sprintf("%s/%d is read up to what it held at %s", e.Topic, e.Partition,
			e.CaughtUpAt.Format(time.RFC3339))
	case e.Partition < 0:
		return place + fmt.Sprintf("the partitions of topic %s are not known yet", e.Topic)
	}
	return place + fmt.Sprintf("%s/%d has never been read to its end", e.Topic, e.Partition)
}

// waitingFor describes the partition that is furthest behind.
func waitingFor(p models.Partition) *WaitingError {
	e := &WaitingError{Channel: p.Channel, GroupID: p.GroupID, Topic: p.Topic, Partition: int(p.Partition),
		Undeclared: time.Duration(p.UndeclaredFor) * time.Second}
	if p.CaughtUpAt != nil {
		e.CaughtUpAt = *p.CaughtUpAt
	}
	return e
}

// caughtUp returns a moment such that no partition holds an unread record from before it: now or, if it is earlier, the
// moment up to which the partition furthest behind is read. Redeliveries of all channels may need markers, and
// redeliveries of Inbox channels need messages. It fails with a *WaitingError if a partition has never caught up.
func (r *run) caughtUp(ctx context.Context, markers bool) (until time.Time, behind *WaitingError, err error) {
	until = r.now
	err = r.bounded(ctx, func(ctx context.Context) error {
		p, found, err := r.cfg.Store.FurthestBehind(ctx, markers)
		switch {
		case err != nil || !found:
			return err
		case p.CaughtUpAt == nil:
			return waitingFor(p)
		case p.CaughtUpAt.Before(r.now):
			until, behind = *p.CaughtUpAt, waitingFor(p)
		}
		return nil
	})
	return until, behind, err
}

// hold sets the moment that replaces now for the run's next deletions, and has it checked before each of them.
func (r *run) hold(ctx context.Context, markers bool) error {
	until, behind, err := r.caughtUp(ctx, markers)
	if err != nil {
		return fmt.Errorf("cleanup: %w", err)
	}
	if r.until = until; behind != nil && (r.behind == nil || behind.CaughtUpAt.Before(r.behind.CaughtUpAt)) {
		r.behind = behind
	}
	r.held = func(ctx context.Context) error {
		now, by, err := r.caughtUp(ctx, markers)
		if err == nil && now.Before(until) { // a partition was added
			err = by
		}
		return err
	}
	return nil
}

// undeclaredFor is how long cleanup waits for partitions that no worker declares any more. Brokers forget a group's
// offsets after that time by default, so the group would start over.
const undeclaredFor = 7 * 24 * time.Hour

// forget deletes the partitions of channels, groups and topics that were removed.
func (r *run) forget(ctx context.Context) error {
	forgotten, err := r.cfg.Store.ForgetPartitions(ctx, undeclaredFor)
	type consumer struct{ channel, group, topic string }
	partitions := map[consumer]int{}
	for _, p := range forgotten {
		if p.Partition >= 0 {
			partitions[consumer{p.Channel, p.GroupID, p.Topic}]++
		}
	}
	for c, n := range partitions {
		r.cfg.Logger.Warn("inbox: no worker has declared these partitions for seven days, cleanup no longer waits for them",
			zap.String(telemetry.FieldChannel, c.channel), zap.String(telemetry.FieldGroup, c.group),
			zap.String(telemetry.FieldTopic, c.topic), zap.Int(telemetry.FieldPartitions, n))
	}
	return err
}

const (
	// recheck is how soon a run that had to wait is tried again, if CleanupInterval is longer.
	recheck = time.Minute
	// heldIntervals is after how many intervals of waiting health degrades.
	heldIntervals = 6
)

// Health is the state of cleanup in the background.
type Health struct {
	// Held is a *WaitingError with the partition that runs wait for, and HeldSince is since when: by the database's
	// clock if the partition has ever been read to its end. They are nil and zero if runs delete everything that is old
	// enough, or are less than six intervals behind.
	Held      error
	HeldSince time.Time
	// Overdue reports that runs have waited for six intervals, or are so far behind.
	Overdue bool
	// Err is the error of the last run; nil if it succeeded, or only waits.
	Err error
}

// state is what Health returns.
type state struct {
	mu    sync.Mutex
	held  *WaitingError
	since time.Time
	// behindFor is for how long runs had been held at the moment measured, which the injected clock showed: since may be
	// by the database's clock.
	behindFor time.Duration
	measured  time.Time
	warned    bool
	lastErr   error
}

func (s *state) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	s.lastErr = nil
}

func (s *state) clear() {
	s.held, s.since, s.behindFor, s.measured, s.warned = nil, time.Time{}, 0, time.Time{}, false
}

// Health returns the state of the runs since Start. Runs by hand do not count.
func (c *Cleaner) Health() Health {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	h := Health{HeldSince: c.state.since, Overdue: c.overdue(), Err: c.state.lastErr}
	if c.state.held != nil {
		h.Held = c.state.held
	}
	return h
}

// patience is for how long runs may wait before health degrades. It is a minute at least, because other processes
// record their progress at intervals.
func (c *Cleaner) patience() time.Duration {
	return max(heldIntervals*c.cfg.Options.CleanupInterval, time.Minute)
}

func (c *Cleaner) overdue() bool {
	return c.state.held != nil && c.state.behindFor+c.cfg.Clock.Now().Sub(c.state.measured) >= c.patience()
}

// ended records how a run ended. A run that did not wait may still have kept rows for a partition that lags.
func (c *Cleaner) ended(r *run, err error) {
	by := r.waitingFor
	if by == nil && r.behind != nil && r.now.Sub(r.behind.CaughtUpAt) >= c.patience() {
		by = r.behind
	}
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	c.state.lastErr = err
	if by != nil {
		c.held(by, r)
		return
	}
	if c.state.held != nil {
		c.cfg.Logger.Info("inbox: cleanup no longer waits for consumers", zap.Time(telemetry.FieldSince, c.state.since))
	}
	c.state.clear()
}

// held records that a run was held back. It logs when that begins and when it has lasted too long. It runs under the
// state's mutex.
func (c *Cleaner) held(by *WaitingError, r *run) {
	first := c.state.held == nil
	c.state.held = by
	if !by.CaughtUpAt.IsZero() {
		c.state.since, c.state.behindFor, c.state.measured = by.CaughtUpAt, r.now.Sub(by.CaughtUpAt), r.local
	} else if first {
		c.state.since, c.state.measured = r.local, r.local
	}
	if first {
		c.cfg.Logger.Info("inbox: cleanup waits for consumers", zap.Error(by))
	}
	if !c.state.warned && c.overdue() {
		c.state.warned = true
		c.cfg.Logger.Warn("inbox: cleanup has waited for consumers for six intervals, what their redeliveries may need is kept",
			zap.Time(telemetry.FieldSince, c.state.since), zap.Error(by))
	}
}
