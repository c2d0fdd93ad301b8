package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkapublisher"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/outgoing"
)

type orderConfirmed struct {
	Order  string
	Number int
}

func (o orderConfirmed) key() string { return o.Order }

// destination records what leaves. By default it takes everything, and never what follows a failure of its key.
type destination struct {
	mu    sync.Mutex
	left  []outgoing.Message
	calls int
	// answer, if not nil, decides the result of each message.
	answer func(m outgoing.Message) error
}

func (d *destination) publish(ctx context.Context, messages []outgoing.Message) []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	return outgoing.Each(func(_ context.Context, m outgoing.Message) (err error) {
		if d.answer != nil {
			err = d.answer(m)
		}
		if err == nil {
			d.left = append(d.left, m)
		}
		return err
	})(ctx, messages)
}

// of returns the bodies that left with a key.
func (d *destination) of(key string) (bodies []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.left {
		if string(m.Key) == key {
			bodies = append(bodies, string(m.Content))
		}
	}
	return bodies
}

func (d *destination) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.left)
}

// to declares an outgoing channel "orders" to the destination.
func (d *destination) channel(opts ...inbox.OutgoingOption) inbox.Option {
	return inbox.Outgoing("orders", append([]inbox.OutgoingOption{inbox.To(d.publish),
		inbox.Publishes("order.confirmed", orderConfirmed.key)}, opts...)...)
}

func body(order string, number int) string {
	return fmt.Sprintf(`{"Order":%q,"Number":%d}`, order, number)
}

func TestCommittedEventsLeaveAndRolledBackOnesDoNot(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var to destination
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), to.channel())
		inboxtest.Start(t, ib)
		undone := errors.New("undone")
		err := d.DB.Transaction(func(tx *gorm.DB) error {
			_, err := ib.PublishTx(t.Context(), tx, orderConfirmed{"a", 1})
			return errors.Join(err, undone)
		})
		require.ErrorIs(t, err, undone)
		occurred := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			receipt, err := ib.PublishTx(t.Context(), tx, &orderConfirmed{"a", 2}, inbox.Event{Payload: orderConfirmed{"b", 3},
				ID: "mine", Source: "/shop", OccurredAt: occurred, Attributes: map[string]string{"tenant": "t1"},
				Headers: []handler.Header{{Key: "h", Value: []byte("v")}}})
			if err == nil {
				defer receipt.Wake()
			}
			return err
		}))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "both have left")
		require.Equal(t, []string{body("a", 2)}, to.of("a"))
		require.Equal(t, []string{body("b", 3)}, to.of("b"))
		i := slices.IndexFunc(to.left, func(m outgoing.Message) bool { return m.ID == "mine" })
		got := to.left[i]
		require.Equal(t, outgoing.Message{Channel: "orders", ID: "mine", Type: "order.confirmed", Source: "/shop",
			ContentType: "application/json", Content: []byte(body("b", 3)), Key: []byte("b"), Headers: got.Headers,
			Attributes: got.Attributes, OccurredAt: occurred, StoredAt: got.StoredAt, Attempt: 1}, got)
		require.Equal(t, "t1", got.Attributes["tenant"])
		require.Equal(t, []handler.Header{{Key: "h", Value: []byte("v")}}, got.Headers)
		require.False(t, got.StoredAt.IsZero())
	})
}

func TestTransactionalHandlerPublishesOnce(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var to destination
		var ib *inbox.Inbox
		failures := 1
		ib = inboxtest.New(t, d.DB, inboxtest.Brisk(), to.channel(), inboxtest.Handlers(
			inbox.Tx("confirm", func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				_, err := ib.PublishTx(ctx, tx, orderConfirmed{m.ID, 1})
				if failures--; failures == 0 {
					return errors.Join(err, handler.RetryAfter(0, errors.New("later")))
				}
				return err
			})))
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "m")
		inboxtest.Eventually(t, func() bool { return to.count() > 0 && inboxtest.AllCompleted(t, ib) }, "all is done")
		require.Equal(t, []string{body("m", 1)}, to.of("m"))
	})
}

func TestKnownIDLeavesOnce(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var to destination
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), to.channel())
		inboxtest.Start(t, ib)
		for range 3 {
			results, err := ib.Publish(t.Context(), inbox.Event{ID: "id", Payload: orderConfirmed{"a", 1}})
			require.NoError(t, err)
			require.Len(t, results, 1)
		}
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "it has left")
		require.Equal(t, []string{body("a", 1)}, to.of("a"))
	})
}

