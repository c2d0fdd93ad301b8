package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go/sasl"

	"github.com/gorm-inbox/inbox/internal/kafkawire"
)

// ErrUndecodable is why a partition halts when its records cannot be read: their checksum,
// compression or format is wrong, or a batch is larger than MaxBatchBytes. Find it with errors.Is
// in PartitionHealth.Halted.
var ErrUndecodable = kafkawire.ErrUndecodable

// ErrStopped is returned by Start after Stop. Make a new Consumer then.
var ErrStopped = errors.New("consumer is stopped")

// errJoining is shown when the group reaches no generation and reports no error.
var errJoining = errors.New("joining")

// OffsetGapError is why a partition halts when its next record no longer exists: retention removed
// it, the log was truncated, or the topic was deleted and created again (contract 7.5).
type OffsetGapError struct {
	Topic     string
	Partition int
	// Offset is what should be read next. The log holds First to Last-1.
	Offset, First, Last int64
}

// Error names what is missing and what to do.
func (e *OffsetGapError) Error() string {
	where := fmt.Sprintf("offset %d of %s/%d is out of range, the log holds %d to %d", e.Offset, e.Topic, e.Partition,
		e.First, e.Last-1)
	if e.Last <= e.First {
		where = fmt.Sprintf("offset %d of %s/%d is out of range, the log is empty and continues at %d", e.Offset, e.Topic,
			e.Partition, e.Last)
	}
	if e.Offset < e.First {
		return fmt.Sprintf("%s: %d records were deleted unread; to go on without them, set OnGap to continue or the group's offset to %d", where, e.First-e.Offset, e.First)
	}
	return where +
		": the log was truncated, or the topic was deleted and created again; to go on, set OnGap to continue or the group's offset within the log"
}

// TopicRecreatedError is why a partition halts when its topic was deleted and created again while
// it was read, whatever offsets the new log holds (contract 7.5). Brokers before Kafka 2.8 send no
// topic IDs: there, OffsetGapError or EpochError may appear instead. Like EpochError, it does not
// survive a restart.
type TopicRecreatedError struct {
	Topic     string
	Partition int
	// Offset is what should be read next in the deleted log. The new log begins at First.
	Offset, First int64

	id kafkawire.TopicID
}

// Error describes what happened and what to do.
func (e *TopicRecreatedError) Error() string {
	return fmt.Sprintf("topic %s was deleted and created again: the log of partition %d in which offset %d came next is gone, the new one begins at %d; to go on, set OnGap to continue or the group's offset to %d",
		e.Topic, e.Partition, e.Offset, e.First, e.First)
}

// EpochError is why a partition halts when the leader epoch of its log falls. The halt does not
// survive a restart or a rebalance, because the epoch that was read is known only while the
// partition is assigned. Reading then begins anew where the brokers forgot the group's offsets
// together with the deleted topic, and goes on at the committed offset where they did not.
type EpochError struct {
	From, To int32
	// Offset is that of the batch where the epoch fell. The log begins at First.
	Offset, First int64
}

// Error describes the fall of the epoch and its possible causes.
func (e *EpochError) Error() string {
	return fmt.Sprintf("leader epoch fell from %d to %d at offset %d: the topic was deleted and created again, or a leader was elected that lacks records", e.From, e.To, e.Offset)
}

// authenticationError marks an error of a custom SASL mechanism, for example of a credential
// service that is down.
type authenticationError struct{ err error }

func (e *authenticationError) Error() string { return "authenticate: " + e.err.Error() }

func (e *authenticationError) Unwrap() error { return e.err }

// customSASL marks the errors of a mechanism that is not ours.
type customSASL struct{ sasl.Mechanism }

func (m customSASL) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	session, first, err := m.Mechanism.Start(ctx)
	if err != nil {
		return nil, nil, &authenticationError{err}
	}
	return customSASLSession{session}, first, nil
}

type customSASLSession struct{ sasl.StateMachine }

func (s customSASLSession) Next(ctx context.Context, challenge []byte) (bool, []byte, error) {
	done, response, err := s.StateMachine.Next(ctx, challenge)
	if err != nil {
		err = &authenticationError{err}
	}
	return done, response, err
}

// fatal reports whether err is about the data or the log, which halts the partition. Errors of the
// network and the cluster pass.
func fatal(err error) bool {
	var gap *OffsetGapError
	var epoch *EpochError
	var recreated *TopicRecreatedError
	return errors.As(err, &gap) || errors.As(err, &epoch) || errors.As(err, &recreated) || errors.Is(err, ErrUndecodable)
}
