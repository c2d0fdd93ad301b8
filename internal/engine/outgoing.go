package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/kafkapublisher"
	"github.com/gorm-inbox/inbox/outgoing"
)

// notTriedDelay is when a message comes again that was not tried because another one failed.
const notTriedDelay = time.Second

// Sender publishes the messages of an outgoing channel. It connects at the first message, and disconnects when nothing
// holds it any more: the inbox from its start to its stop, and each call of ProcessPending.
type Sender struct {
	Channel string
	// One of these is the destination.
	Kafka *kafkapublisher.Config
	To    outgoing.Publish

	log   *zap.Logger
	clock clock.Clock

	mu        sync.Mutex
	holders   int
	publisher *kafkapublisher.Publisher // nil before the first message
}

// Publish publishes stored messages, and returns a result for each as a handler does.
func (s *Sender) Publish(ctx context.Context, batch []handler.Delivery) []error {
	publish := s.To
	if publish == nil {
		publisher, err := s.connected()
		if err != nil {
			return allFailed(err, len(batch))
		}
		publish = publisher.Publish
	}
	messages := make([]outgoing.Message, len(batch))
	for i, d := range batch {
		messages[i] = outgoing.Message{Channel: s.Channel, ID: d.ID, Type: d.Type, Source: d.Source,
			ContentType: d.ContentType, Content: d.Content, Key: d.OrderingKey,
			Headers: d.Properties.Headers, Attributes: d.Properties.Attributes,
			OccurredAt: d.OccurredAt, StoredAt: d.ReceivedAt, Traceparent: d.Properties.Traceparent, Attempt: d.Attempt}
	}
	results := publish(ctx, messages)
	for i, err := range results {
		if errors.Is(err, outgoing.ErrNotTried) { // perhaps because another message was refused
			results[i] = handler.Snooze(notTriedDelay)
		} else if refused, is := errors.AsType[*outgoing.RefusedError](err); is {
			results[i] = handler.Poison(refused)
		}
	}
	return results
}

// destination names where messages leave to, for operators.
func (s *Sender) destination() string {
	if s.Kafka == nil {
		return "a function"
	}
	return "topic " + s.Kafka.Topic
}

func allFailed(err error, n int) []error {
	results := make([]error, n)
	for i := range results {
		results[i] = err
	}
	return results
}

func (s *Sender) connected() (*kafkapublisher.Publisher, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holders == 0 {
		return nil, errors.New("the inbox has stopped") // this call has outlasted it
	}
	if s.publisher == nil {
		publisher, err := kafkapublisher.New(*s.Kafka, s.log, s.clock)
		if err != nil {
			return nil, err
		}
		s.publisher = publisher
	}
	return s.publisher, nil
}

func (s *Sender) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holders++
}

// release disconnects if nothing holds the sender any more.
func (s *Sender) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holders--; s.holders == 0 && s.publisher != nil {
		s.publisher.Close()
		s.publisher = nil
	}
}

// holdSenders holds all senders until release is called.
func (e *Engine) holdSenders() (release func()) {
	var held []*Sender
	for _, c := range e.cfg.Channels {
		if c.Sender != nil {
			c.Sender.hold()
			held = append(held, c.Sender)
		}
	}
	return func() {
		for _, s := range held {
			s.release()
		}
	}
}
