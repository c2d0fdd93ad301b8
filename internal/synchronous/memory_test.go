package synchronous_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

func TestCompletedMessageIsSkipped(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		runs := map[string]int{}
		h := func(key string) *handler.Handler {
			return handler.New(key, func(_ context.Context, m inboxtest.Bytes) error {
				if runs[key]++; key == "b" && m.Attempt == 1 {
					return errBoom
				}
				return nil
			})
		}
		var outcomes []string
		r, counters := newRunner(t, d.DB, func(c *synchronous.Config) {
			remember(t, c, newMemory())
			c.Hooks.OnAttempt = func(_ context.Context, e handler.AttemptEvent) {
				outcomes = append(outcomes, e.HandlerKey+" "+string(e.Outcome))
			}
		}, h("a"), h("b"))
		for range 3 {
			require.NoError(t, deliver(t, r, 0, "1"))
		}
		require.Equal(t, map[string]int{"a": 1, "b": 2}, runs, "each handler by itself, and a failed run is no run")
		require.Equal(t, []string{"a completed", "b failed", "b completed"}, outcomes, "what is skipped is no attempt")
		require.EqualValues(t, 2, counters.Load(telemetry.Processed))
	})
}

func TestMessageInProgressElsewhereIsNotAcknowledged(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		attempts := make(chan int, 10)
		h := handler.New("h", func(_ context.Context, m inboxtest.Bytes) error { attempts <- m.Attempt; return nil })
		store := newMemory()
		r, counters := newRunner(t, d.DB, func(c *synchronous.Config) { c.MaxRetries = 1; remember(t, c, store) }, h)
		store.set("h 1", "running")

		stopping, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- r.Deliver(context.Background(), stopping, received(0, "1")) }()
		inboxtest.Eventually(t, func() bool { return store.times() > 3 }, "it was asked for several times")
		require.Empty(t, done)
		close(stopping)
		require.ErrorIs(t, inboxtest.Receive(t, done, "the delivery's end"), envelope.ErrInterrupted)

		go func() { done <- r.Deliver(context.Background(), nil, received(0, "1")) }()
		asked := store.times()
		inboxtest.Eventually(t, func() bool { return store.times() > asked+1 }, "it was asked for again")
		store.set("h 1", "") // the other process has failed
		require.NoError(t, inboxtest.Receive(t, done, "the delivery's end"))
		require.Equal(t, 1, inboxtest.Receive(t, attempts, "the attempt"), "nothing was charged")
		require.Zero(t, counters.Load(telemetry.Failed))
		require.Zero(t, counters.Load(telemetry.Released), "it was no attempt of this process")
	})
}

// The marker is committed with the handler's writes or not at all, so concurrent duplicates have
// their effects once.
func TestMarkersAreCommittedWithTheHandlersWrites(t *testing.T) {
	plain := func(fn func(db *gorm.DB, m inboxtest.Bytes) error) *handler.Handler {
		return handler.New("h", func(ctx context.Context, m inboxtest.Bytes) error { return fn(handler.DB(ctx), m) })
	}
	transactional := func(fn func(db *gorm.DB, m inboxtest.Bytes) error) *handler.Handler {
		return handler.NewTx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error { return fn(tx, m) })
	}
	for name, make := range map[string]func(func(*gorm.DB, inboxtest.Bytes) error) *handler.Handler{"plain": plain,
		"transactional": transactional} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
				written := effects(t, d.DB)
				runs := atomic.Int32{}
				h := make(func(db *gorm.DB, m inboxtest.Bytes) error {
					runs.Add(1)
					if err := write(db, m.ID); err != nil {
						return err
					}
					if m.Attempt == 1 {
						return errBoom
					}
					return nil
				})
				configure := func(c *synchronous.Config) { remember(t, c, tables(t, c.DB)) }
				one, _ := newRunner(t, d.DB, configure, h)
				other, _ := newRunner(t, d.Another(t), configure, h)
				require.NoError(t, deliver(t, one, 0, "1"))
				require.Equal(t, []string{"1"}, written())
				require.EqualValues(t, 2, runs.Load(), "the failed attempt left no marker")
				require.NoError(t, deliver(t, other, 0, "1"))
				require.EqualValues(t, 2, runs.Load())

				var racing sync.WaitGroup
				for i, r := range []*synchronous.Runner{one, other, one, other} {
					racing.Add(1)
					go func() {
						defer racing.Done()
						if err := deliver(t, r, i, "2"); err != nil {
							t.Error(err)
						}
					}()
				}
				racing.Wait()
				require.Equal(t, []string{"1", "2"}, written(), "a second effect would have collided")
			})
		})
	}
}

