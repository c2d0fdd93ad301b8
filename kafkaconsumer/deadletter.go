package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// The headers that are appended to the record's headers in a dead letter. The record's headers stay unchanged, so of
// several headers with one name, the last is this consumer's.
const (
	// HeaderTopic, HeaderPartition and HeaderOffset are the coordinates of the record.
	HeaderTopic     = "inbox-topic"
	HeaderPartition = "inbox-partition"
	HeaderOffset    = "inbox-offset"
	// HeaderTimestamp is the record's timestamp in milliseconds since 1970. The dead letter has the same timestamp, unless
	// its topic uses log append time or the timestamp is exactly 0. A copy has the time at which it is published.
	HeaderTimestamp = "inbox-timestamp"
	// HeaderChannel and HeaderGroup name the consumer that read the record. HeaderReason is what is
	// wrong with it (at most 2,000 characters, redacted: contract 11.6).
	HeaderChannel = "inbox-channel"
	HeaderGroup   = "inbox-group"
	HeaderReason  = "inbox-reason"
	// HeaderHeaders holds all of the record's headers, encoded as in Kafka's record format. It is present only if they
	// were too many to be read (MaxHeaders).
	HeaderHeaders = "inbox-headers"
	// headerHandler is the key of the handler that a message is poisoned for, headerAttempts how many
	// attempts it had, and headerMessageID and headerMessageType are the message's. Only the copies of
	// poisoned messages have them (Config.PublishPoisoned).
	headerHandler     = "inbox-handler"
	headerAttempts    = "inbox-attempts"
	headerMessageID   = "inbox-message-id"
	headerMessageType = "inbox-message-type"
	// headerOmitted is why a copy has neither content nor the message's headers: it is larger than 16 MiB, or the topic
	// never takes it. The database has them.
	headerOmitted = "inbox-omitted"
)

// maxDeadLetterBytes bounds a request with several dead letters: brokers allow 1 MiB unless configured
// otherwise. A larger record is sent alone.
const maxDeadLetterBytes = 512 << 10

// DeadLetterError is why a partition halts when the dead-letter topic refuses a bad record
// permanently, for example because it is too large (contract 7.4).
type DeadLetterError struct {
	// Topic is the dead-letter topic.
	Topic string
	// Reason is what is wrong with the record, Refusal the broker's error.
	Reason, Refusal error
}

// Error names both errors and what to do.
func (e *DeadLetterError) Error() string {
	return fmt.Sprintf("dead-letter topic %q refuses the bad record: %v; change the topic's limits and resume the partition, or skip the record; the record is bad because: %v", e.Topic, e.Refusal, e.Reason)
}

// Unwrap returns Refusal and Reason.
func (e *DeadLetterError) Unwrap() []error { return []error{e.Refusal, e.Reason} }

// deadLetter is a bad record that is to be published.
type deadLetter struct {
	record envelope.Record
	reason error
	text   string // of the reason, redacted as it may be published
}

// deadLetterPublisher publishes to a consumer's dead-letter topic. It is safe for concurrent use.
type deadLetterPublisher struct {
	*shared
}

// publish writes the bad records of one partition in order and returns how many of them all replicas of
// the topic have acknowledged. It retries until one of these is true:
//
//   - All of them are acknowledged.
//   - The topic refuses one permanently (*DeadLetterError).
//   - ctx ends.
//   - session has ended and a request fails. The next owner of the partition publishes the rest,
//     so that a rebalance need not wait for a topic that is down.
//
// A request whose response is lost is sent again, so a record may be published twice.
func (d *deadLetterPublisher) publish(
	ctx, session context.Context, p *partition, bad []deadLetter,
) (acknowledged int, err error) {
	retry := routine.Backoff{First: acceptBackoffFirst, Max: maxAcceptBackoff}
	limit := maxDeadLetterBytes
	for acknowledged < len(bad) {
		next := bad[acknowledged : acknowledged+d.fitting(bad[acknowledged:], limit)]
		err := d.produce(ctx, p, next)
		switch {
		case err == nil:
			for _, l := range next {
				d.report(l)
			}
			acknowledged += len(next)
			d.publishing.End(p)
			retry.Reset()
			continue
		case permanent(err) && len(next) > 1:
			limit = 0 // send them one by one to find the refused one
			continue
		case permanent(err):
			d.publishing.End(p) // the halt reports the error
			return acknowledged, &DeadLetterError{Topic: d.cfg.DeadLetterTopic, Reason: next[0].reason, Refusal: err}
		}
		if ctx.Err() == nil {
			d.publishing.Begin(p, err, zap.String(telemetry.FieldTopic, p.topic), zap.Int(telemetry.FieldPartition, p.id),
				zap.Int64(telemetry.FieldOffset, next[0].record.Offset))
		}
		if !retry.Wait(session) { // session ends before ctx does
			d.publishing.Forget(p)
			return acknowledged, session.Err()
		}
	}
	return acknowledged, nil
}

