package kafkaconsumer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/kafkaclient"
	"github.com/gorm-inbox/inbox/internal/lease"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/sealing"
	"github.com/gorm-inbox/inbox/internal/store"
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
	// headerSealed is the ID of the key with which a copy's content is sealed, because it can never be opened (contract
	// 15). Other copies have the plain content.
	headerSealed = "inbox-sealed"
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
type deadLetterPublisher struct{ *shared }

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
		case kafkaclient.Permanent(err) && len(next) > 1:
			limit = 0 // send them one by one to find the refused one
			continue
		case kafkaclient.Permanent(err):
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
	partitions, err := d.network.Partitions(ctx, d.cfg.DeadLetterTopic)
	if err == nil {
		partition = (partition%partitions + partitions) % partitions
		err = d.network.Produce(ctx, d.cfg.DeadLetterTopic, partition, records...)
	}
	if err != nil {
		return fmt.Errorf("dead-letter %w", err)
	}
	return nil
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
	if d.cfg.OnDeadLetter != nil {
		d.callback("OnDeadLetter", func() { d.cfg.OnDeadLetter(l.record, l.reason) })
	}
}

const (
	maxCopyBytes = 16 << 20 // bounds a copy's content and headers, of which one is in memory at a time
	// maxBareKey bounds the key of a copy without content. Compacted topics require a key.
	maxBareKey   = 4 << 10
	copiesListed = 100 // how many rows are listed at once, without their contents
	// copyFailures is how many failures end a round. The next round continues after them, so that rows that
	// keep failing do not hold up the others.
	copyFailures = 3
)

// Copies says of which rows a channel publishes copies (Config.PublishPoisoned).
type Copies struct {
	// Store is the part of the inbox's store that publishing needs.
	Store interface {
		lease.Store
		store.Publisher
	}
	// Sealer opens contents that are sealed.
	Sealer sealing.Sealer
	// HandlerKeys are all keys of the channel's handlers.
	HandlerKeys []string
	// StatementTimeout bounds each database call.
	StatementTimeout time.Duration
	// Lease is how long other processes wait after a crash. It is renewed before a copy once a quarter
	// of it is over. If a copy takes longer than the rest, another process may publish it, too.
	Lease time.Duration
}

// PublishCopies makes the consumer publish copies of the messages that the inbox gave up, from its Start on, if its
// config has PublishPoisoned. Call it before Start.
func (c *Consumer) PublishCopies(of Copies) {
	if !c.cfg.PublishPoisoned {
		return
	}
	c.copier = &copier{
		shared: c.shared, Copies: of,
		failing: condition.New(c.log.With(zap.String(telemetry.FieldDeadLetterTopic, c.cfg.DeadLetterTopic)), c.clock,
			zap.WarnLevel, "publishing copies", "poisoned and rejected messages are not in the dead-letter topic yet"),
	}
	for _, key := range of.HandlerKeys {
		c.copier.sources = append(c.copier.sources, &copySource{
			list: func(ctx context.Context, after string) ([]store.UnpublishedRef, error) {
				return of.Store.Unpublished(ctx, key, after, copiesListed)
			},
			load: func(ctx context.Context, ref store.UnpublishedRef) (rowCopy, error) {
				u, err := of.Store.LoadUnpublished(ctx, ref.ID, maxCopyBytes)
				if err != nil {
					return rowCopy{}, err
				}
				return c.deadLetters.copyOf(ctx, of.Sealer, u, key)
			},
			mark: of.Store.MarkPublished,
		})
	}
	c.copier.sources = append(c.copier.sources, &copySource{
		list: func(ctx context.Context, after string) ([]store.UnpublishedRef, error) {
			return of.Store.UnpublishedRejected(ctx, c.channel, after, copiesListed)
		},
		load: func(ctx context.Context, ref store.UnpublishedRef) (rowCopy, error) {
			u, err := of.Store.LoadUnpublishedRejected(ctx, ref.ID, maxCopyBytes)
			if err != nil {
				return rowCopy{}, err
			}
			return c.deadLetters.copyOfRejected(ctx, of.Sealer, u)
		},
		mark: of.Store.MarkRejectedPublished,
	})
}

// copier publishes copies of a channel's poisoned and rejected messages to its dead-letter topic. One
// process at a time does, by a lease, and only while there is something to publish. A copy is marked
// after all replicas have acknowledged it, so a crash in between publishes it twice.
type copier struct {
	*shared
	Copies
	sources []*copySource
	failing *condition.Condition
}

