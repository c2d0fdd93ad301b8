package gormstore_test

import (
	"context"
	"database/sql"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// within runs the message in a transaction of the caller, which ends as end says, whatever the
// result of the run.
func (r *rig) within(end error, messageID string, body func(ctx context.Context) error) (duplicate bool, err error) {
	r.Helper()
	ended := r.DB.Transaction(func(tx *gorm.DB) error {
		duplicate, err = r.store.Run(gormstore.WithTx(r.Context(), tx), run(messageID), body)
		require.NoError(r, tx.Exec(`INSERT INTO effects VALUES ('owner')`).Error, "the transaction goes on")
		return end
	})
	require.ErrorIs(r, ended, end)
	return duplicate, err
}

func TestCallersTransactionDecidesTheOutcome(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		duplicate, err := r.within(errBody, "1", effect("1", nil))
		require.NoError(t, err)
		require.False(t, duplicate)
		r.have()
		duplicate, err = r.within(nil, "1", effect("1", nil))
		require.NoError(t, err)
		require.False(t, duplicate)
		require.Equal(t, []string{"1", "owner"}, r.effects())
		require.Equal(t, []string{"1"}, r.markers())
		duplicate, err = r.within(nil, "1", effect("1", nil))
		require.NoError(t, err)
		require.True(t, duplicate)
		require.Equal(t, []string{"1", "owner", "owner"}, r.effects())
		r.skipped(r.store, "1")
	})
}

// After Check, the search path of a caller's transaction leads to no other markers.
func TestMarkersAreFoundUnderAnotherSearchPath(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		require.NoError(t, r.store.Check(t.Context()))
		require.NoError(t, models.Migrate(t.Context(), d.DB, models.Naming{Schema: "theirs"}, "theirs"))
		for again := range 2 {
			require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
				require.NoError(t, tx.Exec(`SET LOCAL search_path = theirs`).Error)
				ctx := gormstore.WithTx(t.Context(), tx)
				duplicate, err := r.store.Run(ctx, run("1"), func(context.Context) error { return nil })
				require.Equal(t, again == 1, duplicate)
				return err
			}))
		}
		require.Equal(t, []string{"1"}, r.markers())
	})
}

func TestFailedBodyLeavesNothingInTheCallersTransaction(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		failing := map[string]func(ctx context.Context) error{
			"its own error": effect("1", errBody),
			"an error of SQL": func(ctx context.Context) error {
				require.NoError(t, effect("1", nil)(ctx))
				return handler.DB(ctx).Exec(`INSERT INTO nowhere VALUES (1)`).Error
			},
			"a swallowed one": func(ctx context.Context) error {
				require.NoError(t, effect("1", nil)(ctx))
				handler.DB(ctx).Exec(`INSERT INTO nowhere VALUES (1)`)
				return nil
			},
			"the end of its transaction": func(ctx context.Context) error {
				require.NoError(t, effect("1", nil)(ctx))
				handler.DB(ctx).Commit()
				return nil
			},
		}
		for name, body := range failing {
			_, err := r.within(nil, "1", body)
			require.Error(t, err, name)
			require.NotContains(t, r.effects(), "1", name)
			require.Empty(t, r.markers(), name)
		}
		_, err := r.within(nil, "1", func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			require.NoError(t, effect("1", nil)(context.WithoutCancel(ctx)))
			return ctx.Err()
		})
		require.ErrorIs(t, err, context.Canceled)
		r.handled(r.store, "1")
		require.Equal(t, []string{"1"}, r.markers())
	})
}

func TestPanicOrGoexitLeavesNothingInTheCallersTransaction(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		for name, stop := range map[string]func(){"panic": func() { panic("boom") }, "end": runtime.Goexit} {
			tx := d.DB.Begin()
			require.NoError(t, tx.Error)
			ended := make(chan any, 1)
			go func() {
				defer func() { ended <- recover() }()
				_, _ = r.store.Run(gormstore.WithTx(t.Context(), tx), run("1"), func(ctx context.Context) error {
					if err := effect("1", nil)(ctx); err != nil {
						return err
					}
					stop()
					return nil
				})
			}()
			if value := inboxtest.Receive(t, ended, "the body's end"); name == "panic" {
				require.Equal(t, "boom", value, "it goes on to the caller")
			}
			require.NoError(t, tx.Commit().Error, name)
			r.have()
		}
		r.handled(r.store, "1")
	})
}

