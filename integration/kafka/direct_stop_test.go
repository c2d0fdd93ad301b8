package kafka

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// headerTypes makes records carry their type in a header.
var headerTypes = []func(*kafkaconsumer.Config){func(c *kafkaconsumer.Config) {
	c.Decoder.Type, c.Decoder.TypeHeader = "", "MessageType"
}}

func drain(d time.Duration) func(*kafkaconsumer.Config) {
	return func(c *kafkaconsumer.Config) { c.DrainTimeout = d }
}

// TestDirectHandlerSlowerThanSessionKeepsItsPartition proves contract 7.6:
// heartbeats continue however long a handler takes.
func TestDirectHandlerSlowerThanSessionKeepsItsPartition(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		r.produce(2, 0)
		s := settings{config: []func(*kafkaconsumer.Config){func(c *kafkaconsumer.Config) {
			c.SessionTimeout, c.FetchMaxWait = 3*time.Second, 50*time.Millisecond
		}}}
		ib, _ := r.run(t, s, r.handler("h", func(ctx context.Context, m inboxtest.Bytes) error {
			select {
			case <-time.After(4 * time.Second):
				return r.done(ctx, m)
			case <-ctx.Done():
				return ctx.Err()
			}
		}))
		r.awaitCommitted(t)
		require.Equal(t, 2, r.ledger.deliveries(topic))
		require.Zero(t, ib.Health().Consumers[0].Rebalances)
	})
}

// TestRebalanceCommitsTheRunningDirectHandler proves contract 7.6: the running record
// gets DrainTimeout, and its offset is committed then.
func TestRebalanceCommitsTheRunningDirectHandler(t *testing.T) {
	onDirect(t, 2, func(t *testing.T, r *directRig) {
		r.produce(3, 0, 1)
		g := newGate()
		h := r.handler("h", func(ctx context.Context, m inboxtest.Bytes) error {
			if m.Properties.Kafka.Offset == 0 {
				if err := g.wait(ctx); err != nil {
					return err
				}
			}
			return r.done(ctx, m)
		})
		first, _ := r.run(t, settings{}, h)
		receive(t, g.entered)
		receive(t, g.entered)
		second, _ := r.run(t, settings{}, h)
		eventually(t, "the second waits", func() bool { return r.kafka.Members(group) == 2 })
		close(g.open)
		eventually(t, "both have a partition", func() bool {
			return len(first.Health().Consumers[0].Partitions) == 1 && len(second.Health().Consumers[0].Partitions) == 1
		})
		r.awaitCommitted(t)
		require.Equal(t, 6, r.ledger.deliveries(topic), "nothing was redelivered")
	})
}

func TestRebalanceCancelsASlowDirectHandlerUncharged(t *testing.T) {
	onDirect(t, 2, func(t *testing.T, r *directRig) {
		r.produce(2, 0, 1)
		g := newGate()
		slow := atomic.Bool{}
		slow.Store(true)
		h := r.handler("h", func(ctx context.Context, m inboxtest.Bytes) error {
			if slow.Load() {
				if err := g.wait(ctx); err != nil {
					return err
				}
			}
			return r.done(ctx, m)
		})
		s := settings{config: []func(*kafkaconsumer.Config){drain(200 * time.Millisecond)},
			options: []inbox.Option{inbox.Configure(func(o *inbox.Options) { o.Processor.MaxRetries = 1 })}}
		first, _ := r.run(t, s, h)
		receive(t, g.entered)
		receive(t, g.entered)
		second, _ := r.run(t, s, h)
		eventually(t, "rebalanced", func() bool { return len(second.Health().Consumers[0].Partitions) == 1 })
		require.Zero(t, r.ledger.accepted(topic))
		slow.Store(false)
		close(g.open)
		eventually(t, "committed", func() bool { return r.committed(0) == 2 && r.committed(1) == 2 })
		for p := range 2 {
			for _, attempt := range r.attempts("h", p, 0) {
				require.Equal(t, 1, attempt)
			}
		}
		require.Zero(t, first.Counters().Failed+second.Counters().Failed)
		require.Empty(t, r.rejected(t, first))
	})
}

