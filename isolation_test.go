package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest/observer"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// levelOf returns the isolation level of the transaction, or of a statement outside a transaction.
func levelOf(t testing.TB, db *gorm.DB) (level string) {
	t.Helper()
	require.NoError(t, db.Raw("SELECT current_setting('transaction_isolation')").Scan(&level).Error)
	return level
}

// isolationWarnings returns the log lines about the default isolation level.
func isolationWarnings(logs *observer.ObservedLogs) []observer.LoggedEntry {
	return logs.FilterFieldKey("isolation").All()
}

// Two workers process messages that four callers accept concurrently. All transactional handlers change one row, which
// above READ COMMITTED only one of them could commit.
func TestLoadChargesNoAttemptUnderAnyIsolation(t *testing.T) {
	inboxtest.OnStrictPostgres(t, func(t *testing.T, d *inboxtest.Database, level string) {
		const messages, chunk = 200, 10
		keys := []string{"group", "ordered", "plain", "tx"}
		inboxtest.Exec(t, d.DB, "CREATE TABLE totals (handler_key text PRIMARY KEY, n int NOT NULL)")
		for _, key := range keys {
			inboxtest.Exec(t, d.DB, "INSERT INTO totals VALUES (?, 0)", key)
		}
		var calls, repeats atomic.Int64
		add := func(tx *gorm.DB, key string, m inboxtest.Bytes) error {
			calls.Add(1)
			if m.Attempt > 1 {
				repeats.Add(1)
			}
			return tx.Exec("UPDATE totals SET n = n + 1 WHERE handler_key = ?", key).Error
		}
		inTx := func(key string) func(context.Context, *gorm.DB, inboxtest.Bytes) error {
			return func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error { return add(tx, key, m) }
		}
		require.NoError(t, models.Migrate(t.Context(), d.DB, models.Naming{}, "test"))
		unstated := inboxtest.UnstatedIsolation(t, d.DB)
		var inboxes []*inbox.Inbox
		for _, db := range []*gorm.DB{d.DB, d.Another(t)} {
			log, logs := inboxtest.Observe()
			ib := inboxtest.New(t, db, inboxtest.Brisk(), log, inbox.Configure(func(o *inbox.Options) {
				o.Cleanup.Retention = 1
			}), inboxtest.Handlers(
				inboxtest.Tx("tx", inTx("tx")),
				inboxtest.Tx("group", inTx("group"), handler.TxGroup(5)),
				inboxtest.Tx("ordered", inTx("ordered"), handler.Ordered()),
				inboxtest.Do("plain", func(_ context.Context, m inboxtest.Bytes) error {
					calls.Add(1)
					return nil
				})))
			inboxtest.Start(t, ib)
			require.Len(t, isolationWarnings(logs), 1)
			require.Equal(t, level, isolationWarnings(logs)[0].ContextMap()["isolation"])
			inboxes = append(inboxes, ib)
		}

		var accepting sync.WaitGroup
		var accepted atomic.Int64
		for caller := range 4 {
			accepting.Add(1)
			go func() {
				defer accepting.Done()
				for from := 0; from < messages; from += chunk {
					batch := make([]handler.RawMessage, chunk)
					for i := range batch {
						batch[i] = inboxtest.Message(fmt.Sprint(from + i))
						batch[i].OrderingKey = []byte{byte(i % 3)}
					}
					results, err := inboxes[caller%2].Accept(context.Background(), batch...)
					if err != nil {
						t.Errorf("accept: %v", err)
						return
					}
					for _, r := range results {
						if r.Outcome == handler.OutcomeAccepted {
							accepted.Add(1)
						}
					}
				}
			}()
		}
		accepting.Wait()
		require.EqualValues(t, messages, accepted.Load())
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, inboxes[0]) }, "everything is completed")
		for _, s := range inboxtest.Statuses(t, inboxes[0]) {
			require.Zero(t, s.ErrorCount, "%s: %v", s.HandlerKey, s.LastError)
			require.Zero(t, s.AbandonedCount)
		}
		require.EqualValues(t, len(keys)*messages, calls.Load(), "no attempt was repeated")
		require.Zero(t, repeats.Load())
		var totals []int
		require.NoError(t, d.DB.Raw("SELECT n FROM totals WHERE handler_key <> 'plain'").Scan(&totals).Error)
		require.Equal(t, []int{messages, messages, messages}, totals)

		deleted, err := inboxes[0].Cleanup(context.Background())
		require.NoError(t, err)
		require.EqualValues(t, messages, deleted.Messages)
		require.Empty(t, unstated())
	})
}