// Rows that are still open prevent the rollback to the savepoint, and would not prevent the commit.
func TestFailedSavepointRollbackRollsBackTheTransaction(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		tx := d.DB.Begin()
		require.NoError(t, tx.Error)
		_, err := r.store.Run(gormstore.WithTx(t.Context(), tx), run("1"), func(ctx context.Context) error {
			require.NoError(t, effect("1", nil)(ctx))
			rows, err := handler.DB(ctx).Raw(`SELECT n FROM generate_series(1, 1000000) n`).Rows()
			require.NoError(t, err)
			require.True(t, rows.Next()) // and stays open
			return errBody
		})
		require.ErrorIs(t, err, errBody)
		require.ErrorContains(t, err, "the whole transaction was rolled back")
		require.ErrorIs(t, tx.Commit().Error, sql.ErrTxDone)
		r.have()
		r.handled(r.store, "1")

		// Without a transaction of the caller it is undone in any case.
		_, err = r.store.Run(t.Context(), run("2"), func(ctx context.Context) error {
			require.NoError(t, effect("2", nil)(ctx))
			rows, err := handler.DB(ctx).Raw(`SELECT n FROM generate_series(1, 1000000) n`).Rows()
			require.NoError(t, err)
			require.True(t, rows.Next())
			return errBody
		})
		require.ErrorIs(t, err, errBody)
		r.have("1")
	})
}

func TestRunsShareAndNestInTheCallersTransaction(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			ctx := gormstore.WithTx(t.Context(), tx)
			for _, id := range []string{"1", "2", "1"} {
				duplicate, err := r.store.Run(ctx, run(id), func(ctx context.Context) error {
					if id == "2" { // in the same transaction, by its own savepoint
						_, err := r.store.Run(ctx, run("lost"), effect("lost", errBody))
						require.ErrorIs(t, err, errBody)
						_, err = r.store.Run(ctx, run("3"), effect("3", nil))
						require.NoError(t, err)
					}
					return effect(id, nil)(ctx)
				})
				require.NoError(t, err)
				require.Equal(t, id == "1" && len(effectsOf(t, tx)) > 1, duplicate, id)
			}
			return nil
		}))
		r.have("1", "2", "3")

		// Within a run's own transaction, too.
		_, err := r.store.Run(t.Context(), run("4"), func(ctx context.Context) error {
			_, err := r.store.Run(gormstore.WithTx(ctx, handler.DB(ctx)), run("5"), effect("5", nil))
			require.NoError(t, err)
			_, err = r.store.Run(gormstore.WithTx(ctx, handler.DB(ctx)), run("6"), effect("6", errBody))
			require.ErrorIs(t, err, errBody)
			return effect("4", nil)(ctx)
		})
		require.NoError(t, err)
		r.have("1", "2", "3", "4", "5")
		_, err = r.store.Run(t.Context(), run("7"), func(ctx context.Context) error {
			_, err := r.store.Run(gormstore.WithTx(ctx, handler.DB(ctx)), run("8"), effect("8", nil))
			require.NoError(t, err)
			return errBody
		})
		require.ErrorIs(t, err, errBody)
		r.have("1", "2", "3", "4", "5")
	})
}

func effectsOf(t *testing.T, tx *gorm.DB) (found []string) {
	require.NoError(t, tx.Raw(`SELECT message_id FROM effects`).Scan(&found).Error)
	return found
}

// With PrepareStmt GORM prepares the statements of a transaction, too.
func TestCallersTransactionOfPreparedStatementsIsJoined(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		for name, db := range map[string]*gorm.DB{
			"prepared": testenv.Open(t, postgres.Open(d.DSN()), gorm.Config{PrepareStmt: true}),
			"simple":   testenv.Open(t, bySimpleProtocol(d.DSN()), gorm.Config{}),
		} {
			r.DB, r.store = db, open(t, db)
			for range 2 {
				_, err := r.within(nil, name, effect(name, errBody))
				require.ErrorIs(t, err, errBody)
			}
			require.NotContains(t, r.markers(), name)
			_, err := r.store.Run(t.Context(), run("in "+name), func(ctx context.Context) error {
				ctx = gormstore.WithTx(ctx, handler.DB(ctx))
				_, err := r.store.Run(ctx, run(name), effect(name, errBody))
				require.ErrorIs(t, err, errBody)
				_, err = r.store.Run(ctx, run(name), effect(name, nil))
				return err
			})
			require.NoError(t, err)
			require.Contains(t, r.markers(), name)
			require.Contains(t, r.effects(), name)
		}
	})
}

// Locks and isolation levels exist on PostgreSQL only.
func TestConflictInACallersTransaction(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		joined := func(id string, level sql.IsolationLevel) (chan outcome, *gorm.DB) {
			tx := d.DB.Begin(&sql.TxOptions{Isolation: level})
			require.NoError(t, tx.Exec(`SELECT 1`).Error) // takes the snapshot
			done := make(chan outcome, 1)
			go func() {
				var o outcome
				o.duplicate, o.err = r.store.Run(gormstore.WithTx(t.Context(), tx), run(id), effect(id, nil))
				done <- o
			}()
			return done, tx
		}
		first := r.begin(r.store, "1")
		second, tx := joined("1", sql.LevelReadCommitted)
		r.waiting(1)
		require.Equal(t, outcome{}, first.end(t, nil))
		require.Equal(t, outcome{duplicate: true}, inboxtest.Receive(t, second, "the second"))
		require.NoError(t, tx.Commit().Error)
		r.have("1")

		for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
			id := level.String()
			first = r.begin(r.store, id)
			second, tx = joined(id, level)
			r.waiting(1)
			require.Equal(t, outcome{}, first.end(t, nil))
			o := inboxtest.Receive(t, second, "the second")
			require.True(t, store.IsSerialization(o.err), "it surfaces: %v", o.err)
			require.ErrorContains(t, o.err, `message "`+id+`"`)
			require.False(t, o.duplicate)
			require.NoError(t, tx.Rollback().Error)
		}
		r.have("1", "Repeatable Read", "Serializable")

		first = r.begin(r.store, "2")
		r.store = open(t, d.DB, func(o *gormstore.Options) { o.LockTimeout = 100 * time.Millisecond })
		_, err := r.within(nil, "2", effect("2", nil))
		require.ErrorIs(t, err, idempotent.ErrInProgress)
		require.Equal(t, outcome{}, first.end(t, nil))
		require.Equal(t, []string{"1", "2", "Repeatable Read", "Serializable", "owner"}, r.effects())
	})
}

