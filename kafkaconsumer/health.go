package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// State is what a consumer is doing.
type State string

// The states of a Consumer, in their usual order.
const (
	// StateNew means not started yet.
	StateNew State = "new"
	// StateWaiting means that none of its topics is known to exist, or that no broker could be asked.
	StateWaiting State = "waiting"
	// StateJoining means joining its group, also between two generations.
	StateJoining State = "joining"
	// StateRunning means being a member of its group, possibly without partitions.
	StateRunning State = "running"
	// StateStopping means that running accepts are finished.
	StateStopping State = "stopping"
	// StateStopped means stopped permanently.
	StateStopped State = "stopped"
)

// Health is a snapshot of a consumer.
type Health struct {
	Channel string
	GroupID string
	// State is what the consumer does, since StateSince (zero before Start).
	State      State
	StateSince time.Time
	// MemberID and Generation identify the last joined generation. Rebalances counts the generations after the first.
	MemberID   string
	Generation int32
	Rebalances int
	// DownSince is when the consumer last lost its generation, or was started. It is zero while the consumer has a
	// generation, and before it is started.
	DownSince time.Time
	// GroupErr is why the consumer has no generation: the last error of reaching the brokers or of joining, or that
	// joining takes longer than ProgressTimeout.
	GroupErr error
	// ClusterErr is why the known brokers, topics and leaders are not refreshed: an answer was refused (contract 7.2).
	// It is nil while refreshing works.
	ClusterErr error
	// AssignmentErr says that assigned partitions are not read, because they do not exist (contract 7.2) or because
	// Config.Partitions does not name them. It also says that no member has partitions that Config.Partitions names, as
	// seen in two checks in a row, or that they exist in none of the topics (contract 7.12).
	AssignmentErr error
	// MissingTopics are configured and do not exist. The others are consumed.
	MissingTopics []string
	// DeniedTopics are configured, but this client may not see them. The brokers' answers do not show whether they
	// exist. The others are consumed.
	DeniedTopics []string
	// AcceptFailingSince is when accepting began to fail. It is zero while accepting works.
	AcceptFailingSince time.Time
	AcceptErr          error
	// DeadLetterFailingSince is when publishing to the dead-letter topic began to fail, zero while it works.
	DeadLetterFailingSince time.Time
	DeadLetterErr          error
	// CopyFailingSince is when publishing copies of poisoned and rejected messages began to fail, zero while it works.
	CopyFailingSince time.Time
	CopyErr          error
	// CommitFailingSince is when committing offsets began to fail, zero while it works.
	CommitFailingSince time.Time
	CommitErr          error
	// BufferedBytes counts the bytes that are fetched and not yet accepted.
	BufferedBytes int
	// Partitions are the assigned partitions, sorted by topic and number.
	Partitions []PartitionHealth
	// Idle describes the group as seen by a member without partitions. It is nil for a member with partitions, and
	// until the first check (one every WatchInterval).
	Idle *Idle
}

// Err joins everything that keeps the consumer from consuming, from committing offsets or from publishing copies, nil
// if nothing does. Of the partitions with a problem it names 20 and counts the others. Having just started is no error.
// Neither is a rebalance: compare DownSince to the clock to judge how long it lasts.
func (h Health) Err() error {
	var problems []error
	because := func(err error, format string, args ...any) {
		if err != nil {
			problems = append(problems, fmt.Errorf(format+": %w", append(args, err)...))
		}
	}
	because(h.GroupErr, "group %q: no member since %s", h.GroupID, h.DownSince.Format(time.RFC3339))
	if h.GroupErr == nil {
		because(h.ClusterErr, "group %q: what is known of the cluster cannot be refreshed", h.GroupID)
	}
	because(h.AssignmentErr, "group %q", h.GroupID)
	if len(h.MissingTopics) > 0 {
		problems = append(problems, fmt.Errorf("topics %q do not exist", h.MissingTopics))
	}
	if len(h.DeniedTopics) > 0 {
		problems = append(problems, fmt.Errorf("topics %q: the right READ is missing, and they may not exist",
			h.DeniedTopics))
	}
	because(h.AcceptErr, "accepting fails since %s", h.AcceptFailingSince.Format(time.RFC3339))
	because(h.CommitErr, "offsets cannot be committed since %s", h.CommitFailingSince.Format(time.RFC3339))
	because(h.DeadLetterErr, "bad records cannot be published since %s", h.DeadLetterFailingSince.Format(time.RFC3339))
	because(h.CopyErr, "copies of poisoned and rejected messages cannot be published since %s",
		h.CopyFailingSince.Format(time.RFC3339))
	named, more := len(problems)+namedPartitions, 0
	for _, p := range h.Partitions {
		if problem := p.Problem(); problem != nil && len(problems) < named {
			problems = append(problems, problem)
		} else if problem != nil {
			more++
		}
	}
	if more > 0 {
		problems = append(problems, fmt.Errorf("%d more partitions have problems", more))
	}
	if i := h.Idle; i != nil && i.Unassigned > 0 {
		problems = append(problems, fmt.Errorf("group %q: %d of %d partitions are assigned to none of its %d members",
			h.GroupID, i.Unassigned, i.Partitions, i.Members))
	}
	return errors.Join(problems...)
}

