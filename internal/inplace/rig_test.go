package inplace_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/inplace"
	"github.com/gorm-inbox/inbox/telemetry"
)

var errBoom = errors.New("boom")

// newRunner runs these handlers for type "t".
func newRunner(t *testing.T, db *gorm.DB, change func(*inplace.Config), handlers ...*handler.Handler) (*inplace.Runner, *telemetry.Counters) {
	t.Helper()
	var subs []handler.Subscription
	for _, h := range handlers {
		subs = append(subs, handler.Subscription{Channel: "c", Type: "t", Handler: h})
	}
	registry, err := handler.NewRegistry(subs)
	require.NoError(t, err)
	cfg := inplace.Config{Channel: "c", Registry: registry, DB: db, MaxAttempts: 3, Concurrency: 10, MaxRetryDelay: time.Minute,
		StatementTimeout: inboxtest.Patience, StuckHandlerGrace: time.Minute, Backoff: func(int) time.Duration { return time.Millisecond },
		Clock: clock.System{}, Logger: zaptest.NewLogger(t), Counters: &telemetry.Counters{}}
	if change != nil {
		change(&cfg)
	}
	return inplace.New(cfg), cfg.Counters
}

// received is a record of one message.
func received(partition int, id string) envelope.Received {
	return envelope.Received{Record: envelope.Record{Topic: "topic", Partition: partition}, Messages: []handler.RawMessage{{Channel: "c", Type: "t", ID: id, Content: []byte(id)}}}
}

// deliver is a delivery that nothing interrupts.
func deliver(t *testing.T, r *inplace.Runner, partition int, id string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), inboxtest.Patience)
	defer cancel()
	return r.Deliver(ctx, nil, received(partition, id))
}

// effects makes a table that takes each message once, and reads it.
func effects(t *testing.T, db *gorm.DB) func() []string {
	t.Helper()
	inboxtest.Exec(t, db, "CREATE TABLE effects (message_id varchar(200) PRIMARY KEY)")
	return func() []string {
		var ids []string
		require.NoError(t, db.Table("effects").Order("message_id").Pluck("message_id", &ids).Error)
		return ids
	}
}

func write(db *gorm.DB, id string) error {
	return db.Exec("INSERT INTO effects (message_id) VALUES (?)", id).Error
}

// memory is a Guard as one that keeps its markers outside the database: around
// the attempt.
type memory struct {
	mu    sync.Mutex
	state map[string]string // "running" or "done", by handler key and message ID
	asked int
}

func newMemory() *memory { return &memory{state: map[string]string{}} }

func (g *memory) Run(ctx context.Context, h *handler.Handler, d handler.Delivery, run inplace.Attempt) error {
	key := h.Key() + " " + d.ID
	switch g.begin(key) {
	case "done":
		return nil
	case "running":
		return inplace.ErrInProgress
	}
	err := run(ctx, "", nil)
	g.mu.Lock()
	defer g.mu.Unlock()
	if delete(g.state, key); err == nil {
		g.state[key] = "done"
	}
	return err
}

func (g *memory) begin(key string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	before := g.state[key]
	if before == "" {
		g.state[key] = "running"
	}
	return before
}

func (g *memory) set(key, state string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state[key] = state
}

func (g *memory) times() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked
}

// markers is a Guard as one that keeps its markers in the database: first in
// the handler's transaction.
type markers struct{}

var errDone = errors.New("there is a marker")

func newMarkers(t *testing.T, db *gorm.DB) markers {
	t.Helper()
	inboxtest.Exec(t, db, "CREATE TABLE markers (message_id varchar(200), handler_key varchar(200), PRIMARY KEY (message_id, handler_key))")
	return markers{}
}

func (markers) Run(ctx context.Context, h *handler.Handler, d handler.Delivery, run inplace.Attempt) error {
	err := run(ctx, "", func(_ context.Context, tx *gorm.DB) error {
		inserted := tx.Exec("INSERT INTO markers (message_id, handler_key) VALUES (?, ?) ON CONFLICT DO NOTHING", d.ID, h.Key())
		if inserted.Error == nil && inserted.RowsAffected == 0 {
			return errDone
		}
		return inserted.Error
	})
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}
