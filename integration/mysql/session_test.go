package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// batchOf returns messages for one handler.
func batchOf(ids ...string) store.AcceptBatch {
	batch := store.AcceptBatch{Now: loaded}
	for _, id := range ids {
		batch.Messages = append(batch.Messages, store.NewMessage{Message: models.Message{ID: id, Namespace: "shop", Type: "order",
			Source: "/shop", Content: []byte("{}"), SerializedProperties: "{}"}, Handlers: []store.NewStatus{{HandlerKey: "mail"}}})
	}
	return batch
}

// waitForLock returns once a session waits for a lock.
func waitForLock(t *testing.T, db *gorm.DB) {
	t.Helper()
	waitForLocks[any](t, db, 1, nil)
}

// waitForLocks returns once this many sessions wait for locks, or unless is filled.
func waitForLocks[T any](t *testing.T, db *gorm.DB, sessions int, unless <-chan T) {
	t.Helper()
	var server server
	require.Eventually(t, func() bool {
		waiting, err := server.Waiting(db)
		return len(unless) > 0 || err == nil && waiting == sessions
	}, testenv.Patience, 10*time.Millisecond)
}

func rowsIn(t *testing.T, db *gorm.DB, table string) (n int64) {
	t.Helper()
	require.NoError(t, db.Table(table).Count(&n).Error)
	return n
}

// TestOwnTransactionsThatAcceptNewMessagesDoNotDeadlock accepts in transactions of the session's level, which is
// REPEATABLE READ.
func TestOwnTransactionsThatAcceptNewMessagesDoNotDeadlock(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		const each = 100
		db, st := storetest.Migrated(t, open(t))
		for _, err := range racetest.Together(4, func(int) error {
			for range each {
				err := db.WithContext(t.Context()).Transaction(func(tx *gorm.DB) error {
					_, err := st.AcceptTx(t.Context(), tx, batchOf(uuid.Must(uuid.NewV7()).String()))
					return err
				})
				if err != nil {
					return err
				}
			}
			return nil
		}) {
			require.NoError(t, err)
		}
		require.EqualValues(t, 4*each, rowsIn(t, db, "inbox_handler_statuses"))
	})
}

func TestOwnTransactionWithAnOlderSnapshotFindsADuplicate(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		db, st := storetest.Migrated(t, open(t))
		tx := db.Begin()
		defer tx.Rollback()
		require.Zero(t, rowsIn(t, tx, "inbox_messages"))
		_, err := st.Accept(t.Context(), batchOf("m1"))
		require.NoError(t, err)
		require.Zero(t, rowsIn(t, tx, "inbox_messages"), "the snapshot is older")
		results, err := st.AcceptTx(t.Context(), tx, batchOf("m1", "m2"))
		require.NoError(t, err)
		require.False(t, results[0].Inserted)
		require.True(t, results[1].Inserted)
		require.NoError(t, tx.Commit().Error)
		require.EqualValues(t, 2, rowsIn(t, db, "inbox_handler_statuses"))
	})
}

func TestOwnTransactionWithAnOlderSnapshotAcceptsWhatCleanupHasDeleted(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		db, st := storetest.Migrated(t, open(t))
		_, err := st.Accept(t.Context(), batchOf("m1"))
		require.NoError(t, err)
		tx := db.Begin()
		defer tx.Rollback()
		require.EqualValues(t, 1, rowsIn(t, tx, "inbox_messages"))
		require.NoError(t, db.Exec("DELETE FROM inbox_messages").Error)
		require.EqualValues(t, 1, rowsIn(t, tx, "inbox_messages"), "the snapshot is older")
		results, err := st.AcceptTx(t.Context(), tx, batchOf("m1", "m2"))
		require.NoError(t, err)
		require.True(t, results[0].Inserted)
		require.True(t, results[1].Inserted)
		require.NoError(t, tx.Commit().Error)
		require.EqualValues(t, 2, rowsIn(t, db, "inbox_messages"))
		require.EqualValues(t, 2, rowsIn(t, db, "inbox_handler_statuses"))
	})
}

// TestOpenTransactionThatHasAcceptedHindersNoOtherAccept keeps a transaction open that has accepted a new message.
func TestOpenTransactionThatHasAcceptedHindersNoOtherAccept(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		db, st := storetest.Migrated(t, open(t))
		tx := db.Begin()
		defer tx.Rollback()
		_, err := st.AcceptTx(t.Context(), tx, batchOf("m5"))
		require.NoError(t, err)
		for _, id := range []string{"m4", "m6", "z"} {
			_, err := st.Accept(t.Context(), batchOf(id))
			require.NoError(t, err)
		}
		require.NoError(t, tx.Commit().Error)
		require.EqualValues(t, 4, rowsIn(t, db, "inbox_messages"))
	})
}

