package kafka

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/inplace"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/telemetry"
)

// once is a guard that remembers, in memory, what was done.
type once struct {
	mu    sync.Mutex
	done  map[string]bool
	held  string // the ID that somebody else is at
	asked atomic.Int32
}

func (g *once) Run(ctx context.Context, _ *handler.Handler, d handler.Delivery, run inplace.Attempt) error {
	g.mu.Lock()
	done, held := g.done[d.ID], g.held == d.ID
	g.mu.Unlock()
	switch {
	case held:
		g.asked.Add(1)
		return inplace.ErrInProgress
	case done:
		return nil
	}
	err := run(ctx, "", nil)
	if err == nil {
		g.mu.Lock()
		g.done[d.ID] = true
		g.mu.Unlock()
	}
	return err
}

func (g *once) hold(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = id
}

// Contract 8 can be built on what delivers in place: a redelivered duplicate is
// skipped, one in progress elsewhere is not acknowledged.
func TestGuardedDeliverySkipsDuplicatesAndDoesNotAcknowledgeWhatIsInProgress(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		r.ledger.sparse = true // duplicates are in the books once
		h := handler.New("h", func(ctx context.Context, m inboxtest.Bytes) error {
			defer r.leave(r.enter("h", m))
			return r.done(ctx, m)
		})
		registry, err := handler.NewRegistry([]handler.Subscription{{Channel: "c", Type: "t", Handler: h}})
		require.NoError(t, err)
		guard := &once{done: map[string]bool{}, held: "c"}
		start := func() *kafkaconsumer.Consumer {
			runner := inplace.New(inplace.Config{Channel: "c", Registry: registry, DB: r.database.DB, Guard: guard, MaxAttempts: 1, Concurrency: 10,
				MaxRetryDelay: time.Minute, StatementTimeout: patience, StuckHandlerGrace: time.Minute,
				Clock: clock.System{}, Logger: logger(t), Counters: &telemetry.Counters{}})
			cfg := config(r.kafka.Brokers(), topic)
			cfg.Decoder = envelope.DecoderConfig{Type: "t"}
			c, err := kafkaconsumer.NewDirect("c", cfg, runner, false, newLedger(), logger(t), nil)
			require.NoError(t, err)
			require.NoError(t, c.Start(t.Context()))
			t.Cleanup(func() { stop(t, c) })
			return c
		}
		r.send(t, 0, "a", "b", "a", "c", "d")
		lost := r.kafka.FailNext(kafkatest.OffsetCommitAPI, illegalGeneration, -1)
		first := start()
		eventually(t, "all before it is done", func() bool {
			partitions := first.Health().Partitions // none while it joins again, as it does for each lost commit
			return guard.asked.Load() > 2 && len(partitions) == 1 && partitions[0].Accepted == 3
		})
		stop(t, first)
		lost.Remove()
		require.Zero(t, r.committed(0), "its commits were lost")

		asked := guard.asked.Load()
		second := start()
		eventually(t, "it waits there again", func() bool { return guard.asked.Load() > asked+2 && r.committed(0) == 3 })
		require.Equal(t, int64(3), second.Health().Partitions[0].Accepted)
		guard.hold("")
		r.awaitCommitted(t)
		var ids []string
		for _, c := range r.of("h") {
			ids = append(ids, c.id)
		}
		require.Equal(t, []string{"a", "b", "c", "d"}, ids)
	})
}
