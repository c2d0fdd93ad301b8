package inbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/engine"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/kafkapublisher"
	"github.com/gorm-inbox/inbox/outgoing"
)

// OutgoingOption declares one thing about an outgoing channel.
type OutgoingOption func(*outgoingChannel)

// outgoingChannel is what an outgoing channel declares: its destination, its types and the options of its handler.
type outgoingChannel struct {
	kafka   []kafkapublisher.Config
	publish []outgoing.Publish // more than one destination is an error
	events  []*event
	options []handler.Option
}

// event is a declared type of outgoing messages.
type event struct {
	channel     string
	messageType string
	payload     reflect.Type
	err         error
	// encode returns the body, its media type and the ordering key of a payload.
	encode func(payload any) (content []byte, contentType string, key []byte, err error)
}

// Outgoing declares a channel of messages that leave: an outbox. Publish and PublishTx store them, in the caller's
// transaction with PublishTx. Once that is committed they are published to the channel's destination, ToKafka or To:
// at least once, under an ID that stays the same, and in the order in which they were stored for messages of one key.
// Whatever fails comes again, without limit. A message that the destination refuses for good is poisoned, and its key
// waits for an operator (contract 14).
//
// Any number of processes share the work. Each message has one status, of the handler key "publish:" and the channel's
// name, so whatever operators do with handlers' statuses they do with what leaves.
func Outgoing(name string, opts ...OutgoingOption) Option {
	return func(cfg *config) {
		out := &outgoingChannel{}
		applyAll(opts, out)
		for _, e := range out.events {
			e.channel = name
		}
		key := publishKey(name)
		c := &channel{name: name, values: cfg.values, injecting: cfg.injecting, outgoing: out}
		c.subscribe(registry.AnyType, []*HandlerSpec{{key: key, handler: out.handler(key, nil)}})
		cfg.channels = append(cfg.channels, c)
	}
}

// ToKafka publishes the channel's messages to a topic. Fields of cfg that are zero get their defaults. A broker that is
// down, or a missing topic, fails no start: the messages wait, which Health shows.
func ToKafka(cfg kafkapublisher.Config) OutgoingOption {
	return func(c *outgoingChannel) { c.kafka = append(c.kafka, cfg) }
}

// To publishes the channel's messages by a function, to any destination. It is also how a test sees what leaves. After
// the first failure of a key, publish must not send the later messages of that key: outgoing.Each makes such a function
// of one that sends one message.
func To(publish outgoing.Publish) OutgoingOption {
	return func(c *outgoingChannel) { c.publish = append(c.publish, publish) }
}

// Publishes declares that payloads of type T leave as messages of a type. No other channel of the inbox may publish T.
// key returns the ordering key of a payload, which is the key of its Kafka record, too. A message with an empty key has
// no order, nor has any without key. encoder encodes payloads; by default they are JSON, and []byte is sent as it is. A
// codec of package handler that implements handler.Encoder serves both sides.
func Publishes[T any](messageType string, key func(payload T) string, encoder ...handler.Encoder[T]) OutgoingOption {
	e := &event{messageType: messageType, payload: reflect.TypeFor[T]()}
	encode := handler.DefaultEncoder[T]()
	if len(encoder) > 0 {
		encode = encoder[0]
	}
	if len(encoder) > 1 || encode == nil {
		e.err = fmt.Errorf("type %q: inbox.Publishes has %d encoders, or a nil one: give one or none", messageType,
			len(encoder))
	}
	e.encode = func(payload any) ([]byte, string, []byte, error) {
		value := payload.(T)
		content, contentType, err := encode.Encode(value)
		if key == nil || err != nil {
			return content, contentType, nil, err
		}
		return content, contentType, []byte(key(value)), nil
	}
	return func(c *outgoingChannel) {
		own := *e
		c.events = append(c.events, &own)
	}
}

// PublishWith sets options of the handler that publishes the channel's messages, such as handler.Retention,
// handler.Concurrency and handler.SkipPoisoned. By default up to 16 calls run at once, within the inbox's Concurrency.
// Attempts are not limited and are repeated after at most 15 seconds, and a circuit breaker pauses the channel for 5
// seconds after 3 failed calls in a row.
func PublishWith(opts ...handler.Option) OutgoingOption {
	return func(c *outgoingChannel) { c.options = append(c.options, opts...) }
}