// copySource lists rows that are not published in the order of their IDs, loads one and marks it.
type copySource struct {
	list  func(ctx context.Context, after string) ([]store.UnpublishedRef, error)
	load  func(ctx context.Context, ref store.UnpublishedRef) (rowCopy, error)
	mark  func(ctx context.Context, ref store.UnpublishedRef, at time.Time) error
	after string // the last row that was tried
}

// run publishes until ctx ends, and finishes the copy that is under way unless hard ends, too.
func (c *copier) run(ctx, hard context.Context) {
	defer c.failing.Clear()
	defer c.failing.Forget(nil)
	for {
		err := routine.Protect("publishing copies", func() error { return c.round(ctx, hard) })
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errElsewhere): // that process knows whether publishing works
		case err != nil:
			c.failing.Begin(nil, err)
		default:
			c.failing.End(nil)
		}
		if !routine.Sleep(ctx, c.cfg.WatchInterval) {
			return
		}
	}
}

// round publishes the unpublished rows, and stops after some failures. Most rounds find nothing.
func (c *copier) round(ctx, hard context.Context) error {
	found := false
	for _, source := range c.sources {
		pending, err := c.pending(ctx, source)
		if err != nil {
			return err
		}
		found = found || pending
	}
	if !found {
		return nil
	}
	held := lease.New(c.Store, copyLeaseName(c.channel), uuid.NewString(), c.Lease, c.StatementTimeout, c.clock.Now)
	// The lease is given up after each round: another process may reach brokers that this one does not.
	defer c.release(hard, held)
	var problems []error
	for _, source := range c.sources {
		problems = append(problems, c.drain(ctx, hard, held, source, copyFailures-len(problems))...)
	}
	if len(problems) > 0 { // another source is the first of the next round
		c.sources = append(slices.Clone(c.sources[1:]), c.sources[0])
	}
	return errors.Join(problems...)
}

// pending reports whether a source has rows left. After its last row it begins at the first one again.
func (c *copier) pending(ctx context.Context, source *copySource) (bool, error) {
	refs, err := c.list(ctx, source)
	if err == nil && len(refs) == 0 && source.after != "" {
		source.after = ""
		refs, err = c.list(ctx, source)
	}
	return len(refs) > 0, err
}

var errElsewhere = errors.New("another process publishes the channel's copies")

// drain publishes the rows of a source from where the last round ended, until failures are too many.
func (c *copier) drain(ctx, hard context.Context, held *lease.Lease, source *copySource, limit int) (problems []error) {
	var renew time.Time
	for len(problems) < limit && ctx.Err() == nil {
		refs, err := c.list(ctx, source)
		if err != nil {
			return append(problems, err)
		}
		if len(refs) == 0 {
			source.after = ""
			return problems
		}
		for _, ref := range refs {
			if !time.Now().Before(renew) {
				ours, err := held.Acquire(hard)
				if err != nil {
					return append(problems, err)
				}
				if !ours {
					return append(problems, errElsewhere)
				}
				renew = time.Now().Add(c.Lease / 4)
			}
			source.after = ref.ID
			if err := c.publish(hard, source, ref); err != nil {
				problems = append(problems, err)
			}
			if len(problems) == limit || ctx.Err() != nil {
				return problems
			}
		}
	}
	return problems
}

func (c *copier) release(ctx context.Context, held *lease.Lease) {
	ctx, cancel := context.WithTimeout(ctx, min(c.StatementTimeout, time.Second))
	defer cancel()
	if err := held.Release(ctx); err != nil {
		c.log.Warn("inbox: releasing the lease of publishing copies failed, it expires by itself", zap.Error(err))
	}
}

func (c *copier) list(ctx context.Context, source *copySource) ([]store.UnpublishedRef, error) {
	ctx, cancel := context.WithTimeout(ctx, c.StatementTimeout)
	defer cancel()
	return source.list(ctx, source.after)
}

// copyLeaseName is readable unless the channel's name leaves no room.
func copyLeaseName(channel string) string {
	if name := "copies:" + channel; utf8.RuneCountInString(name) <= columns.MaxLock {
		return name
	}
	return fmt.Sprintf("copies:%x", sha256.Sum256([]byte(channel)))
}

// publish publishes a copy and marks its row. If the topic never takes the copy, for example because it is
// too large, the topic gets one without content and own headers instead: the database has them.
func (c *copier) publish(ctx context.Context, source *copySource, ref store.UnpublishedRef) error {
	one, err := c.load(ctx, source, ref)
	switch {
	case errors.Is(err, store.ErrGone): // retried, discarded or deleted since it was listed
		return nil
	case err != nil:
		return err
	}
	now := c.clock.Now()
	refused := errors.New(one.omitted)
	if one.omitted == "" {
		refused = c.deadLetters.send(ctx, one.record.Partition, encode(one.record, one.added, now))
		err = refused
	}
	if one.omitted != "" || kafkaclient.Permanent(refused) {
		bare := envelope.Record{Key: one.record.Key}
		if len(bare.Key) > maxBareKey {
			bare.Key = nil
		}
		err = c.deadLetters.send(ctx, one.record.Partition,
			encode(bare, append(one.added, header(headerOmitted, refused.Error())), now))
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.StatementTimeout)
	defer cancel()
	return source.mark(ctx, ref, now)
}

