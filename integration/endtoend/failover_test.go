package endtoend

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/integration/servers"
	times "github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// limit is the timeout of a statement while the standby does not respond. A delivery may take a
// little longer.
const limit = 2 * time.Second

// failover is a server whose commits wait for a standby.
type failover struct {
	t                *testing.T
	primary, standby *servers.Postgres
	db               *gorm.DB // on the current primary
}

func newFailover(t *testing.T) *failover {
	f := &failover{t: t, primary: disturbedPostgres(t)}
	f.standby, f.db = standbyOf(t, f.primary), f.open(f.primary, "")
	prepareWays(t, f.db)
	return f
}

// prepareWays makes the tables that the ways write to.
func prepareWays(t *testing.T, db *gorm.DB) {
	t.Helper()
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "failover"))
	require.NoError(t, db.Exec("CREATE TABLE done (message_id text)").Error)
}

func (f *failover) open(server *servers.Postgres, parameters string) *gorm.DB {
	f.t.Helper()
	db, err := gorm.Open(postgres.Open(server.DSN()+parameters), &gorm.Config{Logger: logger.Discard})
	require.NoError(f.t, err)
	f.t.Cleanup(func() {
		pool, err := db.DB()
		require.NoError(f.t, err)
		require.NoError(f.t, pool.Close())
	})
	return db
}

// count runs a query that assigns no transaction ID, so it does not wait for the standby.
func (f *failover) count(query string, args ...any) (n int64) {
	f.t.Helper()
	require.NoError(f.t, f.db.Raw("SELECT count(*) FROM "+query, args...).Scan(&n).Error)
	return n
}

func (f *failover) await(what string, condition func() bool) {
	f.t.Helper()
	require.Eventually(f.t, condition, patience, 10*time.Millisecond, what)
}

// toTheStandby kills the primary, losing everything that the frozen standby has not received, and
// promotes the standby.
func (f *failover) toTheStandby() {
	require.NoError(f.t, f.primary.Kill())
	require.NoError(f.t, f.standby.Kill())
	require.NoError(f.t, f.standby.Start())
	require.NoError(f.t, f.standby.Promote())
	f.db = f.open(f.standby, "")
}

// way is one way to acknowledge a message, which deliver does by returning nil.
type way struct {
	deliver func(ctx context.Context, id string) error
	stored  string // where the message is then stored, selected by its ID
}

func effect(tx *gorm.DB, id string) error {
	return tx.Exec("INSERT INTO done (message_id) VALUES (?)", id).Error
}

const (
	marked   = "inbox_markers m JOIN done d ON d.message_id = m.message_id WHERE m.message_id = ?"
	accepted = "inbox_messages WHERE id = ?"
)

func (f *failover) ways() map[string]way { return waysOn(f.t, f.db) }