// namedPartitions bounds how many partitions an error text names. A member may have thousands, often with one problem.
const namedPartitions = 20

// Lag returns the sum of the lags of the assigned partitions, in offsets, and since when one of them has been above
// zero without a break. The sum is -1 while the lag of a partition is unknown, and while a member without partitions is
// not running: the group may have some for it (contract 7.8).
func (h Health) Lag() (lag int64, since time.Time) {
	if len(h.Partitions) == 0 && h.State != StateRunning {
		return -1, time.Time{}
	}
	for _, p := range h.Partitions {
		if p.Lag < 0 || lag < 0 {
			lag = -1
		} else {
			lag += p.Lag
		}
		if at := p.BehindSince; !at.IsZero() && (since.IsZero() || at.Before(since)) {
			since = at
		}
	}
	return lag, since
}

// CaughtUp reports whether everything is accepted that was in the assigned partitions when they were assigned. It is
// false without a generation, and true for a member without partitions (contract 6.5).
func (h Health) CaughtUp() bool {
	return h.State == StateRunning &&
		!slices.ContainsFunc(h.Partitions, func(p PartitionHealth) bool { return !p.CaughtUp })
}

// Halted returns the partitions that are halted, nil if there are none.
func (h Health) Halted() (halted []PartitionHealth) {
	for _, p := range h.Partitions {
		if p.Halted != nil {
			halted = append(halted, p)
		}
	}
	return halted
}

// PartitionState is what is being done with a partition: "starting", "fetching", "accepting", "failing" or "halted".
type PartitionState string

// The states of an assigned partition.
const (
	// partitionStarting means that the offset to begin at is not known yet.
	partitionStarting PartitionState = "starting"
	// partitionFetching means that nothing waits to be accepted and the broker is asked for more.
	partitionFetching PartitionState = "fetching"
	// partitionAccepting means that fetched records are being accepted or wait for it. In this state hardly anything is
	// fetched. If it lasts, Health.AcceptErr, Health.DeadLetterErr or StalledSince shows why.
	partitionAccepting PartitionState = "accepting"
	// partitionFailing means that fetching fails and is retried.
	partitionFailing PartitionState = "failing"
	// partitionHalted means stopped until an operator resumes the partition (contract 7.10), or it is assigned again.
	partitionHalted PartitionState = "halted"
)

// PartitionHealth describes one assigned partition in its generation. Offsets are -1 and times zero while unknown.
type PartitionHealth struct {
	Topic      string
	Partition  int
	State      PartitionState
	Generation int32
	// Next is the offset to fetch next. Accepted is the offset below which everything is accepted. Committed is the
	// group's committed offset. Committed <= Accepted <= Next.
	Next, Accepted, Committed int64
	// HighWatermark, LastStable and LogStart are the broker's, as of ToldAt. Each answer to a fetch updates them. Where
	// nothing is fetched (halted, failing, accepting) the first two are updated about every WatchInterval.
	HighWatermark, LastStable, LogStart int64
	ToldAt                              time.Time
	// WatermarkErr is why the watermarks could not be asked for. It is nil if they could, or need not be.
	WatermarkErr error
	// Lag is HighWatermark - Accepted, in offsets, and -1 while unknown: with a WatermarkErr, and with an Err until the
	// watermarks are told again. Control records and records of an open transaction count too. BehindSince is since when
	// it has been above zero, as far as is known.
	Lag         int64
	BehindSince time.Time
	// CaughtUp means that everything is accepted that was there when the partition was assigned (contract 6.5).
	CaughtUp bool
	// AssignedAt is when the partition was assigned in this generation. ProgressAt is when Accepted last moved in it,
	// zero before it did.
	AssignedAt, ProgressAt time.Time
	// StalledSince is since when there is something to read and no progress, once that lasts for ProgressTimeout. It is
	// zero otherwise, and where Halted, Err, Health.AcceptErr or Health.DeadLetterErr shows the cause. An open
	// transaction is no stall.
	StalledSince time.Time
	// Halted is why the partition is stopped before Accepted, since HaltedAt. It is nil if the partition is not
	// stopped. An operator's request (contract 7.10) or a new assignment starts it again.
	Halted   error
	HaltedAt time.Time
	// Decisions are those that a request may take: "resume" or, after a gap, "continue", and "skip" if the halt is
	// about one record. They are nil if the partition is not stopped.
	Decisions []string
	// Err is the last error of fetching, which has failed since ErrSince. It is nil once fetching works again.
	Err      error
	ErrSince time.Time
}