// Operators retry and discard while workers claim and complete the retried statuses.
func TestOperatorActionsWorkUnderAnyIsolation(t *testing.T) {
	inboxtest.OnStrictPostgres(t, func(t *testing.T, d *inboxtest.Database, _ string) {
		const messages = 40
		var passes atomic.Bool
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(
			inboxtest.Tx("retried", func(context.Context, *gorm.DB, inboxtest.Bytes) error {
				if !passes.Load() {
					return handler.Poison(errors.New("bad"))
				}
				return nil
			}),
			inboxtest.Do("discarded", func(context.Context, inboxtest.Bytes) error {
				return handler.Poison(errors.New("bad"))
			})))
		unstated := inboxtest.UnstatedIsolation(t, d.DB)
		inboxtest.Start(t, ib)
		for i := range messages {
			inboxtest.Accept(t, ib, fmt.Sprint(i))
		}
		poisoned := func() (n int64) {
			require.NoError(t, ib.DB().Table(ib.Tables().HandlerStatuses()).Where("is_poisoned").Count(&n).Error)
			return n
		}
		inboxtest.Eventually(t, func() bool { return poisoned() == 2*messages }, "all is poisoned")
		passes.Store(true)

		var acting sync.WaitGroup
		act := func(do func(o *ops.Ops) error) {
			acting.Add(1)
			go func() {
				defer acting.Done()
				o, err := ib.Ops()
				if err == nil {
					err = do(o)
				}
				if err != nil {
					t.Errorf("operator: %v", err)
				}
			}()
		}
		for range 2 {
			act(func(o *ops.Ops) error {
				_, err := o.RetryMatching(context.Background(), "a", ops.Filter{HandlerKeys: []string{"retried"}},
					ops.Bulk{ChunkSize: 3})
				return err
			})
			act(func(o *ops.Ops) error {
				_, err := o.DiscardMatching(context.Background(), "b", ops.Filter{HandlerKeys: []string{"discarded"}},
					ops.Bulk{ChunkSize: 3})
				return err
			})
			act(func(o *ops.Ops) error {
				_, err := o.Overview(context.Background())
				return err
			})
		}
		acting.Wait()
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "what was retried is completed")
		for _, s := range inboxtest.Statuses(t, ib) {
			want := 0
			if s.HandlerKey == "discarded" {
				want = 1
			}
			require.Equal(t, want, s.ErrorCount, "%s: %v", s.HandlerKey, s.LastError)
		}
		require.Empty(t, unstated())
	})
}

// A program that only calls ProcessPending never starts the inbox.
func TestDrainWithoutStartWorksUnderAnyIsolation(t *testing.T) {
	inboxtest.OnStrictPostgres(t, func(t *testing.T, d *inboxtest.Database, _ string) {
		log, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, log, inboxtest.Handlers(inboxtest.Tx("h",
			func(_ context.Context, tx *gorm.DB, _ inboxtest.Bytes) error {
				require.Equal(t, "read committed", levelOf(t, tx))
				return nil
			})))
		inboxtest.Accept(t, ib, "1")
		inboxtest.Process(t, ib)
		require.True(t, inboxtest.AllCompleted(t, ib))
		require.Len(t, isolationWarnings(logs), 1, "of the first call")
	})
}

func TestStartWarnsAboutDefaultIsolation(t *testing.T) {
	t.Run("once, with the source of the setting", func(t *testing.T) {
		inboxtest.OnStrictPostgres(t, func(t *testing.T, d *inboxtest.Database, level string) {
			log, logs := inboxtest.Observe()
			ib := inboxtest.New(t, d.DB, log, inbox.Configure(func(o *inbox.Options) {
				o.Processor.TxIsolation = sql.LevelRepeatableRead
			}),
				inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
			for range 2 {
				inboxtest.Start(t, ib)()
				found := isolationWarnings(logs)
				require.Len(t, found, 1)
				var role, database, source string
				require.NoError(t, d.DB.Raw("SELECT current_user").Scan(&role).Error)
				require.NoError(t, d.DB.Raw("SELECT current_database()").Scan(&database).Error)
				require.NoError(t,
					d.DB.Raw("SELECT source FROM pg_settings WHERE name = 'default_transaction_isolation'").Scan(&source).Error)
				require.Contains(t, []string{"user", "database"}, source)
				require.Equal(t, map[string]any{"inbox": "test", "role": role, "database": database, "isolation": level,
					"setting_of":         source,
					"handlers_isolation": "repeatable read"}, found[0].ContextMap())
				logs.TakeAll()
			}
		})
	})
	t.Run("and not of READ COMMITTED", func(t *testing.T) {
		inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
			log, logs := inboxtest.Observe()
			inboxtest.Start(t, inboxtest.New(t, d.DB, log, inbox.Configure(func(o *inbox.Options) {
				o.Processor.TxIsolation = sql.LevelSerializable
			}),
				inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing))))
			require.Empty(t, isolationWarnings(logs))
		})
	})
}