// waysOn returns all ways on a database that has the inbox's tables and the table done. Each gives up
// within limit.
func waysOn(t *testing.T, db *gorm.DB) map[string]way {
	t.Helper()
	remembers, err := gormstore.New(db, func(o *gormstore.Options) {
		o.StatementTimeout = limit
		o.LockTimeout = limit
	})
	require.NoError(t, err)
	wrapped, err := gormstore.Wrap(remembers, "wrapped", func(_ context.Context, tx *gorm.DB, id string) error {
		return effect(tx, id)
	},
		idempotent.KeyBy(func(id string) (string, error) { return id, nil }))
	require.NoError(t, err)
	inTx := func(ctx context.Context, work func(tx *gorm.DB) error) error {
		return db.WithContext(ctx).Transaction(work)
	}
	ib, err := inbox.New("failover", db, inbox.Configure(func(o *inbox.Options) {
		o.Processor.StatementTimeout = limit
	}), inbox.Channel("c", inbox.On("t",
		inbox.Func("h", func(context.Context, handler.Message[[]byte]) error { return nil }))))
	require.NoError(t, err)
	tables, err := stores.New(db, models.Naming{}, store.Options{})
	require.NoError(t, err)
	key := func(id string) idempotent.Key { return idempotent.Key{MessageID: id, HandlerKey: "h"} }
	return map[string]way{
		"gormstore.Wrap": {deliver: wrapped, stored: marked},
		"a caller's transaction": {deliver: func(ctx context.Context, id string) error {
			return inTx(ctx, func(tx *gorm.DB) error {
				_, err := remembers.Run(gormstore.WithTx(ctx, tx), idempotent.Run{Key: key(id)}, func(ctx context.Context) error {
					return effect(handler.DB(ctx), id)
				})
				return err
			})
		}, stored: marked},
		"Processed": {deliver: func(ctx context.Context, id string) error {
			if found, err := remembers.Processed(ctx, key(id)); err != nil || found {
				return err
			}
			_, err := remembers.Run(ctx, idempotent.Run{Key: key(id)}, func(ctx context.Context) error {
				return effect(handler.DB(ctx), id)
			})
			return err
		}, stored: marked},
		"Inline": {deliver: inlineOn(t, db, remembers), stored: marked},
		"Accept": {deliver: func(ctx context.Context, id string) error {
			_, err := ib.Accept(ctx, handler.RawMessage{Channel: "c", Type: "t", ID: id})
			return err
		}, stored: accepted},
		"a rejected record": {deliver: func(ctx context.Context, id string) error {
			_, err := tables.Accept(ctx, store.AcceptBatch{Now: time.Now(),
				Rejected: []models.RejectedMessage{{Channel: id, Topic: "t", Reason: "bad"}}})
			return err
		}, stored: "inbox_rejected_messages WHERE channel = ?"},
		"a gap": {deliver: func(ctx context.Context, id string) error {
			_, err := tables.KeepGap(ctx, models.Gap{ID: uuid.NewString(), Channel: id, Topic: "t", ToOffset: 1,
				FoundAt: time.Now()})
			return err
		}, stored: "inbox_gaps WHERE channel = ?"},
	}
}

// inlineOn returns the delivery of an Inline channel without its transport.
func inlineOn(t *testing.T, db *gorm.DB, remembers idempotent.Store) func(ctx context.Context, id string) error {
	t.Helper()
	h := handler.NewTx("inline", func(_ context.Context, tx *gorm.DB, m handler.Message[[]byte]) error {
		return effect(tx, m.ID)
	})
	registry, err := registry.New([]registry.Subscription{{Channel: "c", Type: "t", Handler: h}})
	require.NoError(t, err)
	memory, err := synchronous.NewMemory(db, remembers, h, nil, nil)
	require.NoError(t, err)
	runner := synchronous.New(synchronous.Config{Channel: "c", Registry: registry, DB: db,
		Memories: map[*handler.Handler]*synchronous.Memory{h: memory}, MaxRetries: 1, Concurrency: 1,
		MaxRetryDelay:    time.Second,
		StatementTimeout: limit, StuckHandlerGrace: time.Minute, Clock: times.System{}, Logger: zaptest.NewLogger(t),
		Counters: &telemetry.Counters{}})
	return func(ctx context.Context, id string) error {
		return runner.Deliver(ctx, nil, envelope.Received{Record: envelope.Record{Topic: "t"},
			Messages: []handler.RawMessage{{Channel: "c", Type: "t", ID: id}}})
	}
}

