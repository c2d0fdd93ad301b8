package kafkaconsumer

import (
	"fmt"
	"time"
)

// PartitionState says what is done with a partition.
type PartitionState string

// The states of an assigned partition.
const (
	// PartitionStarting: where to begin is not known yet.
	PartitionStarting PartitionState = "starting"
	// PartitionFetching: nothing waits to be accepted; the broker is asked
	// for more.
	PartitionFetching PartitionState = "fetching"
	// PartitionAccepting: what was fetched is being accepted or waits for it,
	// and hardly anything is fetched meanwhile. If it lasts, Health.AcceptErr,
	// Health.DeadLetterErr or StalledSince says why.
	PartitionAccepting PartitionState = "accepting"
	// PartitionFailing: fetching fails and is tried again.
	PartitionFailing PartitionState = "failing"
	// PartitionHalted: stopped until it is assigned again.
	PartitionHalted PartitionState = "halted"
)

// PartitionHealth is how one assigned partition does in its generation. Offsets
// are -1 while they are not known, times zero.
type PartitionHealth struct {
	Topic      string
	Partition  int
	State      PartitionState
	Generation int32
	// Next is what is fetched next, Accepted below what everything is
	// accepted, Committed what the group has. Committed <= Accepted <= Next.
	Next, Accepted, Committed int64
	// HighWatermark, LastStable and LogStart are the broker's, as of ToldAt:
	// with each answer to a fetch, and where nothing is fetched (halted,
	// failing, accepting) the first two about every WatchInterval.
	HighWatermark, LastStable, LogStart int64
	ToldAt                              time.Time
	// WatermarkErr is why they could not be asked for; nil if they could, or
	// need not be.
	WatermarkErr error
	// Lag is HighWatermark - Accepted, in offsets: control records and what
	// belongs to an open transaction count, too. BehindSince is since when it
	// is above zero.
	Lag         int64
	BehindSince time.Time
	// CaughtUp: everything that was there when the partition was assigned is
	// accepted (contract 6.5).
	CaughtUp bool
	// AssignedAt is when the generation brought the partition, ProgressAt
	// when Accepted moved last in it; zero before it did.
	AssignedAt, ProgressAt time.Time
	// StalledSince is since when there is something to read and no progress,
	// once that is ProgressTimeout long; zero if it is not, or if Halted, Err,
	// Health.AcceptErr or Health.DeadLetterErr says why. An open transaction stalls nothing.
	StalledSince time.Time
	// Halted is why the partition is stopped, since HaltedAt; nil if it is
	// not. It is tried again when it is assigned again.
	Halted   error
	HaltedAt time.Time
	// Err is the last error of fetching, which fails since ErrSince; nil
	// since fetching works.
	Err      error
	ErrSince time.Time
}

// problem is what keeps the partition from being consumed; nil if nothing does.
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

// health is a snapshot. full says that nothing may be fetched because too much
// waits to be accepted; stalls are judged by timeout and what excuses them.
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