func (c *copier) load(ctx context.Context, source *copySource, ref store.UnpublishedRef) (rowCopy, error) {
	ctx, cancel := context.WithTimeout(ctx, c.StatementTimeout)
	defer cancel()
	return source.load(ctx, ref)
}

// rowCopy is a poisoned or rejected message as it is published.
type rowCopy struct {
	record  envelope.Record
	added   []kafka.Header
	omitted string // why the record has no content; empty if it has
}

func omission(omitted bool) string {
	if !omitted {
		return ""
	}
	return fmt.Sprintf("it has more than %d bytes, or its message is gone", maxCopyBytes)
}

// copyOf returns the copy of a poisoned message: its content under the key of its record, with its
// headers. An event has its attributes as headers, in CloudEvents' binary mode, however it came.
func (d *deadLetterPublisher) copyOf(
	ctx context.Context, sealer sealing.Sealer, u store.Unpublished, handlerKey string,
) (rowCopy, error) {
	m := u.Message
	p, seal, err := properties.ParseSealed(m.SerializedProperties)
	if err != nil { // it may be why the message is poisoned
		p, seal = handler.Properties{}, properties.Seal{}
	}
	content, sealed, err := openCopy(ctx, sealer, sealing.IdentityOf(&m, p.Channel), seal, m.Content)
	if err != nil {
		return rowCopy{}, fmt.Errorf("copy of message %q: %w", m.ID, err)
	}
	m.Content = content
	record := envelope.Record{Key: m.OrderingKey, Value: m.Content,
		Headers: kafkaclient.ContentHeaders(p.Headers, p.Attributes, m.ContentType)}
	if k := p.Kafka; k != nil {
		record.Topic, record.Partition, record.Offset, record.Timestamp = k.Topic, k.Partition, k.Offset, k.Timestamp
		if p.Attributes[properties.ReplayOf] == "" { // the copy of a replay has the key that it was given
			record.Key = k.Key
		}
		if k.Tombstone && len(m.Content) == 0 {
			record.Value = nil
		}
	}
	added := append(d.origin(record, u.LastError),
		header(headerHandler, handlerKey), header(headerAttempts, strconv.Itoa(u.ErrorCount+u.AbandonedCount)),
		header(headerMessageID, m.ID), header(headerMessageType, m.Type))
	return rowCopy{record: record, added: append(added, sealed...), omitted: omission(u.Omitted)}, nil
}

// openCopy opens what a copy is made of. If that is impossible for good, the copy has the sealed bytes and a header
// that names their key.
func openCopy(ctx context.Context, sealer sealing.Sealer, of handler.Identity, seal properties.Seal, stored []byte) (
	content []byte, added []kafka.Header, err error,
) {
	content, err = sealer.Open(ctx, of, seal, stored)
	if errors.As(err, new(*handler.PoisonError)) {
		return stored, []kafka.Header{header(headerSealed, seal.Key)}, nil
	}
	return content, nil, err
}

// copyOfRejected returns the copy of a rejected message, which is its record.
func (d *deadLetterPublisher) copyOfRejected(
	ctx context.Context, sealer sealing.Sealer, u store.UnpublishedRejected,
) (rowCopy, error) {
	m := u.RejectedMessage
	_, seal := properties.SealOfRejected(m.Headers)
	value, sealed, err := openCopy(ctx, sealer, handler.Identity{Channel: m.Channel, ID: m.ID}, seal, m.Value)
	if err != nil {
		return rowCopy{}, fmt.Errorf("copy of rejected message %q: %w", m.ID, err)
	}
	record := envelope.Record{Topic: m.Topic, Partition: int(m.Partition), Offset: m.Offset, Timestamp: m.Timestamp,
		Key: m.Key, Value: value}
	if raw, ok, err := properties.RawHeaders(m.Headers); ok && err == nil {
		record.RawHeaders = raw
	} else if headers, err := properties.ParseHeaders(m.Headers); err == nil {
		record.Headers = headers
	}
	omitted := omission(u.Omitted)
	if cut := properties.Cut(m.Headers); cut != nil {
		omitted = cut.Error()
	}
	return rowCopy{record: record, added: append(d.origin(record, m.Reason), sealed...), omitted: omitted}, nil
}