// fitting returns how many of the records fit into one request, at least one.
func (d *deadLetterPublisher) fitting(bad []deadLetter, limit int) int {
	size := 0
	for i, l := range bad {
		if size += l.record.Size(); i > 0 && size > limit {
			return i
		}
	}
	return len(bad)
}

// produce sends one request. All bad records of a partition go to one partition of the dead-letter
// topic, which keeps their order.
func (d *deadLetterPublisher) produce(ctx context.Context, p *partition, bad []deadLetter) error {
	records := make([]kafka.Record, len(bad))
	for i, l := range bad {
		records[i] = encode(l.record, d.origin(l.record, l.text), l.record.Timestamp)
	}
	return d.send(ctx, p.id, records...)
}

// send sends records in one request, to the partition of the topic that stands for a partition of the
// channel's topics. It returns when all replicas have acknowledged them.
func (d *deadLetterPublisher) send(ctx context.Context, partition int, records ...kafka.Record) error {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.RequestTimeout)
	defer cancel()
	partitions, err := d.partitions(ctx)
	if err != nil {
		return err
	}
	response, err := d.network.client.Produce(ctx, &kafka.ProduceRequest{
		Topic: d.cfg.DeadLetterTopic, Partition: (partition%partitions + partitions) % partitions,
		RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...),
	})
	if err == nil {
		err = response.Error
	}
	if err == nil && len(response.RecordErrors) > 0 {
		err = fmt.Errorf("%d of %d records: %w", len(response.RecordErrors), len(records), kafka.InvalidRecord)
	}
	if err != nil {
		return fmt.Errorf("publish %d records to dead-letter topic %q: %w", len(records), d.cfg.DeadLetterTopic, err)
	}
	return nil
}

// partitions returns the number of partitions of the dead-letter topic. The request never creates it.
func (d *deadLetterPublisher) partitions(ctx context.Context) (int, error) {
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

// encode returns the record byte for byte, with additional headers and a timestamp.
func encode(r envelope.Record, added []kafka.Header, at time.Time) kafka.Record {
	out := kafka.Record{Time: at, Key: kafka.NewBytes(r.Key), Value: kafka.NewBytes(r.Value)}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, kafka.Header{Key: h.Key, Value: h.Value})
	}
	if r.RawHeaders != nil {
		out.Headers = append(out.Headers, kafka.Header{Key: HeaderHeaders, Value: r.RawHeaders})
	}
	out.Headers = append(out.Headers, added...)
	return out
}

// origin returns the headers that say where a record came from and what is wrong with it. A message that
// did not come from Kafka has no coordinates.
func (d *deadLetterPublisher) origin(r envelope.Record, reason string) (headers []kafka.Header) {
	if r.Topic != "" {
		headers = append(headers, header(HeaderTopic, r.Topic), header(HeaderPartition, strconv.Itoa(r.Partition)),
			header(HeaderOffset, strconv.FormatInt(r.Offset, 10)),
			header(HeaderTimestamp, strconv.FormatInt(r.Timestamp.UnixMilli(), 10)))
	}
	return append(headers, header(HeaderChannel, d.channel), header(HeaderGroup, d.cfg.GroupID),
		header(HeaderReason, reason))
}

func header(name, value string) kafka.Header { return kafka.Header{Key: name, Value: []byte(value)} }

// report logs an acknowledged record and calls OnDeadLetter.
func (d *deadLetterPublisher) report(l deadLetter) {
	d.log.Error("inbox: bad record published to the dead-letter topic", zap.String(telemetry.FieldTopic, l.record.Topic),
		zap.Int(telemetry.FieldPartition, l.record.Partition),
		zap.Int64(telemetry.FieldOffset, l.record.Offset), zap.String(telemetry.FieldDeadLetterTopic, d.cfg.DeadLetterTopic),
		zap.Error(l.reason))
	if d.cfg.OnDeadLetter == nil {
		return
	}
	err := routine.Protect("OnDeadLetter", func() error { d.cfg.OnDeadLetter(l.record, l.reason); return nil })
	if err != nil {
		d.log.Error("inbox: OnDeadLetter failed", zap.Error(err))
	}
}

// permanent reports whether a broker's refusal is permanent. Errors that may pass, such as a
// missing topic or a missing authorization, are not.
func permanent(err error) bool {
	return slices.ContainsFunc([]kafka.Error{
		kafka.MessageSizeTooLarge, kafka.RecordListTooLarge, kafka.InvalidTimestamp, kafka.UnsupportedForMessageFormat,
		kafka.InvalidRecord,
	}, func(known kafka.Error) bool { return errors.Is(err, known) })
}
