package gormstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

func TestMarkerAndEffectAreAtomic(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		r := newRig(t, d, func(o *gormstore.Options) { o.Clock = clock })
		_, err := r.store.Run(t.Context(), run("1"), effect("1", errBody))
		require.Same(t, errBody, err, "it is returned as it is")
		r.have()

		require.PanicsWithValue(t, "boom", func() {
			_, _ = r.store.Run(t.Context(), run("1"), func(ctx context.Context) error {
				require.NoError(t, effect("1", nil)(ctx))
				panic("boom")
			})
		})
		r.have()

		r.handled(r.store, "1")
		r.skipped(r.store, "1")
		r.have("1")
		var marker models.Marker
		require.NoError(t, d.DB.Take(&marker).Error)
		require.Equal(t, []string{"1", "h", "order.placed"},
			[]string{marker.MessageID, marker.HandlerKey, marker.MessageType})
		require.True(t, marker.ProcessedAt.Equal(inboxtest.Noon), marker.ProcessedAt)
		require.True(t, marker.ExpiresAt.Equal(inboxtest.Noon.Add(time.Hour)), marker.ExpiresAt)
	})
}

func TestBodyFindsItsTransaction(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		duplicate, err := r.store.Run(t.Context(), run("1"), func(ctx context.Context) error {
			require.Empty(t, r.markers(), "no one else sees it")
			var own int64
			require.NoError(t, handler.DB(ctx).Model(&models.Marker{}).Count(&own).Error)
			require.EqualValues(t, 1, own, "the marker is first")
			return handler.DB(ctx).Transaction(func(tx *gorm.DB) error { // a savepoint
				return tx.Exec(`INSERT INTO effects VALUES ('1')`).Error
			})
		})
		require.NoError(t, err)
		require.False(t, duplicate)
		r.have("1")
	})
}

// There are two processes, and the test counts effects, not calls.
func TestFiftyDuplicatesInTwoProcessesHaveOneEffect(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, func(o *gormstore.Options) { o.LockTimeout = time.Minute })
		other := open(t, d.Another(t), func(o *gormstore.Options) { o.LockTimeout = time.Minute })
		var calls []chan outcome
		for range 25 {
			calls = append(calls, r.beside(r.store, "1"), r.beside(other, "1"))
		}
		handled := 0
		for _, call := range calls {
			o := inboxtest.Receive(t, call, "a call")
			require.NoError(t, o.err)
			if !o.duplicate {
				handled++
			}
		}
		require.Equal(t, 1, handled)
		r.have("1")
	})
}

// On SQLite a test cannot observe that a connection waits.
func TestDuplicateWaitsForTheFirstsTransaction(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		first := r.begin(r.store, "1")
		second := r.beside(r.store, "1")
		r.waiting(1)
		require.Equal(t, outcome{}, first.end(t, nil))
		require.Equal(t, outcome{duplicate: true}, inboxtest.Receive(t, second, "the second call"))
		r.have("1")

		first = r.begin(r.store, "2")
		second = r.beside(r.store, "2")
		r.waiting(1)
		require.Equal(t, outcome{err: errBody}, first.end(t, errBody))
		require.Equal(t, outcome{}, inboxtest.Receive(t, second, "the second call"))
		r.have("1", "2")
	})
}

func TestOtherKeysDoNotWait(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		first := r.begin(r.store, "1")
		r.handled(r.store, "2")
		other := run("1")
		other.Key.HandlerKey = "another"
		duplicate, err := r.store.Run(t.Context(), other, func(context.Context) error { return nil })
		require.NoError(t, err)
		require.False(t, duplicate)
		require.Equal(t, outcome{}, first.end(t, nil))
	})
}

func TestWaitForTheFirstEndsWithLockTimeout(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		hasty := open(t, d.Another(t), func(o *gormstore.Options) {
			o.LockTimeout = 300 * time.Millisecond
			o.StatementTimeout = 24 * time.Hour
		})
		if d.Dialect == "sqlite" { // its driver waits as long as busy_timeout says
			hasty = open(t, testenv.OpenSQLite(t, testenv.BusyTimeout(d.DSN(), 20*time.Millisecond)),
				func(o *gormstore.Options) { o.LockTimeout = 300 * time.Millisecond })
		}
		first := r.begin(r.store, "1")
		began := time.Now()
		duplicate, err := hasty.Run(t.Context(), run("1"), effect("1", nil))
		require.ErrorIs(t, err, idempotent.ErrInProgress)
		require.ErrorContains(t, err, `message "1", handler key "h"`)
		require.False(t, duplicate)
		require.GreaterOrEqual(t, time.Since(began), 290*time.Millisecond)
		require.Equal(t, outcome{}, first.end(t, nil))
		inboxtest.Eventually(t, func() bool { // a busy machine may take longer to begin than LockTimeout
			duplicate, err = hasty.Run(t.Context(), run("1"), effect("1", nil))
			return !errors.Is(err, idempotent.ErrInProgress)
		}, "the second call waits no longer")
		require.NoError(t, err)
		require.True(t, duplicate)
		r.have("1")
	})
}