// TestAcknowledgedWritesSurviveTheLossOfThePrimary proves contract 2: with a synchronous standby,
// a message is acknowledged only once the standby has it. That includes a redelivered message that
// is found on the primary, where the wait for its original commit was given up.
func TestAcknowledgedWritesSurviveTheLossOfThePrimary(t *testing.T) {
	t.Parallel()
	f := newFailover(t)
	deliver := func(w way, id string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 3*limit)
		defer cancel()
		return w.deliver(ctx, id)
	}
	ways := f.ways()
	for name, w := range ways {
		for range 2 {
			require.NoError(t, deliver(w, "before "+name), name)
		}
	}

	// The first commit without the standby is that of a handler's transaction.
	var frozen atomic.Bool
	ib, err := inbox.New("failover", f.db, inbox.Configure(func(o *inbox.Options) {
		o.Processor.StatementTimeout = limit
	}), inbox.Channel("c", inbox.On("tx",
		inbox.Tx("tx", func(_ context.Context, tx *gorm.DB, m handler.Message[[]byte]) error {
			if !frozen.Swap(true) {
				require.NoError(t, f.standby.Freeze())
			}
			return effect(tx, m.ID)
		}))))
	require.NoError(t, err)
	_, err = ib.Accept(t.Context(), handler.RawMessage{Channel: "c", Type: "tx", ID: "handled"})
	require.NoError(t, err)
	processing, stop := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_, _ = ib.ProcessPending(processing)
	}()
	const completed = "inbox_handler_statuses WHERE message_id = 'handled' AND completed_at IS NOT NULL"
	f.await("the handler's commit is on the primary", func() bool { return f.count(completed) == 1 })

	acknowledged := map[string]string{}
	for name, w := range ways {
		acknowledged["before "+name] = w.stored
		id := "silent " + name
		for range 2 {
			if deliver(w, id) == nil {
				acknowledged[id] = w.stored
			}
			f.await(id+" is on the primary", func() bool { return f.count(w.stored, id) > 0 })
		}
	}
	stop()
	<-stopped
	f.toTheStandby()
	var lost []string
	for id, stored := range acknowledged {
		if f.count(stored, id) != 1 {
			lost = append(lost, id)
		}
	}
	require.Empty(t, lost, "acknowledged, and gone with the primary")
	require.Equal(t, f.count(completed), ib.Counters().Processed, "what was called processed is")

	again := f.ways()
	for name, w := range again {
		for _, id := range []string{"before " + name, "silent " + name} {
			require.NoError(t, deliver(w, id), id)
			require.EqualValues(t, 1, f.count(w.stored, id), id)
		}
	}
}

// TestCommitWithoutItsStandbyIsAFailure proves contract 2: PostgreSQL reports a commit
// as successful, with a warning, when the wait for its standby was cancelled. The inbox treats it
// as an error.
func TestCommitWithoutItsStandbyIsAFailure(t *testing.T) {
	t.Parallel()
	f := newFailover(t)
	large := bytes.Repeat([]byte("x"), 100<<10)
	accept := func(ctx context.Context, db *gorm.DB, content []byte) error {
		ib, err := inbox.New("failover", db, inbox.Channel("c", inbox.On("t",
			inbox.Func("h", func(context.Context, handler.Message[[]byte]) error { return nil }))))
		require.NoError(t, err)
		_, err = ib.Accept(ctx, handler.RawMessage{Channel: "c", Type: "t", ID: uuid.NewString(), Content: content})
		return err
	}
	commits := map[string]func(ctx context.Context, db *gorm.DB) error{
		"Accept":          func(ctx context.Context, db *gorm.DB) error { return accept(ctx, db, nil) },
		"Accept of large": func(ctx context.Context, db *gorm.DB) error { return accept(ctx, db, large) },
		"gormstore": func(ctx context.Context, db *gorm.DB) error {
			remembers, err := gormstore.New(db, func(o *gormstore.Options) { o.StatementTimeout = limit })
			require.NoError(t, err)
			_, err = remembers.Run(ctx, idempotent.Run{Key: idempotent.Key{MessageID: uuid.NewString(), HandlerKey: "h"}},
				func(ctx context.Context) error {
					return effect(handler.DB(ctx), "m")
				})
			return err
		},
	}
	for name, commit := range commits {
		for _, mode := range []string{"cache_statement", "simple_protocol"} {
			application := strings.ReplaceAll(fmt.Sprint(mode, "_", name), " ", "_")
			db := f.open(f.primary, "&application_name="+application+"&default_query_exec_mode="+mode)
			require.NoError(t, commit(t.Context(), db), "%s by %s while the standby answers", name, mode)
			require.NoError(t, f.standby.Freeze())
			answer := make(chan error, 1)
			go func() { answer <- commit(t.Context(), db) }()
			cancelled := int64(0)
			f.await("an answer", func() bool {
				var n int64
				require.NoError(t,
					f.db.Raw("SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = left(?, 63)",
						application).Scan(&n).Error)
				cancelled += n
				return len(answer) > 0
			})
			require.Error(t, <-answer, "%s by %s", name, mode)
			require.Positive(t, cancelled)
			require.NoError(t, f.standby.Thaw())
			require.NoError(t, commit(t.Context(), db), "%s by %s, on the same pool", name, mode)
		}
	}
}
