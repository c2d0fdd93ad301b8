package kafkaconsumer

import (
	"errors"
	"fmt"
	"time"
)

// State says what a consumer is doing.
type State string

// The states of a Consumer, in their usual order.
const (
	// New: not started yet.
	StateNew State = "new"
	// StateWaiting: none of its topics is known to exist yet, or no broker
	// could be asked.
	StateWaiting State = "waiting"
	// StateJoining: joining its group, also between two generations.
	StateJoining State = "joining"
	// StateRunning: member of its group; it may have no partitions.
	StateRunning State = "running"
	// StateStopping: finishing what is being accepted.
	StateStopping State = "stopping"
	// StateStopped: ended for good.
	StateStopped State = "stopped"
)

// PartitionHealth is how one assigned partition does. Offsets are -1 while
// they are not known.
type PartitionHealth struct {
	Topic     string
	Partition int
	// Next is what is fetched next, Accepted below what everything is
	// accepted, Committed what the group has. Committed <= Accepted <= Next.
	Next, Accepted, Committed int64
	// HighWatermark, LastStable and LogStart are the broker's, as of its last
	// answer.
	HighWatermark, LastStable, LogStart int64
	// Lag is HighWatermark - Accepted, in offsets.
	Lag int64
	// CaughtUp: everything that was there when the partition was assigned is
	// accepted (contract 6.5).
	CaughtUp bool
	// ProgressAt is when Accepted moved last; zero before it did.
	ProgressAt time.Time
	// Halted is why the partition is stopped; nil if it is not. It is tried
	// again when it is assigned again.
	Halted error
	// Err is the last error of fetching; nil since fetching works.
	Err error
}

// Health is a snapshot of a consumer.
type Health struct {
	Channel string
	GroupID string
	State   State
	// MemberID and Generation are those of the last generation joined, and
	// Rebalances counts the generations after the first.
	MemberID   string
	Generation int32
	Rebalances int
	// DownSince is since when the consumer has no generation; zero while it
	// has one, or before it is started.
	DownSince time.Time
	// GroupErr is why it has none: the last error of reaching the brokers or
	// of joining.
	GroupErr error
	// MissingTopics are configured and do not exist; the others are consumed.
	MissingTopics []string
	// AcceptFailingSince is since when accepting fails; zero while it works.
	AcceptFailingSince time.Time
	AcceptErr          error
	// CommitErr is why the last commit failed; nil if it did not.
	CommitErr error
	// BufferedBytes are fetched and not yet accepted.
	BufferedBytes int
	// Partitions are the assigned ones, by topic and number.
	Partitions []PartitionHealth
}

// Err joins everything that keeps the consumer from consuming; nil if nothing
// does. Just started is no error, nor is a rebalance before DownSince is older
// than the caller accepts: compare it to the clock.
func (h Health) Err() error {
	var problems []error
	if h.GroupErr != nil {
		problems = append(problems, fmt.Errorf("group %q: no member since %s: %w", h.GroupID, h.DownSince.Format(time.RFC3339), h.GroupErr))
	}
	if len(h.MissingTopics) > 0 {
		problems = append(problems, fmt.Errorf("topics %q do not exist", h.MissingTopics))
	}
	if h.AcceptErr != nil {
		problems = append(problems, fmt.Errorf("accepting fails since %s: %w", h.AcceptFailingSince.Format(time.RFC3339), h.AcceptErr))
	}
	for _, p := range h.Partitions {
		if p.Halted != nil {
			problems = append(problems, fmt.Errorf("%s/%d is halted before offset %d: %w", p.Topic, p.Partition, p.Accepted, p.Halted))
		} else if p.Err != nil {
			problems = append(problems, fmt.Errorf("%s/%d: fetching fails: %w", p.Topic, p.Partition, p.Err))
		}
	}
	return errors.Join(problems...)
}

// CaughtUp says whether everything that was in the assigned partitions when
// they were assigned is accepted. It is false without a generation, and true
// for a member without partitions (contract 6.5).
func (h Health) CaughtUp() bool {
	if h.State != StateRunning {
		return false
	}
	for _, p := range h.Partitions {
		if !p.CaughtUp {
			return false
		}
	}
	return true
}

// Halted returns the halted partitions.
func (h Health) Halted() []PartitionHealth {
	var halted []PartitionHealth
	for _, p := range h.Partitions {
		if p.Halted != nil {
			halted = append(halted, p)
		}
	}
	return halted
}