// Problem returns why the partition is not consumed, nil if it is.
func (p PartitionHealth) Problem() error {
	switch {
	case p.Halted != nil:
		return fmt.Errorf("%s/%d is halted before offset %d since %s: %w", p.Topic, p.Partition, p.Accepted,
			p.HaltedAt.Format(time.RFC3339), p.Halted)
	case p.Err != nil:
		return fmt.Errorf("%s/%d: fetching fails since %s: %w", p.Topic, p.Partition, p.ErrSince.Format(time.RFC3339), p.Err)
	case !p.StalledSince.IsZero():
		behind := "more than it knows"
		if p.Lag >= 0 {
			behind = strconv.FormatInt(p.Lag, 10)
		}
		return fmt.Errorf("%s/%d makes no progress since %s: it is at offset %d, %s behind, and %s",
			p.Topic, p.Partition, p.StalledSince.Format(time.RFC3339), p.Accepted, behind, p.State)
	}
	return nil
}

// health returns a snapshot. full means that nothing may be fetched because too much waits to be accepted. timeout and
// excused decide what counts as a stall.
func (p *partition) health(full bool, timeout time.Duration, excused time.Time) PartitionHealth {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := PartitionHealth{
		Topic: p.topic, Partition: p.id, Next: p.next, Accepted: p.accepted, Committed: p.committed,
		HighWatermark: p.highWatermark, LastStable: p.lastStable, LogStart: p.logStart, ToldAt: p.toldAt,
		WatermarkErr: p.watermarkErr, Lag: p.lag(), BehindSince: p.behindSince,
		CaughtUp:   p.answered && p.assignedWatermark >= 0 && p.accepted >= p.assignedWatermark,
		AssignedAt: p.assignedAt, ProgressAt: p.progressAt, StalledSince: p.stalledSince(timeout, excused),
		HaltedAt: p.haltedAt, Err: p.err, ErrSince: p.errSince,
	}
	// The broker may have received more since it last answered.
	if p.watermarkErr != nil || p.err != nil && p.toldAt.Before(p.errSince) {
		h.Lag = -1
	}
	switch {
	case p.halted != nil:
		h.State, h.Halted, h.Decisions = partitionHalted, p.halted.reason, p.halted.decisions
	case p.err != nil:
		h.State = partitionFailing
	case p.accepted < 0:
		h.State = partitionStarting
	case p.next > p.accepted || full:
		h.State = partitionAccepting
	default:
		h.State = partitionFetching
	}
	return h
}

// observe refreshes the state that fetching does not report and logs stalls, until ctx ends.
func (s *session) observe(ctx context.Context) {
	var first sync.WaitGroup
	first.Go(func() { s.awaitAssignedWatermarks(ctx) })
	defer first.Wait()
	defer s.consumer.stalling.Clear()
	defer func() {
		for _, p := range s.partitions {
			s.consumer.stalling.Forget(p)
		}
	}()
	group := groupWatch{session: s}
	for routine.Sleep(ctx, s.consumer.cfg.WatchInterval) {
		if len(s.partitions) == 0 || s.consumer.cfg.Partitions != nil {
			group.check(ctx) // the leader may name fewer, and then assigns the others to no one
		}
		if len(s.partitions) == 0 {
			continue
		}
		s.refreshWatermarks(ctx)
		s.logStalls()
	}
}