// The statement is not cancelled, which would cost the connection.
func TestWaitForTheFirstEndsBeforeTheContextDoes(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		first := r.begin(r.store, "1")
		// A tenth of it is left for the response, which must suffice on a busy machine.
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		_, err := r.store.Run(ctx, run("1"), effect("1", nil))
		require.ErrorIs(t, err, idempotent.ErrInProgress)
		require.NoError(t, ctx.Err())
		require.Equal(t, outcome{}, first.end(t, nil))
	})
}

func TestLongestTimeoutsAndFarDeadlinesAreKept(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, func(o *gormstore.Options) {
			o.LockTimeout = 24 * time.Hour
			o.StatementTimeout = 24 * time.Hour
		})
		r.handled(r.store, "1")
		for _, away := range []time.Duration{100 * 365 * 24 * time.Hour, math.MaxInt64} {
			ctx, cancel := context.WithTimeout(t.Context(), away)
			defer cancel()
			_, err := r.store.Run(ctx, run(away.String()), effect(away.String(), nil))
			require.NoError(t, err)
			duplicate, err := r.store.Run(ctx, run("1"), effect("1", nil))
			require.NoError(t, err)
			require.True(t, duplicate)
		}
	})
}

// Raising the other option would not make the wait any longer.
func TestConnectionWaitErrorNamesItsOption(t *testing.T) {
	t.Parallel()
	r := newRig(t, &inboxtest.Database{Dialect: "sqlite", DB: testenv.SQLite(t)},
		func(o *gormstore.Options) { o.LockTimeout = 50 * time.Millisecond })
	pool, err := r.DB.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(1)
	connection, err := pool.Conn(t.Context())
	require.NoError(t, err)
	_, err = r.store.Run(t.Context(), run("1"), effect("1", nil))
	require.NoError(t, connection.Close())
	require.ErrorIs(t, err, idempotent.ErrInProgress)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "no transaction within LockTimeout of 50ms")
	r.have()
}

func TestWaitForTheSQLiteLockEndsWithItsContext(t *testing.T) {
	t.Parallel()
	dsn := testenv.SQLiteDSN(t)
	r := newRig(t, &inboxtest.Database{Dialect: "sqlite", DB: testenv.OpenSQLite(t, dsn)})
	s := open(t, testenv.OpenSQLite(t, testenv.BusyTimeout(dsn, 20*time.Millisecond)), func(o *gormstore.Options) {
		o.LockTimeout = 24 * time.Hour
	})
	first := r.begin(r.store, "1")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := s.Run(ctx, run("1"), effect("1", nil)) // while the first still runs
	require.ErrorIs(t, err, idempotent.ErrInProgress)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, outcome{}, first.end(t, nil))
	r.have("1")
}

// The setting is the transaction's; SQLite has none.
func TestLockTimeoutAppliesOnlyToTheMarker(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		for name, db := range map[string]*gorm.DB{
			"plain": testenv.OpenPostgres(t, d.DSN()+"&options=-c%20lock_timeout%3D4321"),
			"prepared": testenv.Open(t, postgres.Open(d.DSN()+"&options=-c%20lock_timeout%3D4321"),
				gorm.Config{PrepareStmt: true}),
			"simple": testenv.Open(t, bySimpleProtocol(d.DSN()+"&options=-c%20lock_timeout%3D4321"), gorm.Config{}),
		} {
			s := open(t, db, func(o *gormstore.Options) { o.LockTimeout = 123 * time.Millisecond })
			is := func(db *gorm.DB, when string) {
				t.Helper()
				var setting string
				require.NoError(t, db.Raw(`SHOW lock_timeout`).Scan(&setting).Error)
				require.Equal(t, "4321ms", setting, "%s: %s", name, when)
			}
			look := func(ctx context.Context) error { is(handler.DB(ctx), "in a body"); return nil }
			_, err := open(t, db).Run(t.Context(), run(name), look)
			require.NoError(t, err)
			busy := r.begin(r.store, name+" busy")
			require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
				ctx := gormstore.WithTx(t.Context(), tx)
				_, err := s.Run(ctx, run(name+" joined"), look)
				require.NoError(t, err)
				is(tx, "after a joined run")
				duplicate, err := s.Run(ctx, run(name), look)
				require.NoError(t, err)
				require.True(t, duplicate)
				is(tx, "after a duplicate")
				_, err = s.Run(ctx, run(name+" busy"), look)
				require.ErrorIs(t, err, idempotent.ErrInProgress)
				is(tx, "after a wait in vain")
				_, err = s.Mark(t.Context(), tx, run(name+" marked"))
				require.NoError(t, err)
				is(tx, "after a marker")
				return nil
			}))
			is(db, "of the session")
			require.ErrorIs(t, busy.end(t, errBody).err, errBody)
		}
	})
}

