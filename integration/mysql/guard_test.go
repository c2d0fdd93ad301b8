package mysql_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// orders returns a database with a table that has the rows 1 and 2.
func orders(t *testing.T, open opener) *gorm.DB {
	db := open(t)
	require.NoError(t, db.Exec(`CREATE TABLE orders (id int PRIMARY KEY, paid int NOT NULL) ENGINE=InnoDB`).Error)
	require.NoError(t, db.Exec(`INSERT INTO orders VALUES (1, 0), (2, 0)`).Error)
	return db
}

func stored(t *testing.T, db *gorm.DB) (ids []int) {
	t.Helper()
	require.NoError(t, db.Table("orders").Order("id").Pluck("id", &ids).Error)
	return ids
}

// handle runs a handler in a transaction and commits it unless the guard forbids that, as an inbox does.
func handle(t *testing.T, db *gorm.DB, level sql.IsolationLevel, handler func(tx *gorm.DB)) error {
	t.Helper()
	tx, err := handlertx.Begin(t.Context(), db, testenv.Patience, level)
	require.NoError(t, err)
	defer tx.Rollback()
	session, guard := handlertx.Watch(tx.Ctx, tx.DB, testenv.Patience)
	handler(session)
	if err := guard.Swallowed(); err != nil {
		return err
	}
	return tx.Commit()
}

func requireNumber(t *testing.T, number int, err error) {
	t.Helper()
	found, _, _ := mysqldialect.Code(err)
	require.Equal(t, number, found, "%v", err)
}

// ways are the ways in which a handler may go on after an error that it ignores.
var ways = map[string]func(tx *gorm.DB) error{
	"Exec": func(tx *gorm.DB) error { return tx.Exec(`INSERT INTO orders VALUES (4, 0)`).Error },
	"Create": func(tx *gorm.DB) error {
		return tx.Table("orders").Create(map[string]any{"id": 4, "paid": 0}).Error
	},
	"a nested transaction": func(tx *gorm.DB) error {
		return tx.Transaction(func(tx *gorm.DB) error { return tx.Exec(`INSERT INTO orders VALUES (4, 0)`).Error })
	},
	"a prepared statement": func(tx *gorm.DB) error {
		return tx.Session(&gorm.Session{PrepareStmt: true}).Exec(`INSERT INTO orders VALUES (?, 0)`, 4).Error
	},
}

func TestNothingIsStoredByAHandlerThatSwallowsADeadlock(t *testing.T) {
	onEach(t, checkNothingIsStoredByAHandlerThatSwallowsADeadlock)
}

func checkNothingIsStoredByAHandlerThatSwallowsADeadlock(t *testing.T, open opener) {
	for way, next := range ways {
		t.Run(way, func(t *testing.T) {
			db := orders(t, open)
			require.NoError(t, db.Exec(`CREATE TABLE inbox_locks (name varchar(99), owner_id text, expires_at datetime(6)) ENGINE=InnoDB`).Error)
			other := db.Begin()
			defer other.Rollback()
			require.NoError(t, new(server).Survive(other))
			require.NoError(t, other.Exec(`UPDATE orders SET paid = 2 WHERE id = 2`).Error)
			done := make(chan error, 1)
			err := handle(t, db, sql.LevelDefault, func(tx *gorm.DB) {
				require.NoError(t, tx.Exec(`INSERT INTO orders VALUES (3, 0)`).Error)
				require.NoError(t, tx.Exec(`UPDATE orders SET paid = 1 WHERE id = 1`).Error)
				go func() { done <- other.Exec(`UPDATE orders SET paid = 2 WHERE id = 1`).Error }()
				waitForLock(t, db)
				requireNumber(t, 1213, tx.Exec(`UPDATE orders SET paid = 1 WHERE id = 2`).Error)
				require.Error(t, next(tx), "the session commits each statement by itself from now on")
			})
			requireNumber(t, 1213, err)
			require.True(t, store.Collided(err), "it is tried again")
			require.NoError(t, <-done)
			require.NoError(t, other.Commit().Error)
			require.Equal(t, []int{1, 2}, stored(t, db))
		})
	}
}

func TestNothingIsStoredByAHandlerWhoseSnapshotIsOutdated(t *testing.T) {
	onEach(t, checkNothingIsStoredByAHandlerWhoseSnapshotIsOutdated)
}

func checkNothingIsStoredByAHandlerWhoseSnapshotIsOutdated(t *testing.T, open opener) {
	db := orders(t, open)
	if db.Exec(`SET SESSION innodb_snapshot_isolation = ON`).Error != nil {
		t.Skip("LEFT OUT: MySQL does not detect writes to an outdated snapshot")
	}
	pool, err := db.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(2)
	err = handle(t, db, sql.LevelRepeatableRead, func(tx *gorm.DB) {
		require.NoError(t, tx.Exec(`SET SESSION innodb_snapshot_isolation = ON`).Error)
		require.NoError(t, tx.Exec(`INSERT INTO orders VALUES (3, 0)`).Error)
		var paid []int
		require.NoError(t, tx.Table("orders").Pluck("paid", &paid).Error)
		require.NoError(t, db.Exec(`UPDATE orders SET paid = 2 WHERE id = 1`).Error)
		requireNumber(t, 1020, tx.Exec(`UPDATE orders SET paid = 1 WHERE id = 1`).Error)
		require.Error(t, tx.Exec(`INSERT INTO orders VALUES (4, 0)`).Error)
	})
	requireNumber(t, 1020, err)
	require.Equal(t, []int{1, 2}, stored(t, db))
}

