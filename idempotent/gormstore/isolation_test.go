package gormstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// Each message is delivered three times at once, and all bodies change one row. Above READ
// COMMITTED only one of them could succeed at a time.
func TestNoBodyIsRepeatedUnderAnyIsolation(t *testing.T) {
	inboxtest.OnStrictPostgres(t, func(t *testing.T, d *inboxtest.Database, _ string) {
		const messages, copies = 20, 3
		r := newRig(t, d)
		unstated := inboxtest.UnstatedIsolation(t, d.DB)
		inboxtest.Exec(t, d.DB, `CREATE TABLE accounts (balance int)`)
		inboxtest.Exec(t, d.DB, `INSERT INTO accounts VALUES (0)`)
		var calls atomic.Int64
		outcomes := make(chan outcome, messages*copies)
		for i := range messages * copies {
			go func() {
				var o outcome
				o.duplicate, o.err = r.store.Run(context.Background(), run(fmt.Sprint(i/copies)), func(ctx context.Context) error {
					calls.Add(1)
					return handler.DB(ctx).Exec(`UPDATE accounts SET balance = balance + 1`).Error
				})
				outcomes <- o
			}()
		}
		duplicates := 0
		for range messages * copies {
			o := inboxtest.Receive(t, outcomes, "a run")
			require.NoError(t, o.err)
			if o.duplicate {
				duplicates++
			}
		}
		require.Equal(t, messages*(copies-1), duplicates)
		require.EqualValues(t, messages, calls.Load())
		var balance int
		require.NoError(t, d.DB.Raw(`SELECT balance FROM accounts`).Scan(&balance).Error)
		require.Equal(t, messages, balance)
		require.Empty(t, unstated())
	})
}

func TestBodyHasTheIsolationOfTheOption(t *testing.T) {
	inboxtest.OnStrictPostgres(t, func(t *testing.T, d *inboxtest.Database, _ string) {
		newRig(t, d)
		for want, level := range map[string]sql.IsolationLevel{
			"read committed": sql.LevelDefault, "repeatable read": sql.LevelRepeatableRead,
			"serializable": sql.LevelSerializable,
		} {
			var got string
			_, err := open(t, d.DB, func(o *gormstore.Options) {
				o.Isolation = level
			}).Run(t.Context(), run(want), func(ctx context.Context) error {
				return handler.DB(ctx).Raw("SELECT current_setting('transaction_isolation')").Scan(&got).Error
			})
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	})
}

// Contract 5.7: sessions that began while the database was read-only would stay so.
func TestRunsSucceedAfterTheDatabaseWasReadOnly(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		newRig(t, d) // makes the table
		db := d.Another(t)
		pool, err := db.DB()
		require.NoError(t, err)
		pool.SetMaxOpenConns(1)
		s := open(t, db)
		set := func(change string) {
			inboxtest.Exec(t, d.DB, `ALTER DATABASE `+d.DB.Migrator().CurrentDatabase()+change)
		}
		pool.SetMaxIdleConns(0) // closes what was open
		set(` SET default_transaction_read_only = on`)
		pool.SetMaxIdleConns(1)
		conn, err := pool.Conn(t.Context())
		require.NoError(t, err)
		require.NoError(t, conn.Close(), "the pool keeps it")
		set(` RESET default_transaction_read_only`)
		nothing := func(context.Context) error { return nil }
		_, err = s.Run(t.Context(), run("m"), nothing)
		require.ErrorContains(t, err, "25006")
		inboxtest.Eventually(t, func() bool { _, err := s.Run(t.Context(), run("m"), nothing); return err == nil },
			"a new session is not read-only")
	})
}
