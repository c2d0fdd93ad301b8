package synchronous_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Handlers of several partitions change one row. Above READ COMMITTED only one of them could
// succeed at a time.
func TestNoAttemptIsRepeatedUnderAnyIsolation(t *testing.T) {
	inboxtest.OnStrictPostgres(t, func(t *testing.T, d *inboxtest.Database, _ string) {
		const partitions, records = 5, 10
		inboxtest.Exec(t, d.DB, `CREATE TABLE accounts (balance int)`)
		inboxtest.Exec(t, d.DB, `INSERT INTO accounts VALUES (0)`)
		var calls atomic.Int64
		r, counters := newRunner(t, d.DB, nil, handler.NewTx("h",
			func(_ context.Context, tx *gorm.DB, _ inboxtest.Bytes) error {
				calls.Add(1)
				return tx.Exec(`UPDATE accounts SET balance = balance + 1`).Error
			}))
		results := make(chan error, partitions)
		for partition := range partitions {
			go func() {
				var err error
				for i := 0; i < records && err == nil; i++ {
					err = r.Deliver(context.Background(), nil, received(partition, fmt.Sprint(partition, i)))
				}
				results <- err
			}()
		}
		for range partitions {
			require.NoError(t, inboxtest.Receive(t, results, "a partition"))
		}
		require.EqualValues(t, partitions*records, calls.Load())
		require.Zero(t, counters.Load(telemetry.Released))
	})
}

func TestSynchronousTransactionHasTheIsolationOfTheOption(t *testing.T) {
	inboxtest.OnStrictPostgres(t, func(t *testing.T, d *inboxtest.Database, _ string) {
		for want, level := range map[string]sql.IsolationLevel{
			"read committed": sql.LevelDefault, "repeatable read": sql.LevelRepeatableRead,
			"serializable": sql.LevelSerializable,
		} {
			var got string
			r, _ := newRunner(t, d.DB, func(c *synchronous.Config) {
				c.TxIsolation = level
			}, handler.NewTx("h", func(_ context.Context, tx *gorm.DB, _ inboxtest.Bytes) error {
				return tx.Raw("SELECT current_setting('transaction_isolation')").Scan(&got).Error
			}))
			require.NoError(t, deliver(t, r, 0, want))
			require.Equal(t, want, got)
		}
	})
}

// Each of the two transactions reads what the other writes; PostgreSQL detects that at the commit.
func TestSynchronousSerializationFailureIsRepeatedUncharged(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		inboxtest.Exec(t, d.DB, "CREATE TABLE duties (name text PRIMARY KEY, present boolean NOT NULL)")
		inboxtest.Exec(t, d.DB, "INSERT INTO duties VALUES ('0', true), ('1', true)")
		var calls atomic.Int64
		var both sync.WaitGroup
		both.Add(2)
		var met [2]sync.Once // passed by each at its first call
		r, counters := newRunner(t, d.DB, func(c *synchronous.Config) {
			c.MaxRetries, c.TxIsolation = 1, sql.LevelSerializable
		},
			handler.NewTx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				calls.Add(1)
				var present int
				if err := tx.Raw("SELECT count(*) FROM duties WHERE present").Scan(&present).Error; err != nil || present < 2 {
					return err
				}
				if err := tx.Exec("UPDATE duties SET present = false WHERE name = ?", m.ID).Error; err != nil {
					return err
				}
				met[m.ID[0]-'0'].Do(func() {
					both.Done()
					both.Wait()
				})
				return nil
			}))
		results := make(chan error, 2)
		for partition := range 2 {
			go func() { results <- r.Deliver(context.Background(), nil, received(partition, fmt.Sprint(partition))) }()
		}
		for range 2 {
			require.NoError(t, inboxtest.Receive(t, results, "a partition"))
		}
		require.GreaterOrEqual(t, calls.Load(), int64(3),
			"one of them ran again, more than once if the first was not quite over")
		require.Zero(t, counters.Load(telemetry.Failed))
	})
}
