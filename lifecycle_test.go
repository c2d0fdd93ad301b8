package inbox_test

import (
	"context"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// This test is not parallel, because it counts goroutines.
func TestManyStartsAndStopsLeakNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		open   func(testing.TB) *gorm.DB
		cycles int
	}{"sqlite": {fxtest.OpenDB, 300}, "postgres": {testenv.Postgres, 60}} {
		t.Run(name, func(t *testing.T) {
			db := tc.open(t)
			ib := inboxtest.New(t, db, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
				o.Cleanup.Retention = time.Hour
			}), inboxtest.Handlers(nothing("h")))
			pool, err := db.DB()
			require.NoError(t, err)
			ctx := context.Background()
			newest := func() (w models.Worker) {
				require.NoError(t, db.Order("id DESC").Limit(1).Find(&w).Error)
				return w
			}
			cycle := func(settle bool) {
				before := newest().ID
				require.NoError(t, ib.Start(ctx))
				if settle {
					inboxtest.Eventually(t, func() bool { return newest().ID != before }, "the worker registered")
				}
				require.NoError(t, ib.Stop(ctx))
				// database/sql ends a transaction whose context was cancelled in a goroutine of its own.
				inboxtest.Eventually(t, func() bool { return pool.Stats().InUse == 0 }, "no connection is in use after a stop")
				if settle {
					require.NotNil(t, newest().StoppedAt, "the worker stored that it stopped")
				}
			}
			const first = 10 // they make what later cycles reuse
			for range first {
				cycle(true)
			}
			before, opened := runtime.NumGoroutine(), pool.Stats().OpenConnections
			for i := range tc.cycles - first {
				cycle(i%5 == 0) // the others are stopped as they start
			}
			inboxtest.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+4 }, "no goroutine is left")
			require.LessOrEqual(t, pool.Stats().OpenConnections, opened+2)
		})
	}
}

func TestFailedStartLeavesNothingRunning(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib, err := inbox.New("test", d.DB, inboxtest.Handlers(nothing("h")))
		require.NoError(t, err)
		ctx := context.Background()
		for range 3 {
			require.ErrorIs(t, ib.Start(ctx), models.ErrSchemaMissing)
			require.False(t, ib.Health().Processor.Running)
		}
		require.NoError(t, ib.Stop(ctx))
		require.NoError(t, ib.Migrate(ctx))
		inboxtest.Start(t, ib)
	})
}

func TestStartChecksTheSchema(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ctx := context.Background()
		start := func(name string) error {
			ib, err := inbox.New(name, d.DB, inboxtest.Handlers(nothing("h")))
			require.NoError(t, err)
			return ib.Start(ctx)
		}
		err := start("orders")
		require.ErrorIs(t, err, models.ErrSchemaMissing)
		require.ErrorContains(t, err,
			"inbox \"orders\": inbox tables are missing (table prefix \"inbox_\"): set option Migrate")

		require.NoError(t, models.Migrate(ctx, d.DB, models.Naming{}, "orders"))
		err = start("billing")
		require.ErrorIs(t, err, models.ErrOtherInbox)
		require.ErrorContains(t, err, `theirs is named "orders", this one "billing"`)

		inboxtest.Exec(t, d.DB, `UPDATE inbox_meta SET "value" = '0' WHERE "key" = 'schema_version'`)
		require.ErrorIs(t, start("orders"), models.ErrSchemaMissing, "never finished")
		inboxtest.Exec(t, d.DB, `UPDATE inbox_meta SET "value" = '99' WHERE "key" = 'schema_version'`)
		newer, err := inbox.New("orders", d.DB, inboxtest.Handlers(nothing("h")))
		require.NoError(t, err)
		inboxtest.Start(t, newer) // a newer schema is fine: rolling deploys
	})
}