// Event is a message for Publish and PublishTx with what its declaration does not say.
type Event struct {
	// Payload is a value of a type that Publishes declares.
	Payload any
	// ID is the message ID, unique in the channel: a message whose ID is known is not published again. Default a UUID.
	ID string
	// Key replaces the declared ordering key if it is not nil. An empty one is no order.
	Key []byte
	// Source is the CloudEvents source. Default the destination's.
	Source string
	// OccurredAt is the time of the event. Default the time at which it is stored.
	OccurredAt time.Time
	// NotBefore is a time before which the message does not leave. Default at once. Later messages of its key wait for
	// it: give a message that may be late a key of its own, or an empty one.
	NotBefore time.Time
	// Headers and Attributes are the record's headers and the CloudEvent's attributes.
	Headers    []handler.Header
	Attributes map[string]string
}

// Publish stores events that are to leave, in a transaction of its own. Each is an Event, or a payload of a type that
// Publishes declares. Do not use it beside writes that must be committed with the events: use PublishTx.
func (ib *Inbox) Publish(ctx context.Context, events ...any) ([]acceptor.Result, error) {
	messages, err := ib.outgoing(events)
	if err != nil {
		return nil, ib.name(err)
	}
	return ib.Accept(ctx, messages...)
}

// PublishTx stores events that are to leave, in the caller's transaction: if it is rolled back, nothing leaves. After
// an error the caller must roll back. In a transactional handler's transaction nothing more is to be done. Otherwise
// call Wake on the receipt after the commit, so that they leave at once and not at the next poll. See Publish.
func (ib *Inbox) PublishTx(ctx context.Context, tx *gorm.DB, events ...any) (*acceptor.Receipt, error) {
	messages, err := ib.outgoing(events)
	if err != nil {
		return nil, ib.name(err)
	}
	return ib.AcceptTx(ctx, tx, messages...)
}

// outgoing returns the messages of events.
func (ib *Inbox) outgoing(events []any) ([]handler.RawMessage, error) {
	messages := make([]handler.RawMessage, 0, len(events))
	for _, given := range events {
		var e Event
		switch given := given.(type) {
		case Event:
			e = given
		case *Event:
			e = *given
		default:
			e = Event{Payload: given}
		}
		m, err := ib.cfg.message(e)
		if err != nil {
			return nil, fmt.Errorf("publish %T: %w", e.Payload, err)
		}
		messages = append(messages, m)
	}
	return messages, nil
}

func (cfg *config) message(e Event) (m handler.RawMessage, err error) {
	payload := e.Payload
	declared := cfg.eventOf(reflect.TypeOf(payload))
	if v := reflect.ValueOf(payload); declared == nil && v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return m, errors.New("the payload is nil")
		}
		payload = v.Elem().Interface()
		declared = cfg.eventOf(reflect.TypeOf(payload))
	}
	if declared == nil {
		return m, errors.New("no outgoing channel publishes this type: declare it with inbox.Publishes")
	}
	m = handler.RawMessage{Channel: declared.channel, Type: declared.messageType, ID: e.ID, Source: e.Source,
		NotBefore: e.NotBefore, Properties: handler.Properties{Headers: e.Headers, Attributes: maps.Clone(e.Attributes)}}
	if m.Content, m.ContentType, m.OrderingKey, err = declared.encode(payload); err != nil {
		return m, fmt.Errorf("encode as message of type %q: %w", m.Type, err)
	}
	if e.Key != nil {
		m.OrderingKey = e.Key
	}
	if len(m.OrderingKey) == 0 {
		m.OrderingKey = nil // no order
	}
	if m.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return m, fmt.Errorf("make a message ID: %w", err)
		}
		m.ID = id.String()
	}
	if !e.OccurredAt.IsZero() {
		if m.Properties.Attributes == nil {
			m.Properties.Attributes = map[string]string{}
		}
		m.Properties.Attributes["time"] = e.OccurredAt.UTC().Format(time.RFC3339Nano)
	}
	return m, nil
}

func (cfg *config) eventOf(payload reflect.Type) *event {
	for _, c := range cfg.channels {
		if c.outgoing == nil {
			continue
		}
		if i := slices.IndexFunc(c.outgoing.events, func(e *event) bool { return e.payload == payload }); i >= 0 {
			return c.outgoing.events[i]
		}
	}
	return nil
}

// publishKey returns the key of the handler that publishes a channel's messages.
func publishKey(channel string) string { return "publish:" + channel }

// publishSize is how many messages leave in one call.
const publishSize = 1000

// publishConcurrency is how many calls of a channel run at once. More would find fewer messages each.
const publishConcurrency = 16

// maxPublishDelay bounds the wait before a message is published again.
const maxPublishDelay = 15 * time.Second

