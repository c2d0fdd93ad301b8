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

// Health is a snapshot of a consumer.
type Health struct {
	Channel string
	GroupID string
	// State is what the consumer does, since StateSince (zero before Start).
	State      State
	StateSince time.Time
	// MemberID and Generation are those of the last generation joined, and
	// Rebalances counts the generations after the first.
	MemberID   string
	Generation int32
	Rebalances int
	// DownSince is since when the consumer has no generation; zero while it
	// has one, or before it is started.
	DownSince time.Time
	// GroupErr is why it has none: the last error of reaching the brokers or
	// of joining, or that joining takes longer than ProgressTimeout.
	GroupErr error
	// ClusterErr is why what is known of the cluster (its brokers, topics and
	// leaders) is not refreshed: an answer was refused (contract 7.2). Nil while
	// it is.
	ClusterErr error
	// MissingTopics are configured and do not exist; the others are consumed.
	MissingTopics []string
	// DeniedTopics are configured and this client may not see them: brokers do
	// not tell it whether they exist. The others are consumed.
	DeniedTopics []string
	// AcceptFailingSince is since when accepting fails; zero while it works.
	AcceptFailingSince time.Time
	AcceptErr          error
	// DeadLetterFailingSince is since when publishing to the dead-letter topic
	// fails; zero while it works.
	DeadLetterFailingSince time.Time
	DeadLetterErr          error
	// CommitErr is why the last commit failed; nil if it did not.
	CommitErr error
	// BufferedBytes are fetched and not yet accepted.
	BufferedBytes int
	// Partitions are the assigned ones, by topic and number.
	Partitions []PartitionHealth
	// Idle is what a member without partitions sees of its group; nil if it
	// has some, or has not looked yet (it does so every WatchInterval).
	Idle *Idle
}

// Err joins everything that keeps the consumer from consuming; nil if nothing
// does. Of partitions with a problem it names 20 and counts the others. Just
// started is no error, nor is a rebalance before DownSince is older than the caller
// accepts: compare it to the clock.
func (h Health) Err() error {
	var problems []error
	if h.GroupErr != nil {
		problems = append(problems, fmt.Errorf("group %q: no member since %s: %w", h.GroupID,
			h.DownSince.Format(time.RFC3339), h.GroupErr))
	}
	if h.ClusterErr != nil && h.GroupErr == nil {
		const what = "group %q: what is known of the cluster cannot be refreshed: %w"
		problems = append(problems, fmt.Errorf(what, h.GroupID, h.ClusterErr))
	}
	if len(h.MissingTopics) > 0 {
		problems = append(problems, fmt.Errorf("topics %q do not exist", h.MissingTopics))
	}
	if len(h.DeniedTopics) > 0 {
		problems = append(problems, fmt.Errorf("topics %q: the right READ is missing, and they may not exist",
			h.DeniedTopics))
	}
	if h.AcceptErr != nil {
		problems = append(problems, fmt.Errorf("accepting fails since %s: %w", h.AcceptFailingSince.Format(time.RFC3339),
			h.AcceptErr))
	}
	if h.DeadLetterErr != nil {
		problems = append(problems, fmt.Errorf("bad records cannot be published since %s: %w",
			h.DeadLetterFailingSince.Format(time.RFC3339), h.DeadLetterErr))
	}
	problems = append(problems, h.partitionProblems()...)
	if i := h.Idle; i != nil && i.Unassigned > 0 {
		problems = append(problems, fmt.Errorf("group %q: %d of %d partitions are assigned to none of its %d members",
			h.GroupID, i.Unassigned, i.Partitions, i.Members))
	}
	return errors.Join(problems...)
}

// namedPartitions bounds how many partitions a text names: a member may have thousands,
// and what is wrong with one is often wrong with all.
const namedPartitions = 20

func (h Health) partitionProblems() (problems []error) {
	more := 0
	for _, p := range h.Partitions {
		if problem := p.problem(); problem != nil && len(problems) < namedPartitions {
			problems = append(problems, problem)
		} else if problem != nil {
			more++
		}
	}
	if more > 0 {
		problems = append(problems, fmt.Errorf("%d more partitions have problems", more))
	}
	return problems
}

// Lag is the sum of the lags of the assigned partitions, in offsets, and since
// when one of them is above zero without a break; -1 while that of one is not
// known (contract 7.8).
func (h Health) Lag() (lag int64, since time.Time) {
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