// TestStatementOutsideOfTransactionsLocksNoGap deletes a row that does not exist, and then waits for one that does.
func TestStatementOutsideOfTransactionsLocksNoGap(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		db, st := storetest.Migrated(t, open(t))
		lease := func(name string) {
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
			defer cancel()
			held, err := st.AcquireLease(ctx, name, "me", time.Hour, loaded)
			require.NoError(t, err, name)
			require.True(t, held)
		}
		lease("z")
		holder := db.Begin()
		require.NoError(t, new(server).Lock(holder, "inbox_locks", "name = 'z'"))
		deleted := make(chan error, 1)
		go func() {
			_, err := store.Exec(t.Context(), store.NewSingles(db).Pool(t.Context()), `DELETE FROM inbox_locks WHERE name IN ('b', 'z')`)
			deleted <- err
		}()
		waitForLock(t, db)
		lease("c")
		require.NoError(t, holder.Rollback().Error)
		require.NoError(t, <-deleted)
	})
}

// TestAcceptThatWaitsHindersNoOtherAccept has an accept look for a new message, and then wait for a known one.
func TestAcceptThatWaitsHindersNoOtherAccept(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		db, st := storetest.Migrated(t, open(t))
		_, err := st.Accept(t.Context(), batchOf("z"))
		require.NoError(t, err)
		holder := db.Begin(&sql.TxOptions{Isolation: sql.LevelReadCommitted}) // locks no gap itself
		defer holder.Rollback()
		require.NoError(t, new(server).Lock(holder, "inbox_messages", "id = 'z'"))
		accepted := make(chan error, 1)
		go func() {
			_, err := st.Accept(t.Context(), batchOf("m5", "z"))
			accepted <- err
		}()
		waitForLock(t, db)
		for _, id := range []string{"m4", "m6"} {
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience/4)
			_, err := st.Accept(ctx, batchOf(id))
			cancel()
			require.NoError(t, err, id)
		}
		require.NoError(t, holder.Rollback().Error)
		require.NoError(t, <-accepted)
		require.EqualValues(t, 4, rowsIn(t, db, "inbox_messages"))
	})
}

// TestMarkerLeavesTheSessionsWaitForLocks adds markers in a session that has set how long its statements wait.
func TestMarkerLeavesTheSessionsWaitForLocks(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		db, st := storetest.Migrated(t, open(t))
		add := func(tx *gorm.DB, id string) (bool, error) {
			return st.AddMarkerTx(t.Context(), tx, models.Marker{MessageID: id, HandlerKey: "mail", ProcessedAt: loaded,
				ExpiresAt: loaded.Add(time.Hour)}, time.Second)
		}
		holder := db.Begin(&sql.TxOptions{Isolation: sql.LevelReadCommitted})
		defer holder.Rollback()
		added, err := add(holder, "busy")
		require.NoError(t, err)
		require.True(t, added)
		tx := db.Begin(&sql.TxOptions{Isolation: sql.LevelReadCommitted})
		defer tx.Rollback()
		require.NoError(t, tx.Exec(`SET innodb_lock_wait_timeout = 37`).Error)
		for _, id := range []string{"new", "new", "busy"} {
			_, err := add(tx, id)
			require.Equal(t, id == "busy", err != nil, "%v", err)
			var seconds int
			require.NoError(t, tx.Raw(`SELECT @@innodb_lock_wait_timeout`).Scan(&seconds).Error)
			require.Equal(t, 37, seconds, id)
		}
	})
}

func TestSessionThatUsesAnotherDatabaseStoresInTheInbox(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		db, st := storetest.Migrated(t, open(t))
		other, _ := storetest.Migrated(t, open(t))
		pool, err := db.DB()
		require.NoError(t, err)
		pool.SetMaxOpenConns(1)
		require.NoError(t, st.KeepSchema(t.Context(), db.Statement.ConnPool))
		var name string
		require.NoError(t, other.Raw(`SELECT DATABASE()`).Scan(&name).Error)
		require.NoError(t, db.Exec("USE "+name).Error)
		_, err = st.Accept(t.Context(), batchOf("m1"))
		require.NoError(t, err)
		require.Zero(t, rowsIn(t, other, "inbox_messages"))
	})
}

// TestStoreLeavesPreparedStatementsToTheApplication uses GORM's PrepareStmt, which prepares each text for good.
func TestStoreLeavesPreparedStatementsToTheApplication(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		dsn := open(t).Dialector.(*mysql.Dialector).DSN
		db, st := storetest.Migrated(t, testenv.Open(t, mysql.Open(dsn), gorm.Config{PrepareStmt: true}))
		pool, err := db.DB()
		require.NoError(t, err)
		pool.SetMaxOpenConns(1)
		prepared := func() (n int) {
			var status struct {
				VariableName string
				Value        int
			}
			require.NoError(t, pool.QueryRowContext(t.Context(), `SHOW SESSION STATUS LIKE 'Com_stmt_prepare'`).
				Scan(&status.VariableName, &status.Value))
			return status.Value
		}
		require.NoError(t, db.Exec(`SELECT ?`, 1).Error)
		before := prepared()
		require.Positive(t, before, "GORM prepares the application's statement")
		for n := range 20 {
			var ids []string
			for i := range n + 1 {
				ids = append(ids, fmt.Sprint("m", i))
			}
			_, err := st.Accept(t.Context(), batchOf(ids...))
			require.NoError(t, err)
			require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
				_, err := st.AcceptTx(t.Context(), tx, batchOf(ids...))
				return err
			}))
		}
		require.Equal(t, before, prepared())
	})
}