// TestRunsOfAKeyLeaveInOrder has workers of two processes publish keys with many messages each, with failures at
// random places. Every key's messages arrive in order, and calls have many messages of one key.
func TestRunsOfAKeyLeaveInOrder(t *testing.T) {
	const keys, each = 5, 300
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var to destination
		random := rand.New(rand.NewPCG(1, 1))
		to.answer = func(outgoing.Message) error {
			if random.IntN(50) == 0 {
				return errors.New("not now")
			}
			return nil
		}
		fast := inbox.PublishWith(handler.Backoff(func(int) time.Duration { return time.Millisecond }))
		var started []*inbox.Inbox
		for range 2 {
			started = append(started, inboxtest.New(t, d.DB, inboxtest.Brisk(), to.channel(fast)))
		}
		var events []any
		for i := range each {
			for k := range keys {
				events = append(events, orderConfirmed{strconv.Itoa(k), i})
			}
		}
		for chunk := range slices.Chunk(events, 500) {
			_, err := started[0].Publish(t.Context(), chunk...)
			require.NoError(t, err)
		}
		for _, ib := range started {
			inboxtest.Start(t, ib)
		}
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, started[0]) }, "all have left")
		for k := range keys {
			var want []string
			for i := range each {
				want = append(want, body(strconv.Itoa(k), i))
			}
			require.Equal(t, want, to.of(strconv.Itoa(k)), "key %d", k)
		}
		require.Less(t, to.calls, keys*each/5)
	})
}

func TestMessageThatWasNotTriedIsNotCharged(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var to destination
		first := true
		to.answer = func(m outgoing.Message) error {
			defer func() { first = false }()
			if first {
				return fmt.Errorf("%w: %w", outgoing.ErrNotTried, outgoing.Refused(errors.New("another")))
			}
			return nil
		}
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), to.channel(inbox.PublishWith(handler.MaxRetries(0))))
		_, err := ib.Publish(t.Context(), orderConfirmed{"a", 1})
		require.NoError(t, err)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "it has left")
		require.Zero(t, inboxtest.Statuses(t, ib)[0].ErrorCount)
	})
}

func TestDestinationThatReturnsNoResultsHasPublishedNothing(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inbox.Outgoing("orders", inbox.Publishes("t", orderConfirmed.key),
			inbox.To(func(context.Context, []outgoing.Message) []error { return nil })))
		_, err := ib.Publish(t.Context(), orderConfirmed{"a", 1})
		require.NoError(t, err)
		require.Zero(t, inboxtest.Process(t, ib).Completed)
		require.Contains(t, *inboxtest.Statuses(t, ib)[0].LastError, "publishing gave 0 results for 1 messages")
	})
}

func TestRefusedEventIsPoisonedAndParksItsKeyAlone(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var to destination
		refusals := 1
		to.answer = func(m outgoing.Message) error {
			if string(m.Content) == body("a", 2) && refusals > 0 {
				refusals--
				return outgoing.Refused(errors.New("too large"))
			}
			return nil
		}
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), to.channel())
		_, err := ib.Publish(t.Context(), orderConfirmed{"a", 1}, orderConfirmed{"a", 2}, orderConfirmed{"a", 3},
			orderConfirmed{"b", 1}, orderConfirmed{"b", 2})
		require.NoError(t, err)
		inboxtest.Start(t, ib)
		var refused models.HandlerStatus
		inboxtest.Eventually(t, func() bool {
			pending := 0
			for _, row := range inboxtest.Statuses(t, ib) {
				switch {
				case row.IsPoisoned:
					refused = row
				case row.CompletedAt == nil && row.ProcessingStartedAt == nil:
					pending++
				case row.CompletedAt == nil:
					return false
				}
			}
			return refused.ID != "" && pending == 1
		}, "a 2 is poisoned, a 3 waits behind it")
		require.Equal(t, "publish:orders", refused.HandlerKey)
		require.Contains(t, *refused.LastError, "too large")
		require.Equal(t, []string{body("b", 1), body("b", 2)}, to.of("b"))
		require.Equal(t, []string{body("a", 1)}, to.of("a"))
		o, err := ib.Ops()
		require.NoError(t, err)
		require.NoError(t, o.Retry(t.Context(), "ada", ops.Ref{StatusID: refused.ID}))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "the key goes on")
		require.Equal(t, []string{body("a", 1), body("a", 2), body("a", 3)}, to.of("a"))
	})
}

