package kafka

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// once is a store that remembers processed messages in memory.
type once struct {
	idempotent.Store // never called

	mu    sync.Mutex
	done  map[string]bool
	held  string // the ID that is in progress elsewhere
	asked atomic.Int32
}

func (g *once) Run(
	ctx context.Context, run idempotent.Run, body func(ctx context.Context) error,
) (duplicate bool, err error) {
	id := run.Key.MessageID
	g.mu.Lock()
	done, held := g.done[id], g.held == id
	g.mu.Unlock()
	switch {
	case held:
		g.asked.Add(1)
		return false, idempotent.ErrInProgress
	case done:
		return true, nil
	}
	err = body(ctx)
	if err == nil {
		g.mu.Lock()
		g.done[id] = true
		g.mu.Unlock()
	}
	return false, err
}

func (g *once) hold(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = id
}

// TestInlineDeliverySkipsOnlyCompletedDuplicates proves that contract 8 can
// be built on synchronous delivery: a redelivered duplicate is skipped, and a message in progress
// elsewhere is not acknowledged.
func TestInlineDeliverySkipsOnlyCompletedDuplicates(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		r.ledger.sparse = true // the ledger has duplicates once
		h := handler.New("h", func(ctx context.Context, m inboxtest.Bytes) error {
			defer r.leave(r.enter("h", m))
			return r.done(ctx, m)
		})
		registry, err := registry.New([]registry.Subscription{{Channel: "c", Type: "t", Handler: h}})
		require.NoError(t, err)
		store := &once{done: map[string]bool{}, held: "c"}
		memory, err := synchronous.NewMemory(r.database.DB, store, h, nil, nil)
		require.NoError(t, err)
		start := func() *kafkaconsumer.Consumer {
			runner := synchronous.New(synchronous.Config{Channel: "c", Registry: registry, DB: r.database.DB,
				Memories: map[*handler.Handler]*synchronous.Memory{h: memory}, MaxRetries: 1, Concurrency: 10,
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
		lost := r.kafka.FailNext(kmsg.OffsetCommit, illegalGeneration, -1)
		first := start()
		eventually(t, "all before it is done", func() bool {
			partitions := first.Health().Partitions // empty while it joins again, as it does after each lost commit
			return store.asked.Load() > 2 && len(partitions) == 1 && partitions[0].Accepted == 3
		})
		stop(t, first)
		lost.Remove()
		require.Zero(t, r.committed(0), "its commits were lost")

		asked := store.asked.Load()
		second := start()
		eventually(t, "it waits there again", func() bool { return store.asked.Load() > asked+2 && r.committed(0) == 3 })
		require.Equal(t, int64(3), second.Health().Partitions[0].Accepted)
		store.hold("")
		r.awaitCommitted(t)
		var ids []string
		for _, c := range r.of("h") {
			ids = append(ids, c.id)
		}
		require.Equal(t, []string{"a", "b", "c", "d"}, ids)
	})
}