// awaitAssignedWatermarks asks for the high watermark of each partition until it is known. Everything below it counts
// as present at assignment. The first answer to a fetch cannot be used: a leader that was just elected may know less
// than the true watermark. It refuses this request until it knows it.
func (s *session) awaitAssignedWatermarks(ctx context.Context) {
	retry := routine.Backoff{First: fetchBackoffFirst, Max: s.consumer.cfg.WatchInterval}
	for unknown := s.partitions; len(unknown) > 0; {
		ends := s.listEnds(ctx, unknown, ReadUncommitted)
		var left []*partition
		for _, p := range unknown {
			end := ends[p.key()]
			if end.err != nil {
				p.watermarkUnknown(end.err)
			}
			if end.err != nil || !p.assigned(end.offset) {
				left = append(left, p)
			}
		}
		unknown = left
		if len(unknown) > 0 && !retry.Wait(ctx) {
			return
		}
	}
}

// refreshWatermarks asks for the ends of the partitions for which no fetch has reported watermarks since the last time.
// Halted, failing or full partitions would otherwise show the lag of their last fetch.
func (s *session) refreshWatermarks(ctx context.Context) {
	var stale []*partition
	for _, p := range s.partitions {
		if p.stale() {
			stale = append(stale, p)
		}
	}
	if len(stale) == 0 {
		return
	}
	ends := s.listEnds(ctx, stale, ReadUncommitted)
	var stable map[partitionKey]place
	if s.consumer.cfg.Isolation == ReadCommitted {
		stable = s.listEnds(ctx, stale, ReadCommitted)
	}
	for _, p := range stale {
		end := ends[p.key()]
		if end.err != nil {
			p.watermarkUnknown(end.err)
			continue
		}
		lastStable := int64(-1)
		if e, asked := stable[p.key()]; asked && e.err == nil {
			lastStable = e.offset
		}
		p.refreshed(end.offset, lastStable)
	}
}

// listEnds asks for the ends of partitions as an isolation level sees them: the high watermark, or the last stable
// offset. The result has an entry for each partition.
func (s *session) listEnds(ctx context.Context, of []*partition, isolation Isolation) map[partitionKey]place {
	keys := make([]partitionKey, len(of))
	for i, p := range of {
		keys[i] = p.key()
	}
	return s.consumer.network.listOffsets(ctx, keys, kafka.LastOffset, isolation)
}

// logStalls logs when the first partition stalls and when the last one has recovered.
func (s *session) logStalls() {
	c := s.consumer
	for i, h := range c.partitionHealth(s) {
		if h.StalledSince.IsZero() {
			c.stalling.End(s.partitions[i])
			continue
		}
		c.stalling.Begin(s.partitions[i], h.Problem(), zap.String(telemetry.FieldTopic, h.Topic),
			zap.Int(telemetry.FieldPartition, h.Partition),
			zap.Int64(telemetry.FieldLag, h.Lag), zap.Time(telemetry.FieldSince, h.StalledSince))
	}
}

// partitionHealth returns a snapshot of a session's partitions. While accepting or publishing fails, and for
// ProgressTimeout after that, no partition is reported as stalled.
func (c *Consumer) partitionHealth(s *session) []PartitionHealth {
	excused, full := c.accepting.Until(), s.buffer.Bytes() >= c.cfg.BufferBytes
	if until := c.publishing.Until(); until.After(excused) {
		excused = until
	}
	all := make([]PartitionHealth, len(s.partitions))
	for i, p := range s.partitions {
		all[i] = p.health(full, c.cfg.ProgressTimeout, excused)
		all[i].Generation = s.gen.ID
	}
	return all
}

// lag returns how far accepted is behind the high watermark, -1 while unknown. The lock is held.
func (p *partition) lag() int64 { return p.distanceTo(p.highWatermark) }

// readable returns how far accepted is behind the last readable offset. With read_committed that is the last stable
// offset, before which no transaction is open. A consumer can be expected to reach this one.
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

// compare updates since when the partition lags, after either end moved. The lock is held.
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

// assigned stores the high watermark asked for at assignment. It reports false for a value that cannot be true: one
// below the committed offset comes from a leader that lags. If a gap was passed in between, its log's watermark stays.
func (p *partition) assigned(highWatermark int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if highWatermark < p.committed {
		p.watermarkErr = fmt.Errorf("high watermark of %s/%d: %d is below what is committed", p.topic, p.id, highWatermark)
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

// refreshed stores watermarks that were requested because nothing is fetched. It ignores them if a fetch was answered
// in between, whose watermarks are newer. lastStable is -1 where it was not asked for.
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

// stalledSince returns since when there is something to read and no progress, if that is longer than timeout, and zero
// otherwise. A partition that is halted or cannot be fetched is reported as that and not as stalled. excused is until
// when accepting is known to have failed.
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
