package processor_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

// effects creates a table of the application with one row per effect, and returns a function that
// reads it.
func effects(t *testing.T, d *inboxtest.Database) func() []string {
	t.Helper()
	inboxtest.Exec(t, d.DB, "CREATE TABLE effects(id varchar(200))")
	return func() (ids []string) {
		require.NoError(t, d.DB.Table("effects").Order("id").Pluck("id", &ids).Error)
		return ids
	}
}

func write(tx *gorm.DB, id string) error {
	return tx.Exec("INSERT INTO effects VALUES (?)", id).Error
}

func TestTransactionalWritesHappenExactlyOnce(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(inboxtest.Tx("h", func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				require.NotNil(t, handler.DB(ctx))
				if err := write(tx, m.ID); err != nil {
					return err
				}
				if m.Attempt < 3 {
					return errBoom
				}
				return nil
			})))
		inboxtest.Accept(t, ib, "1")
		for attempt := 1; attempt <= 2; attempt++ {
			require.Equal(t, 1, inboxtest.Process(t, ib).Failed)
			require.Empty(t, written(), "rolled back with the failure")
			s := inboxtest.Status(t, ib, "1", "h")
			require.Equal(t, attempt, s.ErrorCount)
			require.Equal(t, "boom", *s.LastError, "recorded outside the aborted transaction")
			require.Nil(t, s.CompletedAt)
			clock.Advance(time.Minute)
		}
		require.Equal(t, 1, inboxtest.Process(t, ib).Completed)
		require.Equal(t, []string{"1"}, written())
		require.EqualValues(t, 1+3*2, inboxtest.Status(t, ib, "1", "h").Version)
	})
}

func TestPanicAndGoexitRollBack(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = fxtest.NewClock(inboxtest.Noon)
		}), inboxtest.Handlers(
			inboxtest.Tx("panics", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				_ = write(tx, m.ID)
				panic("boom")
			})))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, 1, inboxtest.Process(t, ib).Failed)
		require.Empty(t, written())
	})
}

func TestStaleClaimOfATransactionalHandlerChangesNothing(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 1
			o.Processor.Prefetch = 1
		}),
			inboxtest.Handlers(inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				// Another worker takes over everything else that is claimed.
				return errors.Join(tx.Exec("UPDATE inbox_handler_statuses SET version = version + 1 WHERE message_id <> ?",
					m.ID).Error, write(tx, m.ID))
			})))
		inboxtest.Accept(t, ib, "1", "2")
		inboxtest.Start(t, ib) // it claims both and runs one after the other
		inboxtest.Eventually(t, func() bool {
			return ib.Counters().Fenced == 1 && ib.Counters().Processed == 1
		}, "one completed, one is stale")
		require.Len(t, written(), 1, "the stale one did not run")
		stale := 0
		for _, s := range inboxtest.Statuses(t, ib) {
			if s.CompletedAt == nil {
				stale++
				require.NotNil(t, s.ProcessingStartedAt, "it is its new owner's")
				require.EqualValues(t, 3, s.Version)
			}
		}
		require.Equal(t, 1, stale)
	})
}

func TestClaimTakenOverWhileItsHandlerRunsRollsBack(t *testing.T) {
	// Not on SQLite, which has one writer: no worker can take over while the handler's transaction
	// is open.
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		// The completion's row lock delays a take-over until the commit. The take-over then finds
		// another version.
		taken := make(chan int64, 1)
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Tx("h",
			func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				go func() {
					taken <- d.DB.Exec("UPDATE inbox_handler_statuses SET version = version + 1 WHERE message_id = ? AND version = 2",
						m.ID).RowsAffected
				}()
				inboxtest.Eventually(t, func() bool {
					var waiting int
					require.NoError(t,
						d.DB.Raw("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waiting).Error)
					return waiting > 0
				}, "the other waits for the row")
				return write(tx, m.ID)
			})))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, 1, inboxtest.Process(t, ib).Completed)
		require.Zero(t, inboxtest.Receive(t, taken, "the other"))
		require.Equal(t, []string{"1"}, written())
	})
}

// children makes a table whose rows need a parent, at the latest when they are committed. It reports false where the
// database judges at once, as MySQL does.
func children(t *testing.T, d *inboxtest.Database) (atCommit bool) {
	t.Helper()
	inboxtest.Exec(t, d.DB, "CREATE TABLE parents(id varchar(100) primary key)")
	if d.Dialect == "mysql" {
		inboxtest.Exec(t, d.DB, "CREATE TABLE children(id varchar(100), FOREIGN KEY (id) REFERENCES parents(id))")
		return false
	}
	inboxtest.Exec(t, d.DB, "CREATE TABLE children(id varchar(100) REFERENCES parents(id) DEFERRABLE INITIALLY DEFERRED)")
	return true
}

func TestRefusedCommitIsAFailure(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		if !children(t, d) {
			return
		}
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				return tx.Exec("INSERT INTO children VALUES (?)", m.ID).Error // judged at commit
			})))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, processor.Drained{Picked: 1, Failed: 1}, inboxtest.Process(t, ib))
		s := inboxtest.Status(t, ib, "1", "h")
		require.Equal(t, 1, s.ErrorCount)
		require.Contains(t, *s.LastError, "commit handler transaction")
		require.Nil(t, s.CompletedAt)
		var stored int64
		require.NoError(t, d.DB.Table("children").Count(&stored).Error)
		require.Zero(t, stored)

		inboxtest.Exec(t, d.DB, "INSERT INTO parents VALUES ('1')")
		clock.Advance(time.Minute)
		require.Equal(t, 1, inboxtest.Process(t, ib).Completed, "and the pool is fit for use")
		inboxtest.Accept(t, ib, "2")
	})
}

func TestSwallowedErrorIsKeptInLastError(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = fxtest.NewClock(inboxtest.Noon) }),
			inboxtest.Handlers(inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				_ = write(tx, m.ID)
				_ = tx.Exec("INSERT INTO no_such_table VALUES (1)").Error
				return nil
			})))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, 1, inboxtest.Process(t, ib).Failed)
		require.Empty(t, written())
		require.NotEmpty(t, *inboxtest.Status(t, ib, "1", "h").LastError)
	})
}

func TestPlainHandlerHasASeparateSession(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = fxtest.NewClock(inboxtest.Noon) }),
			inboxtest.Handlers(inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
				return errors.Join(write(handler.DB(ctx), m.ID), errBoom)
			})))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, 1, inboxtest.Process(t, ib).Failed)
		require.Equal(t, []string{"1"}, written(), "at least once: its writes stand although it failed")
	})
}