func TestWrongOutgoingDeclarationsFailTheStart(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var to destination
		for _, c := range []struct {
			want string
			opts []inbox.Option
		}{
			{`outgoing channel "x" has 0 destinations: declare one of inbox.ToKafka and inbox.To`,
				[]inbox.Option{inbox.Outgoing("x")}},
			{`outgoing channel "x" has 2 destinations`,
				[]inbox.Option{inbox.Outgoing("x", inbox.To(to.publish), inbox.ToKafka(kafkapublisher.Config{}))}},
			{`outgoing channel "x": option Topic = ""`,
				[]inbox.Option{inbox.Outgoing("x", inbox.ToKafka(kafkapublisher.Config{Brokers: []string{"127.0.0.1:9092"}}))}},
			{`outgoing channel "x": the function of inbox.To is nil`, []inbox.Option{inbox.Outgoing("x", inbox.To(nil))}},
			{`channel "x" is outgoing and has handlers`, []inbox.Option{inbox.Outgoing("x", inbox.To(to.publish)),
				inbox.Subscribe("x", "t", inboxtest.Do("h", inboxtest.Nothing))}},
			{`channel "orders" publishes inbox_test.orderConfirmed already`, []inbox.Option{to.channel(),
				inbox.Outgoing("x", inbox.To(to.publish), inbox.Publishes[orderConfirmed]("t", nil))}},
			{"OrderedBy is not for outgoing channels", []inbox.Option{to.channel(inbox.PublishWith(
				handler.OrderedBy(func(m handler.RawMessage) []byte { return m.Content })))}},
			{`outgoing channel "x", type "t": error is an interface`,
				[]inbox.Option{inbox.Outgoing("x", inbox.To(to.publish), inbox.Publishes[error]("t", nil))}},
			{`channel "orders" is declared twice`, []inbox.Option{to.channel(), to.channel()}},
			{`outgoing channel "` + strings.Repeat("x", 193) + `": its name has more than 192 characters`,
				[]inbox.Option{inbox.Outgoing(strings.Repeat("x", 193), inbox.To(to.publish))}},
		} {
			_, err := inbox.New("shop", d.DB, c.opts...)
			require.ErrorContains(t, err, c.want)
		}
		ib := inboxtest.New(t, d.DB, to.channel())
		_, err := ib.Publish(t.Context(), 5)
		require.ErrorContains(t, err, "publish int: no outgoing channel publishes this type: declare it with inbox.Publishes")
		_, err = ib.Publish(t.Context(), (*orderConfirmed)(nil))
		require.ErrorContains(t, err, "publish *inbox_test.orderConfirmed: the payload is nil")
		_, err = ib.Publish(t.Context(), &inbox.Event{Payload: orderConfirmed{"a", 1}, Key: []byte{}})
		require.NoError(t, err)
		require.Nil(t, inboxtest.Statuses(t, ib)[0].LaneKey, "an empty key is no order")
	})
}

// TestOutboxNeedsNoOtherChannel proves that ProcessPending publishes, too.
func TestOutboxNeedsNoOtherChannel(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var to destination
		ib := inboxtest.New(t, d.DB, to.channel())
		_, err := ib.Publish(t.Context(), orderConfirmed{"a", 1}, orderConfirmed{"a", 2})
		require.NoError(t, err)
		drained := inboxtest.Process(t, ib)
		require.Equal(t, 2, drained.Completed)
		require.Equal(t, []string{body("a", 1), body("a", 2)}, to.of("a"))
	})
}

func TestOperatorsSeeWhereMessagesLeaveTo(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Outgoing("orders",
			inbox.ToKafka(kafkapublisher.Config{Brokers: []string{"127.0.0.1:1"}, Topic: "orders.confirmed"})))
		inboxtest.Start(t, ib)
		o, err := ib.Ops()
		require.NoError(t, err)
		inboxtest.Eventually(t, func() bool {
			h, err := o.Handler(t.Context(), "publish:orders")
			return err == nil && h.Settings != nil && strings.HasPrefix(h.Settings.String(),
				"publishes the messages of outgoing channel orders to topic orders.confirmed") &&
				strings.Contains(h.Settings.String(), "tried without limit")
		}, "the handler's page says so")
	})
}
