package kafkaconsumer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/sasl"

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

// customSASL marks the errors of a mechanism that is not ours, for example of a credential service that is down.
type customSASL struct{ sasl.Mechanism }

func (m customSASL) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	session, first, err := m.Mechanism.Start(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("authenticate: %w", err)
	}
	return customSASLSession{session}, first, nil
}

type customSASLSession struct{ sasl.StateMachine }

func (s customSASLSession) Next(ctx context.Context, challenge []byte) (bool, []byte, error) {
	done, response, err := s.StateMachine.Next(ctx, challenge)
	if err != nil {
		err = fmt.Errorf("authenticate: %w", err)
	}
	return done, response, err
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
	var (
		unknown x509.UnknownAuthorityError
		remote  *net.OpError
		hint    string
	)
	switch {
	case errors.Is(err, kafka.SASLAuthenticationFailed):
		hint = fmt.Sprintf("%s is refused: unknown, a wrong password, or without credentials for this mechanism", c.who())
	case errors.Is(err, kafka.UnsupportedSASLMechanism):
		hint = fmt.Sprintf("this listener of the broker does not offer %s", c.SASL.Mechanism)
	case errors.Is(err, kafka.IllegalSASLState):
		hint = "this listener of the broker does not use SASL"
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		hint = fmt.Sprintf("%s needs the right READ on the topics %q", c.who(), c.Topics)
	case errors.Is(err, kafka.GroupAuthorizationFailed):
		hint = fmt.Sprintf("%s needs the right READ on the group %q", c.who(), c.GroupID)
	case errors.Is(err, protocol.ErrNoTopic), errors.Is(err, protocol.ErrNoPartition):
		hint = fmt.Sprintf("it does not exist, or %s lacks the right READ on the topic", c.who())
	case errors.As(err, &unknown):
		hint = "the broker's certificate is of no authority in TLS.RootCAs"
	case errors.As(err, &remote) && remote.Op == "remote error": // a TLS alert
		hint = "the broker does not accept the client's certificate"
		if !c.certified() {
			hint = "the broker requires a client certificate, TLS.Certificates is empty"
		}
	default:
		return err
	}
	return fmt.Errorf("%w (%s)", err, hint)
}

// explainSilence is explain for a consumer that no broker has answered yet. Brokers close a connection without a reason
// if they expect another protocol. After the first answer a closed connection is an ordinary event.
func (c Config) explainSilence(err error) error {
	if _, shaking := errors.AsType[*handshakeError](err); shaking || !lost(err) {
		return c.explain(err)
	}
	var missing []string
	if c.TLS == nil {
		missing = append(missing, "TLS")
	} else if !c.certified() {
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

// who describes the client as brokers see it.
func (c Config) who() string {
	switch {
	case c.SASL.Username != "":
		return fmt.Sprintf("user %q (%s)", c.SASL.Username, c.SASL.Mechanism)
	case c.SASL.Mechanism != "":
		return fmt.Sprintf("the user of %s", c.SASL.Mechanism)
	case c.certified():
		return "the user of the client's certificate"
	default:
		return "a client without a user"
	}
}

// certified reports whether the client has a certificate to show.
func (c Config) certified() bool {
	return c.TLS != nil && (len(c.TLS.Certificates) > 0 || c.TLS.GetClientCertificate != nil)
}

// refusedLogin reports whether err is a refused login.
func refusedLogin(err error) bool {
	return isAny(err, kafka.SASLAuthenticationFailed, kafka.UnsupportedSASLMechanism, kafka.IllegalSASLState)
}

// lost reports whether err is a closed connection, as opposed to one that could not be opened or on
// which no answer came in time.
func lost(err error) bool {
	return isAny(err, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE)
}

func isAny(err error, known ...error) bool {
	return slices.ContainsFunc(known, func(one error) bool { return errors.Is(err, one) })
}

// handshakeError is why a connection could not be encrypted.
type handshakeError struct {
	address string
	err     error
}

func (e *handshakeError) Error() string {
	text := fmt.Sprintf("TLS handshake with %s: %v", e.address, e.err)
	_, noTLS := errors.AsType[tls.RecordHeaderError](e.err)
	if noTLS || lost(e.err) || isAny(e.err, context.DeadlineExceeded, os.ErrDeadlineExceeded) {
		text += " (this listener of the broker may not use TLS)"
	}
	return text
}

func (e *handshakeError) Unwrap() error { return e.err }