func TestHandlerTransactionsUseTheirIsolation(t *testing.T) {
	inboxtest.OnStrictPostgres(t, func(t *testing.T, d *inboxtest.Database, strict string) {
		for want, options := range map[string][]inbox.Option{
			"read committed":  nil,
			"repeatable read": {inbox.Configure(func(o *inbox.Options) { o.Processor.TxIsolation = sql.LevelRepeatableRead })},
			"serializable":    {inbox.Configure(func(o *inbox.Options) { o.Processor.TxIsolation = sql.LevelSerializable })},
		} {
			var got string
			in := func(_ context.Context, tx *gorm.DB, _ inboxtest.Bytes) error {
				got = levelOf(t, tx)
				return nil
			}
			for kind, h := range map[string]*inbox.HandlerSpec{
				"tx":    inboxtest.Tx("tx "+want, in),
				"group": inboxtest.Tx("group "+want, in, handler.TxGroup(2)),
				"batch": inbox.TxBatch("batch "+want, 2, func(ctx context.Context, tx *gorm.DB, ms []inboxtest.Bytes) error {
					return in(ctx, tx, ms[0])
				}),
			} {
				got = ""
				ib := inboxtest.New(t, d.DB, append(options, inboxtest.Handlers(h))...)
				inboxtest.Accept(t, ib, kind+want)
				require.Equal(t, 1, inboxtest.Process(t, ib).Completed)
				require.Equal(t, want, got, kind)
			}
		}
		require.Equal(t, strict, levelOf(t, d.DB), "the application's own sessions are left as they are")
	})
}

// Two handlers each read what the other writes, so one of them must not commit. PostgreSQL reports that at its COMMIT.
func TestSerializationFailureAtCommitIsRepeatedUncharged(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		inboxtest.Exec(t, d.DB, "CREATE TABLE duties (name text PRIMARY KEY, present boolean NOT NULL)")
		for _, group := range []bool{false, true} {
			inboxtest.Exec(t, d.DB, "TRUNCATE duties")
			inboxtest.Exec(t, d.DB, "INSERT INTO duties VALUES ('a', true), ('b', true)")
			var both sync.WaitGroup
			both.Add(2)
			var calls atomic.Int64
			leave := func(name string) func(context.Context, *gorm.DB, inboxtest.Bytes) error {
				var first atomic.Bool
				first.Store(true)
				return func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
					calls.Add(1)
					var present int
					if err := tx.Raw("SELECT count(*) FROM duties WHERE present").Scan(&present).Error; err != nil {
						return err
					}
					if present == 2 {
						if err := tx.Exec("UPDATE duties SET present = false WHERE name = ?", name).Error; err != nil {
							return err
						}
					}
					if first.Swap(false) {
						both.Done()
						both.Wait()
					}
					return nil
				}
			}
			options := []handler.Option{}
			if group {
				options = append(options, handler.TxGroup(2))
			}
			key := func(name string) string { return fmt.Sprint(name, group) }
			ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
				o.Processor.TxIsolation = sql.LevelSerializable
			}), inboxtest.Handlers(
				inboxtest.Tx(key("a"), leave("a"), options...), inboxtest.Tx(key("b"), leave("b"), options...)))
			id := fmt.Sprint(group)
			inboxtest.Accept(t, ib, id)
			// All six immediate attempts may run before the first one's commit ends: then the status is released.
			inboxtest.Eventually(t, func() bool {
				require.Zero(t, inboxtest.Process(t, ib).Failed)
				return inboxtest.AllCompleted(t, ib)
			}, "both have completed")
			require.GreaterOrEqual(t, calls.Load(), int64(3),
				"one of them ran again, more than once if the first was not quite over")
			for _, name := range []string{"a", "b"} {
				s := inboxtest.Status(t, ib, id, key(name))
				require.Zero(t, s.ErrorCount)
				require.Zero(t, s.AbandonedCount)
			}
			var present int
			require.NoError(t, d.DB.Raw("SELECT count(*) FROM duties WHERE present").Scan(&present).Error)
			require.Equal(t, 1, present)
		}
	})
}

func TestUnsupportedTxIsolationIsRefused(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		refused := map[sql.IsolationLevel]string{
			sql.LevelLinearizable:    "option TxIsolation = Linearizable: must be Default, Read Committed, Repeatable Read or Serializable",
			sql.LevelReadUncommitted: "option TxIsolation = Read Uncommitted: must be Default, Read Committed, Repeatable Read or Serializable",
		}
		if d.Dialect == "sqlite" {
			const only = "option TxIsolation = %s: must be Default or Serializable on sqlite"
			refused[sql.LevelReadCommitted] = fmt.Sprintf(only, sql.LevelReadCommitted)
			refused[sql.LevelRepeatableRead] = fmt.Sprintf(only, sql.LevelRepeatableRead)
		}
		for level := sql.LevelDefault; level <= sql.LevelLinearizable; level++ {
			_, err := inbox.New("test", d.DB, inbox.Configure(func(o *inbox.Options) {
				o.Processor.TxIsolation = level
			}), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
			switch want, bad := refused[level]; {
			case bad:
				require.ErrorContains(t, err, want)
			case level == sql.LevelWriteCommitted || level == sql.LevelSnapshot:
				require.ErrorContains(t, err, "option TxIsolation = "+level.String())
			default:
				require.NoError(t, err)
			}
		}
	})
}

// SQLite's transactions are always serializable, so the driver is asked for no level.
func TestSerializableRunsOnSQLite(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		inboxtest.Exec(t, d.DB, "CREATE TABLE effects (id varchar(20))")
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Processor.TxIsolation = sql.LevelSerializable
		}), inboxtest.Handlers(
			inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				return tx.Exec("INSERT INTO effects VALUES (?)", m.ID).Error
			})))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, 1, inboxtest.Process(t, ib).Completed)
	})
}