func TestFailedMigrationLeavesNoLock(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		db := open(t)
		require.NoError(t, db.Exec(`CREATE TABLE inbox_messages (id int PRIMARY KEY)`).Error)
		first := models.Migrate(t.Context(), db, models.Naming{}, "test")
		require.Error(t, first)
		again := testenv.Open(t, mysql.Open(db.Dialector.(*mysql.Dialector).DSN), gorm.Config{})
		// After 30 s Vitess would end a session that has kept the lock.
		soon, cancel := context.WithTimeout(t.Context(), testenv.Patience/8)
		defer cancel()
		require.EqualError(t, models.Migrate(soon, again, models.Naming{}, "test"), first.Error())
	})
}

// forgetful begins transactions without their isolation, as Vitess may after it has lost a connection. It calls before,
// once, when a transaction is about to lock statuses.
type forgetful struct {
	gorm.ConnPool
	db     *sql.DB
	before func()
}

type forgetfulTx struct {
	*forgetful
	gorm.TxCommitter
}

func (f *forgetful) BeginTx(ctx context.Context, _ *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := f.db.BeginTx(ctx, nil)
	return &forgetfulTx{&forgetful{tx, f.db, f.before}, tx}, err
}

func (f *forgetful) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	if strings.Contains(text, "FOR UPDATE SKIP LOCKED") {
		f.before()
	}
	return f.ConnPool.QueryContext(ctx, text, args...)
}

func (f *forgetful) GetDBConn() (*sql.DB, error) { return f.db, nil }

// TestClaimHasTheMessagesThatItsSnapshotDoesNotShow accepts a message between the first read of a claim and its lock of
// due statuses. A claim without its message would be poisoned as deleted.
func TestClaimHasTheMessagesThatItsSnapshotDoesNotShow(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		db, st := storetest.Migrated(t, open(t))
		worker := store.Worker{ID: uuid.NewString(), Host: "h", HandlerKeys: []string{"mail"}}
		require.NoError(t, st.Heartbeat(t.Context(), worker, loaded))
		pool, err := db.DB()
		require.NoError(t, err)
		own := db.Session(&gorm.Session{NewDB: true, Context: t.Context()})
		accept := sync.OnceFunc(func() {
			_, err := st.Accept(t.Context(), batchOf("m"))
			require.NoError(t, err)
		})
		own.Statement.ConnPool = &forgetful{pool, pool, accept}
		claiming, err := stores.New(own, models.Naming{}, store.Options{TestClock: true})
		require.NoError(t, err)
		claimed, err := claiming.Claim(t.Context(), store.ClaimRequest{WorkerID: worker.ID, Now: loaded,
			Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 2}}})
		require.NoError(t, err)
		require.Len(t, claimed.Claims, 1)
		require.NotNil(t, claimed.Claims[0].Message)
		require.Equal(t, "m", claimed.Claims[0].Message.ID)
	})
}

// TestCleanupLocksStatusesByID proves that a cleanup locks rows in the order in which those who advance lanes lock
// them, so that neither waits for the other.
func TestCleanupLocksStatusesByID(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		db, st := storetest.Migrated(t, open(t))
		batch := batchOf("m")
		batch.Messages[0].Handlers = []store.NewStatus{{HandlerKey: "a"}, {HandlerKey: "b"}}
		_, err := st.Accept(t.Context(), batch)
		require.NoError(t, err)
		const ended = `UPDATE inbox_handler_statuses SET id = ?, completed_at = ?, outcome = 'processed' WHERE handler_key = ?`
		require.NoError(t, db.Exec(ended, "2", loaded, "a").Error)
		require.NoError(t, db.Exec(ended, "1", loaded, "b").Error)
		const lock = `SELECT id FROM inbox_handler_statuses FORCE INDEX (PRIMARY) WHERE id = ? FOR UPDATE`
		var id string
		other := db.Begin()
		defer other.Rollback()
		require.NoError(t, other.Raw(lock, "1").Scan(&id).Error)
		done := make(chan error, 1)
		go func() {
			result, err := st.Cleanup(t.Context(), store.CleanupRequest{Cutoff: time.Now().Add(time.Hour), Limit: 10})
			if err == nil && (result.Statuses != 2 || result.Messages != 1) {
				err = fmt.Errorf("deleted %+v", result)
			}
			done <- err
		}()
		waitForLocks(t, db, 1, done)
		require.NoError(t, other.Raw(lock+` NOWAIT`, "2").Scan(&id).Error, "the cleanup waits for the first row")
		require.NoError(t, other.Commit().Error)
		require.NoError(t, <-done)
	})
}