// On SQLite a transaction that has read can no longer write once another one has written.
func TestConflictInACallersTransactionOnSQLite(t *testing.T) {
	t.Parallel()
	dsn := testenv.SQLiteDSN(t)
	d := &inboxtest.Database{Dialect: "sqlite", DB: testenv.OpenSQLite(t, dsn)}
	r := newRig(t, d)
	deferred := testenv.OpenSQLite(t, strings.TrimSuffix(dsn, "&_txlock=immediate"))
	s := open(t, deferred)
	tx := deferred.Begin()
	require.NoError(t, tx.Error)
	require.Empty(t, effectsOf(t, tx))
	r.handled(r.store, "1")
	_, err := s.Run(gormstore.WithTx(t.Context(), tx), run("2"), effect("2", nil))
	require.True(t, store.IsBusy(err), err)
	require.NotErrorIs(t, err, idempotent.ErrInProgress, "no waiting helps")
	require.NoError(t, tx.Rollback().Error)
	r.handled(s, "2")
	r.have("1", "2")
}

func TestWithTxRefusesForeignTransactions(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		other := testenv.SQLite(t).Begin()
		require.NoError(t, other.Error)
		defer other.Rollback()
		for _, each := range []struct {
			tx       *gorm.DB
			expected string
		}{
			{nil, "no open transaction"}, {d.DB, "no open transaction"}, {other, "of another connection pool"},
		} {
			for name, err := range map[string]error{
				"run":  second(r.store.Run(gormstore.WithTx(t.Context(), each.tx), run("1"), effect("1", nil))),
				"mark": second(r.store.Mark(t.Context(), each.tx, run("1"))),
			} {
				require.ErrorContains(t, err, each.expected, name)
			}
		}
		r.have()
	})
}

func second(_ bool, err error) error { return err }

func TestMarkWritesOnlyTheMarker(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		mark := func(end error) (duplicate bool) {
			ended := d.DB.Transaction(func(tx *gorm.DB) error {
				var err error
				duplicate, err = r.store.Mark(t.Context(), tx, run("1"))
				require.NoError(t, err)
				return end
			})
			require.ErrorIs(t, ended, end)
			return duplicate
		}
		require.False(t, mark(errBody))
		require.Empty(t, r.markers())
		require.False(t, mark(nil))
		require.Equal(t, []string{"1"}, r.markers())
		require.True(t, mark(nil))
		r.skipped(r.store, "1")
	})
}

// All joined runs use the same name for their savepoint. After a failure PostgreSQL refuses further
// statements in the transaction.
func TestNestedRunUndoesOnlyItsSavepoint(t *testing.T) {
	t.Parallel()
	r := newRig(t, &inboxtest.Database{Dialect: "sqlite", DB: testenv.SQLite(t)})
	joined := func(ctx context.Context, messageID string, body func(context.Context) error) error {
		return second(r.store.Run(gormstore.WithTx(ctx, handler.DB(ctx)), run(messageID), body))
	}
	fail := func(ctx context.Context) {
		require.Error(t, handler.DB(ctx).Exec(`INSERT INTO nowhere VALUES (1)`).Error)
	}
	_, err := r.store.Run(t.Context(), run("outer"), func(ctx context.Context) error {
		require.ErrorIs(t, joined(ctx, "undone", func(ctx context.Context) error {
			fail(ctx)
			require.NoError(t, joined(ctx, "released", effect("released", nil)))
			return errBody
		}), errBody)
		return effect("outer", nil)(ctx)
	})
	require.NoError(t, err, "what failed was undone by its savepoint")
	r.have("outer")

	_, err = r.store.Run(t.Context(), run("swallowing"), func(ctx context.Context) error {
		require.ErrorIs(t, joined(ctx, "undone", func(ctx context.Context) error {
			require.NoError(t, effect("undone", nil)(ctx))
			return errBody
		}), errBody)
		fail(ctx)
		require.ErrorIs(t, joined(ctx, "undone too", effect("undone too", errBody)), errBody)
		return effect("swallowing", nil)(ctx)
	})
	require.ErrorContains(t, err, "swallowed an error of its transaction", "it was no savepoint's to undo")
	r.have("outer")
}