func TestStatementThatAloneIsUndoneLeavesTheTransactionUsableAfterASavepoint(t *testing.T) {
	onEach(t, checkStatementThatAloneIsUndoneLeavesTheTransactionUsableAfterASavepoint)
}

func checkStatementThatAloneIsUndoneLeavesTheTransactionUsableAfterASavepoint(t *testing.T, open opener) {
	for number, statement := range map[int]string{
		1205: `UPDATE orders SET paid = 1 WHERE id = 1`,
		1062: `INSERT INTO orders VALUES (2, 0)`,
		1146: `INSERT INTO missing VALUES (2, 0)`,
		1048: `INSERT INTO orders VALUES (9, NULL)`,
	} {
		t.Run(fmt.Sprint(number), func(t *testing.T) {
			db := orders(t, open)
			holder := db.Begin()
			defer holder.Rollback()
			require.NoError(t, holder.Exec(`UPDATE orders SET paid = 2 WHERE id = 1`).Error)
			fails := func(tx *gorm.DB) {
				require.NoError(t, tx.Exec(`SET innodb_lock_wait_timeout = 1`).Error)
				require.NoError(t, tx.Exec(`INSERT INTO orders VALUES (3, 0)`).Error)
				requireNumber(t, number, tx.Transaction(func(tx *gorm.DB) error { return tx.Exec(statement).Error }))
				require.NoError(t, tx.Exec(`INSERT INTO orders VALUES (4, 0)`).Error)
			}
			require.NoError(t, handle(t, db, sql.LevelDefault, fails))
			require.Equal(t, []int{1, 2, 3, 4}, stored(t, db))

			err := handle(t, db, sql.LevelDefault, func(tx *gorm.DB) {
				require.NoError(t, tx.Exec(`SET innodb_lock_wait_timeout = 1`).Error)
				require.NoError(t, tx.Exec(`INSERT INTO orders VALUES (5, 0)`).Error)
				requireNumber(t, number, tx.Exec(statement).Error)
				require.NoError(t, tx.Exec(`INSERT INTO orders VALUES (6, 0)`).Error)
			})
			requireNumber(t, number, err)
			require.Equal(t, []int{1, 2, 3, 4}, stored(t, db), "a swallowed error fails the attempt")
		})
	}
}

func TestStatementThatCommitsImplicitlyDoesNotReachTheServer(t *testing.T) {
	onEach(t, checkStatementThatCommitsImplicitlyDoesNotReachTheServer)
}

func checkStatementThatCommitsImplicitlyDoesNotReachTheServer(t *testing.T, open opener) {
	for _, statement := range []string{
		`COMMIT`, `/*! COMMIT */`, `/*!50000COMMIT*/`, "# comment\nCOMMIT", `SET autocommit = 1`, `SET @@session.autocommit = 1`,
		`CREATE TABLE other (id int)`, `/*! CREATE */ TABLE other (id int)`, `ALTER TABLE orders ADD note text`, `TRUNCATE orders`,
		`DROP TABLES orders`, `RENAME TABLE orders TO other`, `LOCK TABLES orders WRITE`, `UNLOCK TABLES`, `ANALYZE TABLE orders`,
		`BEGIN`, `START TRANSACTION`, `FLUSH TABLES`, `EXECUTE IMMEDIATE 'COMMIT'`,
	} {
		t.Run(statement, func(t *testing.T) {
			db := orders(t, open)
			err := handle(t, db, sql.LevelDefault, func(tx *gorm.DB) {
				require.NoError(t, tx.Exec(`INSERT INTO orders VALUES (3, 0)`).Error)
				require.ErrorIs(t, tx.Exec(statement).Error, gorm.ErrInvalidTransaction, statement)
				require.Error(t, tx.Exec(`INSERT INTO orders VALUES (4, 0)`).Error)
			})
			require.ErrorContains(t, err, "a handler must not begin or end the transaction it runs in", statement)
			require.Equal(t, []int{1, 2}, stored(t, db), statement)
			var tables []string
			require.NoError(t, db.Raw(`SHOW TABLES`).Scan(&tables).Error)
			require.Equal(t, "orders", strings.Join(tables, " "), statement)
		})
	}
}

func TestHandlerUsesTemporaryTables(t *testing.T) { onEach(t, checkHandlerUsesTemporaryTables) }

func checkHandlerUsesTemporaryTables(t *testing.T, open opener) {
	db := orders(t, open)
	require.NoError(t, handle(t, db, sql.LevelDefault, func(tx *gorm.DB) {
		for _, statement := range []string{`CREATE TEMPORARY TABLE part (id int)`, `INSERT INTO part SELECT id FROM orders`,
			`INSERT INTO orders SELECT id + 2, 0 FROM part`, `DROP TEMPORARY TABLE part`} {
			require.NoError(t, tx.Exec(statement).Error)
		}
	}))
	require.Equal(t, []int{1, 2, 3, 4}, stored(t, db))
}