func TestStartWarnsAboutASmallPool(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		for open, warnings := range map[int]int{13: 1, 14: 0, 0: 0} {
			log, logs := inboxtest.Observe()
			ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), log, inboxtest.Handlers(nothing("h")))
			pool, err := d.DB.DB()
			require.NoError(t, err)
			pool.SetMaxOpenConns(open)
			require.NoError(t, ib.Start(context.Background()))
			require.NoError(t, ib.Stop(context.Background()))
			require.Equal(t, warnings, logs.FilterMessageSnippet("pool is smaller").Len(), "%d connections", open)
		}
	})
}

func TestStartLogsLanesSplitByADroppedKey(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		// The statuses come due after the test, so that the inboxes started here only check them.
		const later = `UPDATE inbox_handler_statuses SET next_attempt_at = ?`
		accept := func(id string, options ...handler.Option) {
			ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("mail", inboxtest.Nothing,
				append(options, handler.Ordered())...)))
			m := inboxtest.Message(id)
			m.OrderingKey = []byte("k")
			_, err := ib.Accept(context.Background(), m)
			require.NoError(t, err)
			inboxtest.Exec(t, d.DB, later, time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC))
		}
		warnedKeys := func(handlers ...*inbox.HandlerSpec) (keys []string) {
			log, logs := inboxtest.Observe()
			ib := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), log, inboxtest.Handlers(handlers...))
			require.NoError(t, ib.Start(context.Background()))
			require.NoError(t, ib.Stop(context.Background()))
			for _, entry := range logs.FilterMessageSnippet("out of order").All() {
				require.Equal(t, zap.ErrorLevel, entry.Level)
				require.Contains(t, entry.Message, "handler.LegacyKeys")
				keys = append(keys, entry.ContextMap()["handler_key"].(string))
			}
			return keys
		}
		accept("1", handler.LegacyKeys("post"))
		require.Empty(t, warnedKeys(inboxtest.Do("mail", inboxtest.Nothing, handler.Ordered(), handler.LegacyKeys("post"))))
		require.Equal(t, []string{"mail"}, warnedKeys(inboxtest.Do("mail", inboxtest.Nothing, handler.Ordered())))
		require.Empty(t, warnedKeys(inboxtest.Do("mail", inboxtest.Nothing)), "not ordered any more")
		require.Empty(t, warnedKeys(inboxtest.Do("stock", inboxtest.Nothing, handler.Ordered())), "another handler's")
		accept("2")
		require.Equal(t, []string{"mail"}, warnedKeys(inboxtest.Do("mail", inboxtest.Nothing, handler.Ordered()),
			inboxtest.Do("stock", inboxtest.Nothing, handler.Ordered())))
		require.Empty(t, warnedKeys(inboxtest.Do("mail", inboxtest.Nothing, handler.Ordered(), handler.LegacyKeys("post"))),
			"it is back")

		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("mail", inboxtest.Nothing, handler.Ordered(),
			handler.LegacyKeys("post"))))
		inboxtest.Exec(t, d.DB, `UPDATE inbox_handler_statuses SET next_attempt_at = NULL`)
		require.Equal(t, 2, inboxtest.Process(t, ib).Completed)
		require.Empty(t, warnedKeys(inboxtest.Do("mail", inboxtest.Nothing, handler.Ordered())), "nothing is pending")
	})
}

// Contract 3.2: SQLite obeys foreign keys only where the DSN says so.
func TestStartWarnsAboutDisabledForeignKeys(t *testing.T) {
	for pragma, warnings := range map[string]int{"": 1, "&_pragma=foreign_keys(0)&_foreign_keys=0": 1,
		"&_pragma=foreign_keys(1)&_foreign_keys=1": 0} { // each driver's own name
		log, logs := inboxtest.Observe()
		db := testenv.OpenSQLite(t, "file:"+filepath.Join(t.TempDir(), "inbox.db")+
			"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_journal_mode=WAL&_txlock=immediate"+pragma)
		ib := inboxtest.New(t, db, log, inboxtest.Handlers(nothing("a")))
		inboxtest.Start(t, ib)
		require.Equal(t, warnings, logs.FilterMessageSnippet("foreign keys are off").Len(), "DSN with %q", pragma)
	}
	log, logs := inboxtest.Observe()
	inboxtest.Start(t, inboxtest.New(t, testenv.Postgres(t), log, inboxtest.Handlers(nothing("a"))))
	require.Zero(t, logs.FilterMessageSnippet("foreign keys").Len(), "PostgreSQL")
}

