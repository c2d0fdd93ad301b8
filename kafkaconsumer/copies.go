package kafkaconsumer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/lease"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

const (
	// copiesAtOnce bounds how many contents are in memory.
	copiesAtOnce = 10
	// copyLease is how long another process waits for one that died while it published. It is longer
	// than the publishing of copiesAtOnce messages may take.
	copyLease = 2 * time.Minute
)

// Copies says what a channel publishes copies of (Config.PublishPoisoned).
type Copies struct {
	// Store is the part of the inbox's store that publishing needs.
	Store interface {
		lease.Store
		store.Publisher
	}
	// HandlerKeys are all keys of the channel's handlers.
	HandlerKeys []string
	// StatementTimeout bounds each database call.
	StatementTimeout time.Duration
}

// PublishCopies makes the consumer publish copies of what the inbox gave up from its Start on, if its
// config has PublishPoisoned. Call it before Start.
func (c *Consumer) PublishCopies(of Copies) {
	if !c.cfg.PublishPoisoned {
		return
	}
	c.copier = &copier{
		Copies: of, letters: c.deadLetters, log: c.log, now: c.clock.Now,
		failing: condition.New(c.log.With(zap.String(telemetry.FieldDeadLetterTopic, c.cfg.DeadLetterTopic)), c.clock,
			zap.WarnLevel, "publishing copies", "poisoned and rejected messages are not in the dead-letter topic yet"),
	}
}

// copier publishes copies of a channel's poisoned and rejected messages to its dead-letter topic. One
// process at a time does, by a lease, and only while there is something to publish. A copy is marked
// after all replicas have acknowledged it, so a crash in between publishes it twice.
type copier struct {
	Copies
	letters *deadLetterPublisher
	failing *condition.Condition
	log     *zap.Logger
	now     func() time.Time
}

func (c *copier) run(ctx context.Context) {
	defer c.failing.Clear()
	owner := lease.New(c.Store, copyLeaseName(c.letters.channel), uuid.NewString(), copyLease, c.StatementTimeout, c.now)
	defer func() {
		if err := owner.Release(context.WithoutCancel(ctx)); err != nil {
			c.log.Warn("inbox: releasing the lease of publishing copies failed, it expires by itself", zap.Error(err))
		}
	}()
	for ctx.Err() == nil {
		more := false
		err := routine.Protect("publishing copies", func() (err error) {
			more, err = c.round(ctx, owner)
			return err
		})
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.failing.Begin(nil, err)
		default:
			c.failing.End(nil)
		}
		if (!more || err != nil) && !routine.Sleep(ctx, c.letters.cfg.WatchInterval) {
			return
		}
	}
}

// copyLeaseName is readable unless the channel's name leaves no room.
func copyLeaseName(channel string) string {
	if name := "copies:" + channel; utf8.RuneCountInString(name) <= columns.MaxLock {
		return name
	}
	return fmt.Sprintf("copies:%x", sha256.Sum256([]byte(channel)))
}

// round publishes some copies, and reports whether there may be more. It tries each, whatever became of
// the others.
func (c *copier) round(ctx context.Context, owner *lease.Lease) (more bool, err error) {
	copies, _, err := c.find(ctx)
	if err != nil || len(copies) == 0 {
		return false, err
	}
	if held, err := owner.Acquire(ctx); err != nil || !held {
		return false, err
	}
	// Another process may have published them between find and Acquire.
	if copies, more, err = c.find(ctx); err != nil {
		return false, err
	}
	var problems []error
	for _, one := range copies {
		if err := c.publish(ctx, one); err != nil {
			problems = append(problems, err)
		}
	}
	return more, errors.Join(problems...)
}

// parked is a copy to publish, and how to remember that it was published.
type parked struct {
	record    kafka.Record
	added     []kafka.Header // those of the record's headers that it did not come with
	partition int
	mark      func(ctx context.Context) error
}

