package kafkaconsumer

import (
	"errors"
	"fmt"
	"strings"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/gorm-inbox/inbox/internal/kafkaclient"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
)

// ErrUnreadable is why a partition halts when its records cannot be read: their checksum, compression or format is
// wrong, or a batch is larger than MaxBatchBytes. Find it with errors.Is in PartitionHealth.Halted. A record that can
// be read and is no message is a bad record instead (acceptor.BadRecordPolicy).
var ErrUnreadable = kafkawire.ErrUnreadable

// ErrStopped is returned by Start after Stop. Make a new Consumer then.
var ErrStopped = errors.New("consumer is stopped")

// errJoining is shown when the group reaches no generation and reports no error.
var errJoining = errors.New("joining")

// OffsetGapError is why a partition halts when its next record no longer exists: retention removed
// it, the log was truncated, or the topic was deleted and created again (contract 7.5).
type OffsetGapError struct {
	Topic     string
	Partition int
	// Offset is the next offset to read. The log holds First to Last-1.
	Offset, First, Last int64
}

// Error names what is missing and what to do.
func (e *OffsetGapError) Error() string {
	log := fmt.Sprintf("holds %d to %d", e.First, e.Last-1)
	if e.Last <= e.First {
		log = fmt.Sprintf("is empty and continues at %d", e.Last)
	}
	where := fmt.Sprintf("offset %d of %s/%d is out of range, the log %s", e.Offset, e.Topic, e.Partition, log)
	if e.Offset < e.First {
		return fmt.Sprintf("%s: %d records were deleted unread; to go on without them, resume the partition, set OnGap to continue or the group's offset to %d", where, e.First-e.Offset, e.First)
	}
	return where +
		": the log was truncated, or the topic was deleted and created again; to go on, resume the partition, set OnGap to continue or the group's offset within the log"
}

// TopicRecreatedError is why a partition halts when its topic was deleted and created again, while it was read or since
// its offset was committed, even if the new log holds the offset (contract 7.5). Brokers before Kafka 2.8 send no topic
// IDs: there, OffsetGapError or EpochError may appear instead. The halt survives a restart if the brokers still have
// the offset. They forget the offsets of a deleted topic, but store one that is committed after that.
type TopicRecreatedError struct {
	Topic     string
	Partition int
	// Offset is the next offset to read in the deleted log. The new log begins at First.
	Offset, First int64

	id logID
}

// Error describes what happened and what to do.
func (e *TopicRecreatedError) Error() string {
	return fmt.Sprintf("topic %s was deleted and created again: the log of partition %d in which offset %d came next is gone, the new one begins at %d; to go on, resume the partition, set OnGap to continue or the group's offset to %d",
		e.Topic, e.Partition, e.Offset, e.First, e.First)
}

// EpochError is why a partition halts when the leader epoch of its log falls. The halt does not
// survive a restart or a rebalance, because the epoch that was read is known only while the
// partition is assigned. Reading then begins again where the brokers forgot the group's offsets
// together with the deleted topic, and goes on at the committed offset where they did not.
type EpochError struct {
	From, To int32
	// Offset is where the batch begins whose epoch is lower. The log begins at First.
	Offset, First int64
}

// Error describes the fall of the epoch and its possible causes.
func (e *EpochError) Error() string {
	return fmt.Sprintf("leader epoch fell from %d to %d at offset %d: the topic was deleted and created again, or a leader was elected that lacks records", e.From, e.To, e.Offset)
}

// fatal reports whether err is about the data or the log, which halts the partition. Errors of the
// network and the cluster pass.
func fatal(err error) bool {
	_, gap := errors.AsType[*OffsetGapError](err)
	_, epoch := errors.AsType[*EpochError](err)
	_, recreated := errors.AsType[*TopicRecreatedError](err)
	return gap || epoch || recreated || errors.Is(err, ErrUnreadable)
}

// explain adds to a broker's refusal the facts that an operator needs: the refused user, the configuration, and the
// missing right. Other errors are returned unchanged.
func (c Config) explain(err error) error {
	client, hint := c.client(), ""
	switch {
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		hint = fmt.Sprintf("%s needs the right READ on the topics %q", client.Who(), c.Topics)
	case errors.Is(err, kafka.GroupAuthorizationFailed):
		hint = fmt.Sprintf("%s needs the right READ on the group %q", client.Who(), c.GroupID)
	case errors.Is(err, protocol.ErrNoTopic), errors.Is(err, protocol.ErrNoPartition):
		hint = fmt.Sprintf("it does not exist, or %s lacks the right READ on the topic", client.Who())
	default:
		return client.Explain(err)
	}
	return fmt.Errorf("%w (%s)", err, hint)
}

// explainSilence is explain for a consumer that no broker has answered yet. Brokers close a connection without a reason
// if they expect another protocol. After the first answer a closed connection is an ordinary event.
func (c Config) explainSilence(err error) error {
	if _, shaking := errors.AsType[*kafkaclient.HandshakeError](err); shaking || !kafkaclient.Lost(err) {
		return c.explain(err)
	}
	var missing []string
	if c.TLS == nil {
		missing = append(missing, "TLS")
	} else if !c.client().Certified() {
		missing = append(missing, "a client certificate")
	}
	if c.SASL.Mechanism == "" {
		missing = append(missing, "SASL")
	}
	if len(missing) == 0 {
		return err
	}
	return fmt.Errorf("%w (the broker closed the connection: this listener may require %s)", err,
		strings.Join(missing, " or "))
}

// refusedLogin reports whether err is a refused login.
func refusedLogin(err error) bool {
	return kafkaclient.IsAny(err, kafka.SASLAuthenticationFailed, kafka.UnsupportedSASLMechanism, kafka.IllegalSASLState)
}