func TestStopCommitsTheRunningDirectHandler(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		r.produce(3, 0)
		g := newGate()
		_, end := r.run(t, settings{}, r.handler("h", func(ctx context.Context, m inboxtest.Bytes) error {
			if err := g.wait(ctx); err != nil {
				return err
			}
			return r.done(ctx, m)
		}))
		receive(t, g.entered)
		time.AfterFunc(200*time.Millisecond, func() { close(g.open) })
		end()
		require.Equal(t, int64(1), r.committed(0))
		require.Len(t, r.of("h"), 1, "and no other begun")
		require.Zero(t, r.kafka.Members(group))
	})
}

func TestStopCancelsAndRedeliversASlowDirectHandler(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		r.produce(2, 0)
		g := newGate()
		s := settings{config: []func(*kafkaconsumer.Config){drain(100 * time.Millisecond)},
			options: []inbox.Option{inbox.Configure(func(o *inbox.Options) { o.Processor.MaxRetries = 1 })}}
		ib, end := r.run(t, s, r.handler("h", func(ctx context.Context, _ inboxtest.Bytes) error { return g.wait(ctx) }))
		receive(t, g.entered)
		end()
		require.Zero(t, r.committed(0))
		counted := ib.Counters()
		require.EqualValues(t, []int64{0, 1}, []int64{counted.Failed, counted.Released})
		require.Empty(t, r.rejected(t, ib))
		r.run(t, s, r.handler("h", r.done))
		r.awaitCommitted(t)
		require.Equal(t, []int{1, 1}, r.attempts("h", 0, 0))
	})
}

// TestStuckDirectHandlerDelaysNoStopAndNeverOverlaps proves contract 5.4
// for synchronous channels: a stop does not wait without limit, and a record does not run a second
// time while its first run continues after a rebalance.
func TestStuckDirectHandlerDelaysNoStopAndNeverOverlaps(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		r.produce(2, 0)
		entered, release := make(chan struct{}, 1), make(chan struct{})
		ib, end := r.run(t, settings{config: []func(*kafkaconsumer.Config){drain(100 * time.Millisecond)}},
			r.handler("h", func(ctx context.Context, m inboxtest.Bytes) error {
				select {
				case entered <- struct{}{}:
					<-release
					return nil // too late
				default:
					return r.done(ctx, m)
				}
			}))
		receive(t, entered)
		entered <- struct{}{} // for the next calls
		end()
		require.Equal(t, map[string]int{"h": 1}, ib.Health().InPlaceStuck)
		require.ErrorContains(t, ib.Health().Degraded(), `handler "h": 1 calls ignore their cancelled context`)

		require.NoError(t, ib.Start(t.Context()))
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			require.NoError(t, ib.Stop(ctx))
		})
		eventually(t, "the record is there again", func() bool { return ib.Health().Consumers[0].BufferedBytes > 0 })
		require.Never(t, func() bool { return len(r.of("h")) > 1 }, 300*time.Millisecond, 20*time.Millisecond)
		close(release)
		r.awaitCommitted(t)
		require.False(t, r.beside)
		require.Equal(t, []int{1, 1}, r.attempts("h", 0, 0))
		eventually(t, "health recovers", func() bool { return len(ib.Health().InPlaceStuck) == 0 })
	})
}

// TestDirectRecordsOfAVanishedConsumerAreRedelivered proves contract 2, at least once: what was not
// committed when a consumer vanished is delivered to another one.
func TestDirectRecordsOfAVanishedConsumerAreRedelivered(t *testing.T) {
	onDirect(t, 2, func(t *testing.T, r *directRig) {
		r.produce(20, 0, 1)
		lost := r.kafka.FailNext(kmsg.OffsetCommit, illegalGeneration, -1) // its commits never arrive
		g := newGate()
		close(g.open)
		s := settings{config: []func(*kafkaconsumer.Config){soonForgotten}}
		_, end := r.run(t, s, r.handler("h", func(ctx context.Context, m inboxtest.Bytes) error {
			g.entered <- struct{}{}
			return r.done(ctx, m)
		}))
		for range 25 {
			receive(t, g.entered)
		}
		r.kafka.Stop() // so that it cannot leave the group either
		end()
		lost.Remove()
		require.NoError(t, r.kafka.Restart())
		r.run(t, settings{}, r.handler("again", r.done))
		r.awaitCommitted(t)
		require.Equal(t, 40, r.ledger.accepted(topic))
		require.Len(t, r.of("again"), 40, "nothing had been committed")
	})
}