// Contract 10.5: one line each, with the fields by which operators compare processes.
func TestStartAndStopEachLogOneLine(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		observe, logs := inboxtest.Observe()
		declared := []inbox.Option{observe, inbox.Configure(func(o *inbox.Options) { o.TablePrefix = "lines_" }),
			inbox.Channel("c", inbox.On("t", nothing("a"), nothing("b"))),
			inbox.Channel("direct", inbox.Direct(), inbox.Kafka(unreachableKafka), inbox.On("t", nothing("d")))}
		ib, err := inbox.New("orders", d.DB, append([]inbox.Option{inboxtest.Brisk()}, declared...)...)
		require.NoError(t, err)
		ctx := context.Background()
		for range 2 {
			require.NoError(t, ib.Start(ctx))
			require.NoError(t, ib.Start(ctx))
			worker := ib.Health().Processor.WorkerID
			require.NotEmpty(t, worker)
			require.NoError(t, ib.Stop(ctx))
			require.NoError(t, ib.Stop(ctx))
			lines := logs.TakeAll()
			info := slices.DeleteFunc(lines, func(l observer.LoggedEntry) bool {
				return l.Message != "inbox: started" && l.Message != "inbox: stopped"
			})
			require.Len(t, info, 2)
			mode := map[string]string{"sqlite": "exclusive", "postgres": "competing", "mysql": "competing"}[d.DB.Dialector.Name()]
			require.Equal(t, zap.InfoLevel, info[0].Level)
			require.Equal(t, map[string]any{"inbox": "orders", "mode": mode, "handler_keys": []any{"a", "b", "d"},
				"worker": worker, "schema": "", "table_prefix": "lines_",
				"channels": []any{"c (Inbox)", "direct (Direct)"}}, info[0].ContextMap())
			require.Equal(t, map[string]any{"inbox": "orders", "worker": worker}, info[1].ContextMap())
		}
	})
}

// TestWaitingCallsEndWithTheirContexts proves that no call waits longer than its caller allows for another that hangs.
func TestWaitingCallsEndWithTheirContexts(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("h")))
		pool, err := d.DB.DB()
		require.NoError(t, err)
		pool.SetMaxOpenConns(1)
		taken, err := pool.Conn(t.Context())
		require.NoError(t, err)
		hangs := func(call func(context.Context) error) (result chan error) {
			waited := pool.Stats().WaitCount
			result = make(chan error, 1)
			go func() { result <- call(context.Background()) }()
			inboxtest.Eventually(t, func() bool { return pool.Stats().WaitCount > waited }, "it waits for a connection")
			return result
		}
		accept := func(ctx context.Context) error {
			_, err := ib.Accept(ctx, inboxtest.Message("1"))
			return err
		}
		short := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			t.Cleanup(cancel)
			return ctx
		}
		check := hangs(accept)
		require.ErrorIs(t, accept(short()), context.DeadlineExceeded)
		require.Empty(t, check, "the first still waits")
		start := hangs(ib.Start)
		require.ErrorIs(t, ib.Stop(short()), context.DeadlineExceeded)
		require.ErrorIs(t, ib.Start(short()), context.DeadlineExceeded)
		require.Empty(t, start)
		require.NoError(t, taken.Close())
		require.NoError(t, <-check)
		require.ErrorContains(t, <-start, "stopped while it started")
		require.False(t, ib.Health().Running)
		require.NoError(t, ib.Start(t.Context()))
		require.NoError(t, ib.Stop(t.Context()))
	})
}
