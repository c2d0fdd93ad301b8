// Package operators tests that an operator solves the problems of a night with inboxctl alone and with the dashboard
// alone. What an operator does not see there, such as an ID or a handler's key, the tests do not use either.
package operators

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// The handlers of the shop. Those of orders are on an Inbox channel, that of payments is on an Inline one.
const (
	mail    = "orders.mail"
	ship    = "orders.ship"
	loyalty = "orders.loyalty"
	book    = "payments.book"
)

const (
	orders   = "shop.orders"
	payments = "shop.payments"
)

// operator is who solves the problems.
const operator = "ada"

// shop is an application whose handlers fail on demand, on a Kafka of its own.
type shop struct {
	t     *testing.T
	d     *inboxtest.Database
	kafka *kafkatest.Kafka
	ib    *inbox.Inbox
	end   func()
	sent  map[string]int64 // records by topic; each topic has one partition

	mu     sync.Mutex
	broken map[string]func(ctx context.Context, id string) error // by handler key
	badIDs error                                                 // why the decoder finds no ID of gift orders
}

func newShop(t *testing.T, d *inboxtest.Database) *shop {
	return &shop{t: t, d: d, kafka: kafkatest.Start(t, kafkatest.Topic(orders, 1), kafkatest.Topic(payments, 1)),
		sent: map[string]int64{}, broken: map[string]func(context.Context, string) error{}}
}

// version is what a deploy changes.
type version struct {
	options  []inbox.Option
	handlers []*inbox.HandlerSpec // more handlers of orders
}

// start starts the application.
func (s *shop) start(v version) {
	s.t.Helper()
	config := func(topic, messageType string) kafkaconsumer.Config {
		return kafkaconsumer.Config{Brokers: s.kafka.Brokers(), Topics: []string{topic}, GroupID: topic,
			Decoder:        envelope.DecoderConfig{Type: messageType, ID: envelope.Func(s.idOf)},
			CommitInterval: 10 * time.Millisecond, SessionTimeout: 30 * time.Second, HeartbeatInterval: 50 * time.Millisecond,
			RebalanceTimeout: time.Minute, DrainTimeout: 5 * time.Second, WatchInterval: 100 * time.Millisecond,
			FetchMaxWait: 100 * time.Millisecond, RequestTimeout: 10 * time.Second, DialTimeout: 10 * time.Second}
	}
	handlers := append([]*inbox.HandlerSpec{s.handler(mail), s.handler(ship)}, v.handlers...)
	options := append([]inbox.Option{inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
		o.Processor.MaxRetries = 3
		o.Backoff = func(int) time.Duration { return 20 * time.Millisecond }
	})}, v.options...)
	s.ib = inboxtest.New(s.t, s.d.DB, append(options,
		inbox.Channel("orders", inbox.Kafka(config(orders, "order.placed")), inbox.On("order.placed", handlers...)),
		inbox.Channel("payments", inbox.Inline(), inbox.Kafka(config(payments, "payment.captured")),
			inbox.On("payment.captured", s.handler(book))))...)
	s.end = inboxtest.Start(s.t, s.ib)
}

// idOf is the decoder's rule for IDs.
func (s *shop) idOf(in envelope.IDInput) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range in.Record.Headers {
		switch {
		case h.Key == "gift-id" && s.badIDs != nil:
			return "", s.badIDs
		case h.Key == "gift-id" || h.Key == "id":
			return string(h.Value), nil
		}
	}
	return "", fmt.Errorf("the record has no header id")
}

func (s *shop) handler(key string) *inbox.HandlerSpec {
	return inboxtest.Do(key, func(ctx context.Context, m inboxtest.Bytes) error {
		s.mu.Lock()
		fails := s.broken[key]
		s.mu.Unlock()
		if fails == nil {
			return nil
		}
		return fails(ctx, m.ID)
	})
}

// breaks deploys a version whose handler fails.
func (s *shop) breaks(key string, fails func(ctx context.Context, id string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken[key] = fails
}

// fix deploys a version whose handler does what it should. The operator names the handler.
func (s *shop) fix(key string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Contains(s.t, s.broken, key, "the operator blames a handler that is not broken")
	delete(s.broken, key)
}

// setBadIDs makes the decoder find no ID of gift orders, for this reason, or find them if it is nil.
func (s *shop) setBadIDs(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.badIDs = reason
}

// send produces records with these IDs in this header.
func (s *shop) send(topic, header string, ids ...string) {
	s.t.Helper()
	for _, id := range ids {
		r := kafkatest.Record{Value: fmt.Appendf(nil, `{"id":%q}`, id)}
		if header != "" {
			r.Headers = []kafkatest.Header{{Key: header, Value: []byte(id)}}
		}
		require.NoError(s.t, s.kafka.Produce(topic, r))
		s.sent[topic]++
	}
}

// status returns the status of a handler and a message.
func (s *shop) status(key, id string) models.HandlerStatus {
	s.t.Helper()
	return inboxtest.Status(s.t, s.ib, id, key)
}

// states returns how many statuses of a handler are processed, discarded, poisoned or open.
func (s *shop) states(key string) map[string]int {
	s.t.Helper()
	states := map[string]int{}
	for _, row := range inboxtest.Statuses(s.t, s.ib) {
		switch {
		case row.HandlerKey != key:
		case row.CompletedAt != nil:
			states[string(row.Outcome)]++
		case row.IsPoisoned:
			states["poisoned"]++
		default:
			states["open"]++
		}
	}
	return states
}

// await waits until a handler's statuses are in these states.
func (s *shop) await(key string, states map[string]int) {
	s.t.Helper()
	inboxtest.Eventually(s.t, func() bool { return maps.Equal(states, s.states(key)) },
		fmt.Sprintf("%s: %v", key, states))
}

// awaitCommitted waits until the offset of the last record of a topic is committed.
func (s *shop) awaitCommitted(topic string) {
	s.t.Helper()
	inboxtest.Eventually(s.t, func() bool { return s.kafka.Committed(topic, topic)[0] == s.sent[topic] },
		topic+" is read to its end")
}

func (s *shop) rejected() (rows []models.RejectedMessage) {
	s.t.Helper()
	require.NoError(s.t, s.d.DB.Order("record_offset").Find(&rows).Error)
	return rows
}

// requireReason requires that the operator's action was audited once, with this reason.
func (s *shop) requireReason(action ops.Action, reason string) {
	s.t.Helper()
	var rows []models.Audit
	require.NoError(s.t, s.d.DB.Find(&rows, "actor = ? AND action = ?", operator, action).Error)
	require.Len(s.t, rows, 1)
	require.Contains(s.t, rows[0].Detail, reason)
}

// audited returns the actions of an actor, the first one first, without views.
func (s *shop) audited(actor string) (actions []ops.Action) {
	s.t.Helper()
	var rows []models.Audit
	require.NoError(s.t,
		s.d.DB.Order("occurred_at, id").Find(&rows, "actor = ? AND action <> ?", actor, ops.ActionView).Error)
	for _, row := range rows {
		actions = append(actions, ops.Action(row.Action))
	}
	return slices.Compact(actions)
}
