package kafka

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func TestStopAndStartInAnyOrderAndTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.consumer()
	stop(t, c)
	stop(t, c)
	require.ErrorIs(t, c.Start(t.Context()), kafkaconsumer.ErrStopped)
	c = r.consumer()
	require.NoError(t, c.Start(t.Context()))
	require.NoError(t, c.Start(t.Context()))
	r.produce(5, 0)
	r.awaitAll()
	stop(t, c)
	stop(t, c)
	require.ErrorIs(t, c.Start(t.Context()), kafkaconsumer.ErrStopped)
	require.Zero(t, r.kafka.Members(group), "it has left")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.consumer().Start(cancelled), context.Canceled)
}

func TestStopFinishesAndCommitsTheRunningAccept(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	entered, release := make(chan struct{}, 1), make(chan struct{})
	r.ledger.before = func(context.Context, []envelope.Received) error {
		entered <- struct{}{}
		<-release
		return nil
	}
	r.produce(50, 0)
	c := r.start()
	receive(t, entered)
	time.AfterFunc(200*time.Millisecond, func() { close(release) })
	stop(t, c)
	require.Equal(t, int64(50), r.committed(0))
	require.Zero(t, r.kafka.Members(group))
}

func TestStopDoesNotJoinAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	joins := atomic.Int32{}
	r.kafka.Observe(kmsg.JoinGroup, func() { joins.Add(1) })
	for round := range 20 {
		c := r.start()
		eventually(t, "running", func() bool { return c.State() == kafkaconsumer.StateRunning })
		stop(t, c)
		require.Equal(t, int32(round+1), joins.Load())
	}
}

// deadline returns the context of a stop.
func deadline(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

func TestStopIsBoundedInEveryPhase(t *testing.T) {
	hang := func(ctx context.Context, _ []envelope.Received) error { <-ctx.Done(); return ctx.Err() }
	for name, phase := range map[string]func(*testing.T, *rig) *kafkaconsumer.Consumer{
		"broker down": func(_ *testing.T, r *rig) *kafkaconsumer.Consumer { r.kafka.Stop(); return r.start() },
		"broker frozen before the first connection": func(_ *testing.T, r *rig) *kafkaconsumer.Consumer {
			r.kafka.Freeze()
			return r.start()
		},
		"broker frozen while running": func(_ *testing.T, r *rig) *kafkaconsumer.Consumer {
			c := r.start()
			r.awaitAll()
			r.kafka.Freeze()
			return c
		},
		"accept hangs": func(t *testing.T, r *rig) *kafkaconsumer.Consumer {
			r.ledger.before = hang
			c := r.start()
			eventually(t, "running", func() bool { calls, _ := r.ledger.stats(); return calls > 0 })
			return c
		},
		"accept hangs and broker is frozen": func(t *testing.T, r *rig) *kafkaconsumer.Consumer {
			r.ledger.before = hang
			c := r.start()
			eventually(t, "running", func() bool { calls, _ := r.ledger.stats(); return calls > 0 })
			r.kafka.Freeze()
			return c
		},
		"accept fails": func(t *testing.T, r *rig) *kafkaconsumer.Consumer {
			r.ledger.before = func(context.Context, []envelope.Received) error { return context.DeadlineExceeded }
			c := r.start()
			eventually(t, "failing", func() bool { return c.Health().AcceptErr != nil })
			return c
		},
		"topic is missing": func(t *testing.T, r *rig) *kafkaconsumer.Consumer {
			c := r.start(func(c *kafkaconsumer.Config) { c.Topics = []string{"missing"} })
			eventually(t, "missed", func() bool { return len(c.Health().MissingTopics) > 0 })
			return c
		},
		"joining": func(t *testing.T, r *rig) *kafkaconsumer.Consumer {
			r.kafka.FailNext(11, notCoordinator, -1)
			c := r.start()
			eventually(t, "failing", func() bool { return c.Health().GroupErr != nil })
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			r.produce(20, 0)
			c := phase(t, r)
			ctx, cancel := deadline(5 * time.Second)
			defer cancel()
			stopped := make(chan error, 1)
			go func() { stopped <- c.Stop(ctx) }()
			require.NoError(t, receive(t, stopped))
			require.Equal(t, kafkaconsumer.StateStopped, c.State())
		})
	}
}

func TestStopWithAnEndedContextStillStops(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.ledger.before = func(ctx context.Context, _ []envelope.Received) error { <-ctx.Done(); return ctx.Err() }
	r.produce(5, 0)
	c := r.start()
	eventually(t, "running", func() bool { calls, _ := r.ledger.stats(); return calls > 0 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, c.Stop(ctx))
	require.Equal(t, kafkaconsumer.StateStopped, c.State())
}

func TestStopReportsAnAcceptorThatIgnoresItsContext(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	release := make(chan struct{})
	r.ledger.before = func(context.Context, []envelope.Received) error { <-release; return nil }
	r.produce(5, 0)
	c := r.start()
	eventually(t, "running", func() bool { calls, _ := r.ledger.stats(); return calls > 0 })
	ctx, cancel := deadline(300 * time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Stop(ctx), context.DeadlineExceeded)
	close(release)
}

func TestStoppingAtAnyMomentLeaksNothing(t *testing.T) {
	r := newRig(t, 3)
	r.produce(50, 0, 1, 2)
	rounds := 150
	if testing.Short() {
		rounds = 30
	}
	running := goleak.IgnoreCurrent()
	for range rounds {
		c, err := kafkaconsumer.New("orders.events", config(r.kafka.Brokers(), topic), r.ledger, nil, nil)
		require.NoError(t, err)
		require.NoError(t, c.Start(t.Context()))
		await(t.Context(), rand.N(30*time.Millisecond)) // stops at a random moment, which is the point of this test
		stop(t, c)
	}
	goleak.VerifyNone(t, running)
	require.Zero(t, r.kafka.Members(group))
	r.start()
	r.awaitAll()
}

// await lets time pass when there is no condition to wait for.
func await(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