// find returns what to publish next, and whether that may not be all.
func (c *copier) find(ctx context.Context) (found []parked, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.StatementTimeout)
	defer cancel()
	for _, key := range c.HandlerKeys {
		if len(found) >= copiesAtOnce {
			return found, true, nil
		}
		poisoned, err := c.Store.Unpublished(ctx, key, copiesAtOnce-len(found))
		if err != nil {
			return nil, false, err
		}
		for _, u := range poisoned {
			one := c.letters.copyOf(u, key)
			one.mark = func(ctx context.Context) error {
				return c.Store.MarkPublished(ctx, u.StatusID, u.Version, c.now())
			}
			found = append(found, one)
		}
	}
	if len(found) >= copiesAtOnce {
		return found, true, nil
	}
	rejected, err := c.Store.UnpublishedRejected(ctx, c.letters.channel, copiesAtOnce-len(found))
	if err != nil {
		return nil, false, err
	}
	for _, r := range rejected {
		one := c.letters.copyOfRejected(r)
		one.mark = func(ctx context.Context) error { return c.Store.MarkRejectedPublished(ctx, r.ID, c.now()) }
		found = append(found, one)
	}
	return found, len(found) >= copiesAtOnce, nil
}

// publish publishes a copy. If the topic never takes it, for example because it is too large, the topic
// gets a copy without content and own headers instead: the database has them.
func (c *copier) publish(ctx context.Context, one parked) error {
	err := c.letters.send(ctx, one.partition, one.record)
	if refusedForGood(err) {
		bare := kafka.Record{Time: c.now(), Headers: append(one.added, kafka.Header{Key: HeaderOmitted,
			Value: []byte(err.Error())})}
		err = c.letters.send(ctx, one.partition, bare)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.StatementTimeout)
	defer cancel()
	return one.mark(ctx)
}

// copyOf returns the copy of a poisoned message: its content under the key of its record, with its
// headers. An event that did not come with its attributes as headers gets those, in CloudEvents' binary
// mode.
func (d *deadLetterPublisher) copyOf(u store.Unpublished, handlerKey string) parked {
	m := u.Message
	p, err := properties.Parse(m.SerializedProperties)
	if err != nil { // it may be why the message is poisoned
		p = handler.Properties{}
	}
	record := envelope.Record{Key: m.OrderingKey, Value: m.Content, Timestamp: m.ReceivedAt, Headers: p.Headers}
	if k := p.Kafka; k != nil {
		record.Topic, record.Partition, record.Offset, record.Timestamp = k.Topic, k.Partition, k.Offset, k.Timestamp
		record.Key = k.Key
		if k.Tombstone {
			record.Value = nil
		}
	}
	record.Headers = binaryHeaders(record.Headers, p.Attributes, m.ContentType)
	added := append(d.origin(record, u.LastError),
		header(HeaderHandler, handlerKey), header(HeaderAttempts, strconv.Itoa(u.ErrorCount+u.AbandonedCount)),
		header(HeaderMessageID, m.ID), header(HeaderMessageType, m.Type))
	return parked{record: encode(record, added), added: added, partition: record.Partition}
}

// binaryHeaders returns a message's own headers. An event that came in JSON has its attributes there; as
// its content is the event's data alone, they become headers.
func binaryHeaders(own []handler.Header, attributes map[string]string, contentType string) []handler.Header {
	const prefix, version, media = "ce_", "specversion", "content-type"
	inHeaders := slices.ContainsFunc(own, func(h handler.Header) bool { return h.Key == prefix+version })
	if attributes[version] == "" || inHeaders {
		return own
	}
	headers := slices.DeleteFunc(slices.Clone(own), func(h handler.Header) bool { return strings.EqualFold(h.Key, media) })
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if name != "datacontenttype" {
			headers = append(headers, handler.Header{Key: prefix + name, Value: []byte(attributes[name])})
		}
	}
	if contentType != "" {
		headers = append(headers, handler.Header{Key: media, Value: []byte(contentType)})
	}
	return headers
}

// copyOfRejected returns the copy of a rejected message, which is its record.
func (d *deadLetterPublisher) copyOfRejected(m models.RejectedMessage) parked {
	record := envelope.Record{Topic: m.Topic, Partition: int(m.Partition), Offset: m.Offset, Timestamp: m.Timestamp,
		Key: m.Key, Value: m.Value}
	if raw, ok, err := properties.RawHeaders(m.Headers); ok && err == nil {
		record.RawHeaders = raw
	} else if headers, err := properties.ParseHeaders(m.Headers); err == nil {
		record.Headers = headers
	}
	added := d.origin(record, m.Reason)
	return parked{record: encode(record, added), added: added, partition: record.Partition}
}
