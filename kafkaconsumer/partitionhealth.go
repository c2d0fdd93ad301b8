package kafkaconsumer

import (
	"fmt"
	"time"
)

// PartitionState is what is being done with a partition.
type PartitionState string

// The states of an assigned partition.
const (
	// PartitionStarting means that the offset to begin at is not known yet.
	PartitionStarting PartitionState = "starting"
	// PartitionFetching means that nothing waits to be accepted and the broker is asked for more.
	PartitionFetching PartitionState = "fetching"
	// PartitionAccepting means that fetched records are being accepted or wait for it. Hardly
	// anything is fetched meanwhile. If it lasts, Health.AcceptErr, Health.DeadLetterErr or
	// StalledSince shows why.
	PartitionAccepting PartitionState = "accepting"
	// PartitionFailing means that fetching fails and is retried.
	PartitionFailing PartitionState = "failing"
	// PartitionHalted means stopped until the partition is assigned again.
	PartitionHalted PartitionState = "halted"
)

// PartitionHealth describes one assigned partition in its generation. Offsets are -1 and times are
// zero while they are unknown.
type PartitionHealth struct {
	Topic      string
	Partition  int
	State      PartitionState
	Generation int32
	// Next is the offset to fetch next. Accepted is the offset below which everything is accepted.
	// Committed is what the group has. Committed <= Accepted <= Next.
	Next, Accepted, Committed int64
	// HighWatermark, LastStable and LogStart are the broker's, as of ToldAt. Each answer to a fetch
	// updates them. Where nothing is fetched (halted, failing, accepting) the first two are updated
	// about every WatchInterval.
	HighWatermark, LastStable, LogStart int64
	ToldAt                              time.Time
	// WatermarkErr is why the watermarks could not be asked for. It is nil if they could, or need
	// not be.
	WatermarkErr error
	// Lag is HighWatermark - Accepted, in offsets. Control records and records of an open
	// transaction count too. BehindSince is since when it has been above zero.
	Lag         int64
	BehindSince time.Time
	// CaughtUp means that everything is accepted that was there when the partition was assigned
	// (contract 6.5).
	CaughtUp bool
	// AssignedAt is when the partition was assigned in this generation. ProgressAt is when Accepted
	// last moved in it, zero before it did.
	AssignedAt, ProgressAt time.Time
	// StalledSince is since when there is something to read and no progress, once that lasts for
	// ProgressTimeout. It is zero otherwise, and where Halted, Err, Health.AcceptErr or
	// Health.DeadLetterErr shows the cause. An open transaction is no stall.
	StalledSince time.Time
	// Halted is why the partition is stopped, since HaltedAt. It is nil if the partition is not
	// stopped. A new assignment starts it again.
	Halted   error
	HaltedAt time.Time
	// Err is the last error of fetching, which has failed since ErrSince. It is nil once fetching
	// works again.
	Err      error
	ErrSince time.Time
}

// problem returns what keeps the partition from being consumed, nil if nothing does.
func (p PartitionHealth) problem() error {
	switch {
	case p.Halted != nil:
		return fmt.Errorf("%s/%d is halted before offset %d since %s: %w", p.Topic, p.Partition, p.Accepted,
			p.HaltedAt.Format(time.RFC3339), p.Halted)
	case p.Err != nil:
		return fmt.Errorf("%s/%d: fetching fails since %s: %w", p.Topic, p.Partition, p.ErrSince.Format(time.RFC3339), p.Err)
	case !p.StalledSince.IsZero():
		return fmt.Errorf("%s/%d makes no progress since %s: it is at offset %d, %d behind, and %s",
			p.Topic, p.Partition, p.StalledSince.Format(time.RFC3339), p.Accepted, p.Lag, p.State)
	}
	return nil
}

// health returns a snapshot. full means that nothing may be fetched because too much waits to be
// accepted. timeout and excused decide what counts as a stall.
func (p *partition) health(full bool, timeout time.Duration, excused time.Time) PartitionHealth {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := PartitionHealth{
		Topic: p.topic, Partition: p.id, Next: p.next, Accepted: p.accepted, Committed: p.committed,
		HighWatermark: p.highWatermark, LastStable: p.lastStable, LogStart: p.logStart, ToldAt: p.toldAt,
		WatermarkErr: p.watermarkErr,
		Lag:          p.lag(), BehindSince: p.behindSince,
		CaughtUp:   p.answered && p.assignedWatermark >= 0 && p.accepted >= p.assignedWatermark,
		AssignedAt: p.assignedAt, ProgressAt: p.progressAt, StalledSince: p.stalledSince(timeout, excused),
		Halted: p.halted, HaltedAt: p.haltedAt, Err: p.err, ErrSince: p.errSince,
	}
	switch {
	case p.halted != nil:
		h.State = PartitionHalted
	case p.err != nil:
		h.State = PartitionFailing
	case p.accepted < 0:
		h.State = PartitionStarting
	case p.next > p.accepted || full:
		h.State = PartitionAccepting
	default:
		h.State = PartitionFetching
	}
	return h
}