func TestUniqueViolationInTheBodyIsAFailure(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		if d.Dialect == "mysql" {
			return // it judges constraints at once
		}
		r := newRig(t, d)
		inboxtest.Exec(t, d.DB, `CREATE TABLE accounts (id varchar(200) PRIMARY KEY)`)
		inboxtest.Exec(t, d.DB, `INSERT INTO accounts VALUES ('1')`)
		for _, statement := range []string{
			`INSERT INTO accounts VALUES ('1')`,
			`INSERT INTO inbox_markers SELECT * FROM inbox_markers`, // even this
		} {
			for name, ctx := range r.contexts() {
				duplicate, err := r.store.Run(ctx, run("1"), func(ctx context.Context) error {
					return handler.DB(ctx).Exec(statement).Error
				})
				require.True(t, store.IsUniqueViolation(err), "%s: %v", name, err)
				require.False(t, duplicate, name)
			}
		}
		r.have()
		r.handled(r.store, "1")
	})
}

// contexts returns one context without and one with a transaction of the caller, which the caller
// commits whatever the result of the run.
func (r *rig) contexts() map[string]context.Context {
	r.Helper()
	tx := r.DB.Begin()
	require.NoError(r, tx.Error)
	if r.Dialect == "sqlite" { // has one writer at a time
		require.NoError(r, tx.Rollback().Error)
		return map[string]context.Context{"own": r.Context()}
	}
	r.Cleanup(func() { tx.Commit() })
	return map[string]context.Context{"own": r.Context(), "joined": gormstore.WithTx(r.Context(), tx)}
}

// If a statement fails while its rows are read, the test's handler does not notice.
func TestAbortedTransactionIsAFailure(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		swallow := func(ctx context.Context) error {
			require.NoError(t, effect("1", nil)(ctx))
			rows, err := handler.DB(ctx).Raw(`SELECT 1 / (2 - n) FROM generate_series(1, 3) n`).Rows()
			if err != nil {
				return errors.New("it should fail later")
			}
			for rows.Next() {
			}
			return rows.Close()
		}
		_, err := r.store.Run(t.Context(), run("1"), swallow)
		require.Error(t, err)
		require.NotErrorIs(t, err, idempotent.ErrLost)
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			_, err = r.store.Run(gormstore.WithTx(t.Context(), tx), run("1"), swallow)
			return nil
		}))
		require.Error(t, err)
		r.have()
	})
}

// A deferred constraint refuses the commit; nothing may remain on the connection.
func TestRefusedCommitIsAFailure(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		if d.Dialect == "mysql" {
			return // it judges constraints at once
		}
		r := newRig(t, d)
		inboxtest.Exec(t, d.DB, `CREATE TABLE accounts (id varchar(200) PRIMARY KEY)`)
		inboxtest.Exec(t, d.DB,
			`CREATE TABLE transfers (id varchar(200) REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED)`)
		_, err := r.store.Run(t.Context(), run("1"), func(ctx context.Context) error {
			require.NoError(t, effect("1", nil)(ctx))
			return handler.DB(ctx).Exec(`INSERT INTO transfers VALUES ('nobody')`).Error
		})
		require.Error(t, err)
		require.NotErrorIs(t, err, idempotent.ErrLost, "it is known")
		r.have()
		r.handled(r.store, "1")
		r.have("1")
	})
}

// Contract 3.7: only an inbox needs connections for anything but handlers' transactions.
func TestReceiverWithoutAnInboxUsesAllConnections(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		const size = 6
		db := d.Another(t)
		pool, err := db.DB()
		require.NoError(t, err)
		pool.SetMaxOpenConns(size)
		s := open(t, db)
		var all []underway
		for i := range size {
			all = append(all, r.begin(s, fmt.Sprint(i)))
		}
		for _, each := range all {
			require.Equal(t, outcome{}, each.end(t, nil))
		}
	})
}

// With a single connection all calls wait for it.
func TestPoolOfOneConnectionIsEnough(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		one := d.Another(t)
		pool, err := one.DB()
		require.NoError(t, err)
		pool.SetMaxOpenConns(1)
		s := open(t, one)
		var calls []chan outcome
		for range 10 {
			calls = append(calls, r.beside(s, "1"))
		}
		for _, call := range calls {
			require.NoError(t, inboxtest.Receive(t, call, "a call").err)
		}
		r.have("1")
	})
}
