package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// The headers that a dead letter has after the record's own, which stay as
// they are: of several headers of one name, the last is this consumer's.
const (
	// HeaderTopic, HeaderPartition and HeaderOffset say where the record was.
	HeaderTopic     = "inbox-topic"
	HeaderPartition = "inbox-partition"
	HeaderOffset    = "inbox-offset"
	// HeaderTimestamp is its timestamp in milliseconds since 1970, which the
	// dead letter also has, unless its topic is set to log append time or the
	// timestamp is exactly 0.
	HeaderTimestamp = "inbox-timestamp"
	// HeaderChannel and HeaderGroup say who read it, HeaderReason what is
	// wrong with it (at most 2,000 characters, redacted: contract 11.6).
	HeaderChannel = "inbox-channel"
	HeaderGroup   = "inbox-group"
	HeaderReason  = "inbox-reason"
	// HeaderHeaders is there if the record's own headers were too many to be read
	// (MaxHeaders): it has them all, as Kafka's record format does.
	HeaderHeaders = "inbox-headers"
)

// maxLetterBytes bounds a request with several dead letters: brokers allow
// 1 MiB unless configured otherwise. A larger record goes alone.
const maxLetterBytes = 512 << 10

// DeadLetterError is why a partition halts whose bad record the dead-letter
// topic refuses, however often it is tried: it is too large, for example
// (contract 7.4).
type DeadLetterError struct {
	// Topic is the dead-letter topic.
	Topic string
	// Reason is what is wrong with the record, Refusal the broker's error.
	Reason, Refusal error
}

// Error says both and what to do.
func (e *DeadLetterError) Error() string {
	return fmt.Sprintf("dead-letter topic %q refuses the bad record: %v; change the topic's limits, or the policy, and start again; the record is bad because: %v", e.Topic, e.Refusal, e.Reason)
}

// Unwrap returns both.
func (e *DeadLetterError) Unwrap() []error { return []error{e.Refusal, e.Reason} }

// deadLetter is a bad record on its way.
type deadLetter struct {
	record envelope.Record
	reason error
	text   string // of the reason, as it may be published
}

// deadLetters publishes to a consumer's dead-letter topic. It is safe for
// concurrent use.
type deadLetters struct {
	channel    string
	cfg        Config
	network    *network
	publishing *condition.Condition
	log        *zap.Logger
}

// publish writes the letters of one partition in their order and returns how
// many the topic has acknowledged, on all replicas. It goes on trying until
// that is all of them, or one is refused for good (*DeadLetterError), or ctx
// ends, or session has ended and a request fails: whoever has the partition next
// publishes what is left, and a rebalance need not wait for a topic that is
// down. A request whose answer is lost is sent again: a letter may come twice.
func (d *deadLetters) publish(
	ctx, session context.Context, p *partition, letters []deadLetter,
) (acknowledged int, err error) {
	retry := backoff{first: acceptBackoffFirst, most: acceptBackoffMost}
	limit := maxLetterBytes
	for acknowledged < len(letters) {
		next := letters[acknowledged : acknowledged+d.fitting(letters[acknowledged:], limit)]
		err := d.produce(ctx, p, next)
		switch {
		case err == nil:
			for _, l := range next {
				d.tell(l)
			}
			acknowledged += len(next)
			d.publishing.End(p)
			retry.reset()
			continue
		case refusedForGood(err) && len(next) > 1:
			limit = 0 // one of them: find out which
			continue
		case refusedForGood(err):
			d.publishing.End(p) // the halt says it
			return acknowledged, &DeadLetterError{Topic: d.cfg.DeadLetterTopic, Reason: next[0].reason, Refusal: err}
		}
		if ctx.Err() == nil {
			d.publishing.Begin(p, err, zap.String(telemetry.FieldTopic, p.topic), zap.Int(telemetry.FieldPartition, p.id),
				zap.Int64(telemetry.FieldOffset, next[0].record.Offset))
		}
		if !retry.wait(session) { // which ends before ctx does
			d.publishing.Forget(p)
			return acknowledged, session.Err()
		}
	}
	return acknowledged, nil
}

// fitting is how many of the letters fit into one request; one always does.
func (d *deadLetters) fitting(letters []deadLetter, limit int) int {
	size := 0
	for i, l := range letters {
		if size += l.record.Size(); i > 0 && size > limit {
			return i
		}
	}
	return len(letters)
}