func TestMessageWithoutFindableIDIsGivenUp(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		find := func(m inboxtest.Bytes) (string, error) {
			if m.ID == "panics" {
				panic("ouch")
			}
			return "", errBoom
		}
		h := handler.New("h", func(context.Context, inboxtest.Bytes) error {
			t.Error("it must not run")
			return nil
		}, handler.IdempotencyKey(find))
		r, counters := newRunner(t, d.DB, func(c *synchronous.Config) { remember(t, c, newMemory()) }, h)
		for id, attempts := range map[string]int{"fails": 1, "panics": 3} {
			var failed *synchronous.FailedError
			require.ErrorAs(t, deliver(t, r, 0, id), &failed, id)
			require.Len(t, failed.Failures, 1)
			require.Equal(t, attempts, failed.Failures[0].Attempts, id)
		}
		require.Zero(t, counters.Load(telemetry.Processed))
	})
}

// The handler may change its body, so the ID by which the message is remembered is found in the
// body as it was received.
func TestIDIsFoundInTheReceivedBody(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		for name, store := range map[string]idempotent.Store{"markers": tables(t, d.DB), "memory": newMemory()} {
			runs := 0
			h := handler.New(name, func(_ context.Context, m inboxtest.Bytes) error {
				m.Payload[0] = 'x'
				if runs++; m.Attempt == 1 {
					return errBoom
				}
				return nil
			}, handler.IdempotencyKey(func(m inboxtest.Bytes) (string, error) { return "order " + string(m.Payload), nil }))
			r, _ := newRunner(t, d.DB, func(c *synchronous.Config) { remember(t, c, store) }, h)
			require.NoError(t, deliver(t, r, 0, "1"))
			require.NoError(t, deliver(t, r, 0, "1"))
			require.Equal(t, 2, runs, "a failed run and one that is remembered")
		}
	})
}

// No other handler sees what a handler changes in its message, nor does its own next attempt.
func TestEachCallGetsACopyOfTheMessage(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var seen []string
		spoil := func(_ context.Context, m inboxtest.Bytes) error {
			p := m.Properties
			seen = append(seen, fmt.Sprintf("%s %s %s %s %s %s", m.Payload, p.Headers[0].Value, p.Attributes["a"], p.Kafka.Key,
				m.OrderingKey, p.Kafka.Topic))
			m.Payload[0], p.Headers[0].Value[0], p.Attributes["a"], p.Kafka.Key[0], m.OrderingKey[0], p.Kafka.Topic = 'x', 'x', "x", 'x', 'x', "x"
			if m.Attempt == 1 {
				return errBoom
			}
			return nil
		}
		r, _ := newRunner(t, d.DB, nil, handler.New("a", spoil), handler.New("b", spoil))
		record := received(0, "1")
		record.Messages[0].OrderingKey = []byte("o")
		record.Messages[0].Properties = handler.Properties{Headers: []handler.Header{{Key: "k", Value: []byte("h")}},
			Attributes: map[string]string{"a": "v"},
			Kafka:      &handler.KafkaCoordinates{Topic: "t", Key: []byte("k")}}
		require.NoError(t, r.Deliver(t.Context(), nil, record))
		require.Equal(t, slices.Repeat([]string{"1 h v k o t"}, 4), seen)
	})
}

// unchained calls the body with a context that is not derived from the one it got.
type unchained struct{ idempotent.Store }

func (unchained) Run(_ context.Context, _ idempotent.Run, body func(ctx context.Context) error) (bool, error) {
	return false, body(context.Background())
}

func TestStoreContextEndsWithHandlerTimeout(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ctx, cancel := context.WithCancel(context.Background())
		h := handler.New("h", func(ctx context.Context, _ inboxtest.Bytes) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		r, counters := newRunner(t, d.DB, func(c *synchronous.Config) { remember(t, c, unchained{newMemory()}) }, h)
		require.ErrorIs(t, r.Deliver(ctx, nil, received(0, "1")), envelope.ErrInterrupted)
		require.Zero(t, counters.Load(telemetry.Failed))
		require.EqualValues(t, 1, counters.Load(telemetry.Released))
	})
}

// hasty returns when the handler has begun, which is before the body returns.
type hasty struct {
	idempotent.Store
	began chan struct{}
}

func (s hasty) Run(ctx context.Context, _ idempotent.Run, body func(ctx context.Context) error) (bool, error) {
	go func() { _ = body(ctx) }()
	<-s.began
	return false, idempotent.ErrInProgress
}

func TestAttemptsNeverOverlap(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var running, runs, most atomic.Int32
		store := hasty{newMemory(), make(chan struct{})}
		letGo := make(chan struct{})
		h := handler.New("h", func(context.Context, inboxtest.Bytes) error {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			runs.Add(1)
			store.began <- struct{}{}
			<-letGo
			return nil
		})
		r, _ := newRunner(t, d.DB, func(c *synchronous.Config) { remember(t, c, store) }, h)
		stopping, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- r.Deliver(context.Background(), stopping, received(0, "1")) }()
		began := time.Now()
		inboxtest.Eventually(t, func() bool {
			return time.Since(began) > 500*time.Millisecond
		}, "a time in which it would be tried again")
		close(letGo)
		inboxtest.Eventually(t, func() bool { return runs.Load() > 1 }, "what the store reports counts")
		close(stopping)
		require.ErrorIs(t, inboxtest.Receive(t, done, "the delivery's end"), envelope.ErrInterrupted)
		require.EqualValues(t, 1, most.Load())
	})
}
