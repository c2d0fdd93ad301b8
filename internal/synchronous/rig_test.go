package synchronous_test

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
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

var errBoom = errors.New("boom")

// newRunner returns a runner of these handlers for type "t".
func newRunner(
	t *testing.T, db *gorm.DB, change func(*synchronous.Config), handlers ...*handler.Handler,
) (*synchronous.Runner, *telemetry.Counters) {
	t.Helper()
	var subs []registry.Subscription
	for _, h := range handlers {
		subs = append(subs, registry.Subscription{Channel: "c", Type: "t", Handler: h})
	}
	registry, err := registry.New(subs)
	require.NoError(t, err)
	cfg := synchronous.Config{Channel: "c", Registry: registry, DB: db, MaxRetries: 3, Concurrency: 10,
		MaxRetryDelay:    time.Minute,
		StatementTimeout: inboxtest.Patience, StuckHandlerGrace: time.Minute, Backoff: func(int) time.Duration {
			return time.Millisecond
		},
		Clock: clock.System{}, Logger: zaptest.NewLogger(t), Counters: &telemetry.Counters{}}
	if change != nil {
		change(&cfg)
	}
	return synchronous.New(cfg), cfg.Counters
}

// received returns a record with one message.
func received(partition int, id string) envelope.Received {
	return envelope.Received{Record: envelope.Record{Topic: "topic", Partition: partition},
		Messages: []handler.RawMessage{{Channel: "c", Type: "t", ID: id, Content: []byte(id)}}}
}

// deliver calls Deliver without interrupting it.
func deliver(t *testing.T, r *synchronous.Runner, partition int, id string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), inboxtest.Patience)
	defer cancel()
	return r.Deliver(ctx, nil, received(partition, id))
}

// effects creates a table that accepts each message once, and returns a function that reads it.
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

// remember makes a store remember what the handlers of the channel have processed.
func remember(t *testing.T, c *synchronous.Config, s idempotent.Store, opts ...idempotent.Option) {
	t.Helper()
	c.Memories = map[*handler.Handler]*synchronous.Memory{}
	for h := range c.Registry.Handlers() {
		m, err := synchronous.NewMemory(c.DB, s, h,
			append([]idempotent.Option{idempotent.Configure(func(o *idempotent.Options) {
				o.Logger = c.Logger
			})}, opts...),
			nil)
		require.NoError(t, err)
		c.Memories[h] = m
	}
}

// memory is a store that keeps its markers outside the database.
type memory struct {
	idempotent.Store // which is never called

	mu    sync.Mutex
	state map[string]string // "running" or "done", by handler key and message ID
	asked int
}

func newMemory() *memory { return &memory{state: map[string]string{}} }

func (s *memory) Run(
	ctx context.Context, run idempotent.Run, body func(ctx context.Context) error,
) (duplicate bool, err error) {
	key := run.Key.HandlerKey + " " + run.Key.MessageID
	switch s.begin(key) {
	case "done":
		return true, nil
	case "running":
		return false, idempotent.ErrInProgress
	}
	err = body(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.state, key); err == nil {
		s.state[key] = "done"
	}
	return false, err
}

func (s *memory) begin(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	before := s.state[key]
	if before == "" {
		s.state[key] = "running"
	}
	return before
}

func (s *memory) set(key, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state[key] = state
}

func (s *memory) times() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}
