package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go/sasl"

	"github.com/gorm-inbox/inbox/internal/kafkawire"
)

// ErrUndecodable is why a partition halts whose records cannot be read: checksum,
// compression or format are wrong, or a batch is larger than MaxBatchBytes. Find it with
// errors.Is in PartitionHealth.Halted.
var ErrUndecodable = kafkawire.ErrUndecodable

// ErrStopped is returned by Start after Stop: make a new Consumer.
var ErrStopped = errors.New("consumer is stopped")

// errJoining: the group does not come to a generation, and says no error.
var errJoining = errors.New("joining")

// OffsetGapError is why a partition halts whose next record is not there any
// more: retention removed it, or the log was truncated, or the topic was
// deleted and created again (contract 7.5).
type OffsetGapError struct {
	Topic     string
	Partition int
	// Offset is what should be read next; the log holds First to Last-1.
	Offset, First, Last int64
}

// Error says what is missing and what to do.
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

// TopicRecreatedError is why a partition halts whose topic was deleted and
// created again while it was read, whatever offsets the new log holds (contract
// 7.5). Brokers before Kafka 2.8 do not tell; then OffsetGapError or EpochError
// may. Like EpochError it does not survive a restart.
type TopicRecreatedError struct {
	Topic     string
	Partition int
	// Offset is what should be read next in the log that is gone; the new one
	// begins at First.
	Offset, First int64

	id kafkawire.TopicID
}

// Error says what happened and what to do.
func (e *TopicRecreatedError) Error() string {
	return fmt.Sprintf("topic %s was deleted and created again: the log of partition %d in which offset %d came next is gone, the new one begins at %d; to go on, set OnGap to continue or the group's offset to %d",
		e.Topic, e.Partition, e.Offset, e.First, e.First)
}

// EpochError is why a partition halts whose log starts over. The halt does not
// survive a restart or a rebalance: which epoch was read is known only while
// the partition is assigned, and brokers forget a group's offsets when its
// topic is deleted, so that reading then begins anew, or goes on at the offset
// where they do not.
type EpochError struct {
	From, To int32
	// Offset is of the batch where the epoch fell; the log begins at First.
	Offset, First int64
}

// Error says what that means.
func (e *EpochError) Error() string {
	return fmt.Sprintf("leader epoch fell from %d to %d at offset %d: the topic was deleted and created again, or a leader was elected that lacks records", e.From, e.To, e.Offset)
}

// authenticationError marks what a custom SASL mechanism failed with, for
// example a credential service that is down.
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

// fatal tells errors of the data and of the log, which halt the partition,
// from those of the network and the cluster, which pass.
func fatal(err error) bool {
	var gap *OffsetGapError
	var epoch *EpochError
	var recreated *TopicRecreatedError
	return errors.As(err, &gap) || errors.As(err, &epoch) || errors.As(err, &recreated) || errors.Is(err, ErrUndecodable)
}
