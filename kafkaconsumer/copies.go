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
)

const (
	// maxCopyBytes bounds a copy's content and headers, of which one is in memory at a time.
	maxCopyBytes = 16 << 20
	// maxBareKey bounds the key of a copy without content. Compacted topics require a key.
	maxBareKey = 4 << 10
	// copiesListed is how many rows are listed at once, without their contents.
	copiesListed = 100
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
				return c.deadLetters.copyOf(u, key), err
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
			return c.deadLetters.copyOfRejected(u), err
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
	list func(ctx context.Context, after string) ([]store.UnpublishedRef, error)
	load func(ctx context.Context, ref store.UnpublishedRef) (rowCopy, error)
	mark func(ctx context.Context, ref store.UnpublishedRef, at time.Time) error
	// after is the last row that was tried.
	after string
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
	held := lease.New(c.Store, copyLeaseName(c.channel), uuid.NewString(), c.Lease, c.StatementTimeout,
		c.clock.Now)
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
	if one.omitted != "" || permanent(refused) {
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
	record envelope.Record
	added  []kafka.Header
	// omitted is why the record has no content; empty if it has.
	omitted string
}

func omission(omitted bool) string {
	if !omitted {
		return ""
	}
	return fmt.Sprintf("it has more than %d bytes, or its message is gone", maxCopyBytes)
}

// copyOf returns the copy of a poisoned message: its content under the key of its record, with its
// headers. An event has its attributes as headers, in CloudEvents' binary mode, however it came.
func (d *deadLetterPublisher) copyOf(u store.Unpublished, handlerKey string) rowCopy {
	m := u.Message
	p, err := properties.Parse(m.SerializedProperties)
	if err != nil { // it may be why the message is poisoned
		p = handler.Properties{}
	}
	record := envelope.Record{Key: m.OrderingKey, Value: m.Content, Headers: contentHeaders(p, m.ContentType)}
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
	return rowCopy{record: record, added: added, omitted: omission(u.Omitted)}
}

// contentHeaders returns a message's own headers, but with its content type and, of an event, with its attributes. A
// JSON event had its attributes in the JSON, and a replay may have other ones than its original.
func contentHeaders(p handler.Properties, contentType string) []handler.Header {
	const prefix, media = "ce_", "content-type"
	isEvent := p.Attributes["specversion"] != ""
	headers := slices.DeleteFunc(slices.Clone(p.Headers), func(h handler.Header) bool {
		return strings.EqualFold(h.Key, media) || isEvent && strings.HasPrefix(h.Key, prefix)
	})
	if contentType != "" {
		headers = append(headers, handler.Header{Key: media, Value: []byte(contentType)})
	}
	if !isEvent {
		return headers
	}
	for _, name := range slices.Sorted(maps.Keys(p.Attributes)) {
		if name != "datacontenttype" {
			headers = append(headers, handler.Header{Key: prefix + name, Value: []byte(p.Attributes[name])})
		}
	}
	return headers
}

// copyOfRejected returns the copy of a rejected message, which is its record.
func (d *deadLetterPublisher) copyOfRejected(u store.UnpublishedRejected) rowCopy {
	m := u.RejectedMessage
	record := envelope.Record{Topic: m.Topic, Partition: int(m.Partition), Offset: m.Offset, Timestamp: m.Timestamp,
		Key: m.Key, Value: m.Value}
	if raw, ok, err := properties.RawHeaders(m.Headers); ok && err == nil {
		record.RawHeaders = raw
	} else if headers, err := properties.ParseHeaders(m.Headers); err == nil {
		record.Headers = headers
	}
	omitted := omission(u.Omitted)
	if cut := properties.Cut(m.Headers); cut != nil {
		omitted = cut.Error()
	}
	return rowCopy{record: record, added: d.origin(record, m.Reason), omitted: omitted}
}