// produce sends one request. The letters of a partition go to one partition
// of the dead-letter topic, so that their order stays.
func (d *deadLetters) produce(ctx context.Context, p *partition, letters []deadLetter) error {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.RequestTimeout)
	defer cancel()
	partitions, err := d.partitions(ctx)
	if err != nil {
		return err
	}
	records := make([]kafka.Record, len(letters))
	for i, l := range letters {
		records[i] = d.letter(l)
	}
	response, err := d.network.client.Produce(ctx, &kafka.ProduceRequest{
		Topic: d.cfg.DeadLetterTopic, Partition: p.id % partitions, RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(records...),
	})
	if err == nil {
		err = response.Error
	}
	if err == nil && len(response.RecordErrors) > 0 {
		err = fmt.Errorf("%d of %d records: %w", len(response.RecordErrors), len(records), kafka.InvalidRecord)
	}
	if err != nil {
		return fmt.Errorf("publish %d bad records to dead-letter topic %q: %w", len(letters), d.cfg.DeadLetterTopic, err)
	}
	return nil
}

// partitions counts the partitions of the dead-letter topic. Asking never
// creates it.
func (d *deadLetters) partitions(ctx context.Context) (int, error) {
	response, err := d.network.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{d.cfg.DeadLetterTopic}})
	if err != nil {
		return 0, fmt.Errorf("ask brokers for dead-letter topic %q: %w", d.cfg.DeadLetterTopic, err)
	}
	for _, topic := range response.Topics {
		switch {
		case topic.Name != d.cfg.DeadLetterTopic:
		case errors.Is(topic.Error, kafka.UnknownTopicOrPartition), topic.Error == nil && len(topic.Partitions) == 0:
			return 0, fmt.Errorf("dead-letter topic %q does not exist: create it, it is not made automatically: %w", topic.Name,
				kafka.UnknownTopicOrPartition)
		case topic.Error != nil:
			return 0, fmt.Errorf("ask brokers for dead-letter topic %q: %w", topic.Name, topic.Error)
		default:
			return len(topic.Partitions), nil
		}
	}
	return 0, fmt.Errorf("ask brokers for dead-letter topic %q: the answer is not about it: %w", d.cfg.DeadLetterTopic,
		kafka.Unknown)
}

// letter is the record, byte for byte, with headers that say where it came
// from and why.
func (d *deadLetters) letter(l deadLetter) kafka.Record {
	r := l.record
	out := kafka.Record{Time: r.Timestamp, Key: kafka.NewBytes(r.Key), Value: kafka.NewBytes(r.Value)}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, kafka.Header{Key: h.Key, Value: h.Value})
	}
	if r.RawHeaders != nil {
		out.Headers = append(out.Headers, kafka.Header{Key: HeaderHeaders, Value: r.RawHeaders})
	}
	for _, h := range [][2]string{
		{HeaderTopic, r.Topic}, {HeaderPartition, strconv.Itoa(r.Partition)}, {HeaderOffset, strconv.FormatInt(r.Offset, 10)},
		{HeaderTimestamp, strconv.FormatInt(r.Timestamp.UnixMilli(), 10)},
		{HeaderChannel, d.channel}, {HeaderGroup, d.cfg.GroupID}, {HeaderReason, l.text},
	} {
		out.Headers = append(out.Headers, kafka.Header{Key: h[0], Value: []byte(h[1])})
	}
	return out
}

// tell is called for each letter that is acknowledged.
func (d *deadLetters) tell(l deadLetter) {
	d.log.Error("inbox: bad record published to the dead-letter topic", zap.String(telemetry.FieldTopic, l.record.Topic),
		zap.Int(telemetry.FieldPartition, l.record.Partition),
		zap.Int64(telemetry.FieldOffset, l.record.Offset), zap.String(telemetry.FieldDeadLetterTopic, d.cfg.DeadLetterTopic),
		zap.Error(l.reason))
	if d.cfg.OnDeadLetter == nil {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			d.log.Error("inbox: OnDeadLetter panicked", zap.NamedError(telemetry.FieldPanic, fmt.Errorf("%v", r)))
		}
	}()
	d.cfg.OnDeadLetter(l.record, l.reason)
}

// refusedForGood tells a broker's no that stays no from everything that may pass,
// such as a topic that is missing or not authorized.
func refusedForGood(err error) bool {
	return slices.ContainsFunc([]kafka.Error{
		kafka.MessageSizeTooLarge, kafka.RecordListTooLarge, kafka.InvalidTimestamp, kafka.UnsupportedForMessageFormat,
		kafka.InvalidRecord,
	}, func(known kafka.Error) bool { return errors.Is(err, known) })
}