// handler returns the handler that publishes the channel's messages by sender. Without one it only declares it.
func (c *outgoingChannel) handler(key string, sender *engine.Sender) *handler.Handler {
	publish := func(context.Context, []handler.Delivery) []error { return nil }
	if sender != nil {
		publish = sender.Publish
	}
	return handler.NewOutgoing(key, publishSize, publish, append([]handler.Option{
		handler.Concurrency(publishConcurrency), handler.MaxRetries(math.MaxInt32),
		handler.Backoff(func(errors int) time.Duration { return attempt.Backoff(errors-1, maxPublishDelay) }),
		handler.CircuitBreaker(handler.Breaker{Failures: 3, OpenFor: 5 * time.Second}),
	}, c.options...)...)
}

// withSenders adds to the resolved handlers those of the outgoing channels, and returns each channel's sender. An
// application may be built several times from one declaration, so each inbox has its own.
func (cfg *config) withSenders(resolved map[*HandlerSpec]*handler.Handler) (
	map[*HandlerSpec]*handler.Handler, map[*channel]*engine.Sender,
) {
	all, senders := map[*HandlerSpec]*handler.Handler{}, map[*channel]*engine.Sender{}
	maps.Copy(all, resolved)
	for _, c := range cfg.channels {
		if c.outgoing != nil {
			senders[c] = cfg.sender(c)
			all[c.subscriptions[0].spec] = c.outgoing.handler(publishKey(c.name), senders[c])
		}
	}
	return all, senders
}

func (cfg *config) sender(c *channel) *engine.Sender {
	sender := &engine.Sender{Channel: c.name}
	if len(c.outgoing.publish) > 0 {
		sender.To = c.outgoing.publish[0]
	}
	if cfg.published != nil {
		sender.To = cfg.recorded(sender.To)
	} else if len(c.outgoing.kafka) > 0 {
		sender.Kafka = &c.outgoing.kafka[0]
	}
	return sender
}

// recorded returns publish, which also reports what it has published. If publish is nil, everything counts as that.
func (cfg *config) recorded(publish outgoing.Publish) outgoing.Publish {
	return func(ctx context.Context, messages []outgoing.Message) []error {
		results := make([]error, len(messages))
		if publish != nil {
			results = publish(ctx, messages)
		}
		for i, m := range messages {
			if i < len(results) && results[i] == nil {
				cfg.published(cfg.name, m)
			}
		}
		return results
	}
}

// validateOutgoing returns what is wrong with the outgoing channels.
func (cfg *config) validateOutgoing() error {
	var found problems.List
	payloads := map[reflect.Type]*event{}
	for _, c := range cfg.channels {
		if c.outgoing == nil {
			continue
		}
		if utf8.RuneCountInString(publishKey(c.name)) > columns.MaxHandlerKey {
			found.Addf("outgoing channel %q: its name has more than %d characters", c.name,
				columns.MaxHandlerKey-len(publishKey("")))
		}
		if len(c.subscriptions) > 1 {
			found.Addf("channel %q is outgoing and has handlers: declare them on an inbox.Channel that consumes its messages",
				c.name)
		}
		if len(c.outgoing.kafka)+len(c.outgoing.publish) != 1 {
			found.Addf("outgoing channel %q has %d destinations: declare one of inbox.ToKafka and inbox.To", c.name,
				len(c.outgoing.kafka)+len(c.outgoing.publish))
		}
		for _, k := range c.outgoing.kafka {
			found = append(found, problems.Prefix(fmt.Sprintf("outgoing channel %q: ", c.name), k.Validate()))
		}
		if slices.ContainsFunc(c.outgoing.publish, func(p outgoing.Publish) bool { return p == nil }) {
			found.Addf("outgoing channel %q: the function of inbox.To is nil", c.name)
		}
		types := map[string]bool{}
		for _, e := range c.outgoing.events {
			found = append(found, problems.Prefix(fmt.Sprintf("outgoing channel %q: ", c.name), e.err))
			if other := payloads[e.payload]; other != nil {
				found.Addf("outgoing channel %q, type %q: channel %q publishes %s already, as type %q", c.name, e.messageType,
					other.channel, e.payload, other.messageType)
			}
			payloads[e.payload] = e
			if e.payload.Kind() == reflect.Interface {
				found.Addf("outgoing channel %q, type %q: %s is an interface: declare the types that implement it", c.name,
					e.messageType, e.payload)
			}
			if types[e.messageType] || e.messageType == registry.AnyType || e.messageType == "" {
				found.Addf("outgoing channel %q: inbox.Publishes has type %q twice, or it is no type", c.name, e.messageType)
			}
			types[e.messageType] = true
		}
	}
	return errors.Join(found...)
}
