package pgxtx_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// onePool returns a pool of one connection, so that a connection that is not returned shows. Its
// database has a table of numbers, which other, a second pool, can read.
func onePool(t *testing.T, configure ...func(*pgx.ConnConfig)) (pool, other *sql.DB) {
	t.Helper()
	dsn := testenv.PostgresDSN(t)
	other = open(t, config(t, dsn))
	exec(t, other, "CREATE TABLE numbers(n bigint)")
	c := config(t, dsn)
	for _, f := range configure {
		f(c)
	}
	return open(t, c), other
}

func config(t *testing.T, dsn string) *pgx.ConnConfig {
	t.Helper()
	c, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	return c
}

func open(t *testing.T, c *pgx.ConnConfig) *sql.DB {
	t.Helper()
	pool := stdlib.OpenDB(*c)
	pool.SetMaxOpenConns(1)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	return pool
}

func exec(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), statement)
	require.NoError(t, err)
}

func count(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM numbers").Scan(&n))
	return n
}

func begin(t *testing.T, ctx context.Context, pool *sql.DB) *pgxtx.Tx {
	t.Helper()
	tx, err := pgxtx.Begin(ctx, pool, nil, pgxtx.ByDeadline)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() }) // if the test has not ended it
	return tx
}

// insert writes a number, bypassing database/sql.
func insert(tx *pgxtx.Tx) error {
	return tx.Do(context.Background(), func(c *pgx.Conn) error {
		_, err := c.Exec(context.Background(), "INSERT INTO numbers VALUES ($1)", 1)
		return err
	})
}

// requireGivenBack checks that the connection is returned. It also waits for what database/sql does
// after the end of a context.
func requireGivenBack(t *testing.T, pool *sql.DB) {
	t.Helper()
	require.Eventually(t, func() bool { return pool.Stats().InUse == 0 }, testenv.Patience, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	tx, err := pgxtx.Begin(ctx, pool, nil, pgxtx.ByDeadline)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback())
}

func TestWorkIsPartOfTheTransaction(t *testing.T) {
	pool, other := onePool(t)
	tx := begin(t, t.Context(), pool)
	require.NoError(t, insert(tx))
	require.Zero(t, count(t, other), "not committed yet")
	require.NoError(t, tx.Rollback())
	require.Zero(t, count(t, other))
	tx = begin(t, t.Context(), pool)
	require.NoError(t, insert(tx))
	require.NoError(t, tx.Commit())
	require.Equal(t, 1, count(t, other))
}

func TestNothingIsWrittenOnceTheTransactionHasEnded(t *testing.T) {
	for name, end := range map[string]func(*pgxtx.Tx, context.CancelFunc) error{
		"a commit":   func(tx *pgxtx.Tx, _ context.CancelFunc) error { return tx.Commit() },
		"a rollback": func(tx *pgxtx.Tx, _ context.CancelFunc) error { return tx.Rollback() },
		"its context's end": func(tx *pgxtx.Tx, cancel context.CancelFunc) error {
			cancel()
			// Until database/sql has rolled the transaction back, it can still be written in. That
			// write is rolled back too.
			for !errors.Is(insert(tx), sql.ErrTxDone) {
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			pool, other := onePool(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			tx := begin(t, ctx, pool)
			require.NoError(t, end(tx, cancel))
			require.ErrorIs(t, insert(tx), sql.ErrTxDone)
			requireGivenBack(t, pool)
			require.ErrorIs(t, insert(tx), sql.ErrTxDone, "also while the connection is another's")
			require.Zero(t, count(t, other))
			require.ErrorIs(t, tx.Commit(), sql.ErrTxDone)
			require.ErrorIs(t, tx.Rollback(), sql.ErrTxDone)
		})
	}
}

// TestCancelledContextDuringWritesLeavesNothing ends the context at any moment while writers
// continue.
func TestCancelledContextDuringWritesLeavesNothing(t *testing.T) {
	pool, other := onePool(t)
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		tx := begin(t, ctx, pool)
		var writers sync.WaitGroup
		for range 3 {
			writers.Add(1)
			go func() {
				defer writers.Done()
				for !errors.Is(insert(tx), sql.ErrTxDone) {
				}
			}()
		}
		require.NoError(t, insert(tx))
		cancel()
		writers.Wait()
	}
	requireGivenBack(t, pool)
	require.Zero(t, count(t, other))
}

func TestEndedTransactionLeaksNothingIntoALongContext(t *testing.T) {
	pool, _ := onePool(t)
	ctx := &watchedContext{Context: t.Context(), done: make(chan struct{})}
	for range 10 {
		require.NoError(t, begin(t, ctx, pool).Commit())
		require.NoError(t, begin(t, ctx, pool).Rollback())
	}
	require.Zero(t, ctx.registered())
}

// watchedContext never ends, and counts who waits for its end.
type watchedContext struct {
	context.Context
	done chan struct{} // its own: package context would ask the embedded one

	mu      sync.Mutex
	waiting int
}

func (c *watchedContext) Done() <-chan struct{} { return c.done }

// AfterFunc is what package context calls on contexts of other types.
func (c *watchedContext) AfterFunc(func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting++
	return sync.OnceValue(func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.waiting--
		return true
	})
}

func (c *watchedContext) registered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting
}

func TestConnectionIsReturnedToThePool(t *testing.T) {
	pool, _ := onePool(t)
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, begin(t, ctx, pool).Commit())
	requireGivenBack(t, pool)
	require.NoError(t, begin(t, ctx, pool).Rollback())
	requireGivenBack(t, pool)
	begin(t, ctx, pool) // never ended by the test
	cancel()
	requireGivenBack(t, pool)

	_, err := pgxtx.Begin(ctx, pool, nil, pgxtx.ByDeadline)
	require.ErrorIs(t, err, context.Canceled)
	_, err = pgxtx.Begin(t.Context(), pool, &sql.TxOptions{Isolation: sql.LevelLinearizable}, pgxtx.ByDeadline)
	require.ErrorIs(t, err, pgxtx.ErrUnavailable)
	requireGivenBack(t, pool)
}

func TestPanicInWorkReachesItsCaller(t *testing.T) {
	pool, other := onePool(t)
	tx := begin(t, t.Context(), pool)
	require.PanicsWithValue(t, "boom", func() {
		_ = tx.Do(t.Context(), func(*pgx.Conn) error { panic("boom") })
	})
	require.NoError(t, insert(tx), "the transaction goes on")
	require.NoError(t, tx.Commit())
	require.Equal(t, 1, count(t, other))
	requireGivenBack(t, pool)
}

func TestWorkErrorIsReturnedUnchanged(t *testing.T) {
	pool, _ := onePool(t)
	tx := begin(t, t.Context(), pool)
	require.Equal(t, driver.ErrBadConn, tx.Do(t.Context(), func(*pgx.Conn) error { return driver.ErrBadConn }))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, tx.Do(ended, func(*pgx.Conn) error { panic("not to be called") }), context.Canceled)
	require.NoError(t, insert(tx))
	require.NoError(t, tx.Rollback())
	requireGivenBack(t, pool)
}

// wrapped is a driver around pgx, as tracing has it.
type wrapped struct{ driver.Connector }

type wrappedConn struct{ driver.Conn }

func (w wrapped) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := w.Connector.Connect(ctx)
	return wrappedConn{c}, err
}

func TestWrappedDriverHasNoPgxConnection(t *testing.T) {
	for name, configure := range testenv.PgxReserved() {
		t.Run(name, func(t *testing.T) {
			pool, _ := onePool(t, configure)
			tx := begin(t, t.Context(), pool)
			require.False(t, tx.Prepares(), "nothing is to be prepared")
			require.NoError(t, tx.Commit())
		})
	}
	t.Run("a driver around it", func(t *testing.T) {
		pool := sql.OpenDB(wrapped{stdlib.GetConnector(*config(t, testenv.PostgresDSN(t)))})
		pool.SetMaxOpenConns(1)
		defer func() { require.NoError(t, pool.Close()) }()
		requireUnavailable(t, pool)
	})
	t.Run("a dead connection", func(t *testing.T) {
		dsn := testenv.PostgresDSN(t)
		other := open(t, config(t, dsn))
		unpinged := stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false })
		pool := stdlib.OpenDB(*config(t, dsn), unpinged) // as a connection that was busy a moment ago
		pool.SetMaxOpenConns(1)
		defer func() { require.NoError(t, pool.Close()) }()
		exec(t, pool, "SELECT 1")
		const others = " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
		exec(t, other, "SELECT pg_terminate_backend(pid)"+others)
		require.Eventually(t, func() bool {
			var left int
			return other.QueryRowContext(t.Context(), "SELECT count(*)"+others).Scan(&left) == nil && left == 0
		}, testenv.Patience, time.Millisecond)
		requireUnavailable(t, pool)
		requireGivenBack(t, pool) // on the next connection
	})
}

func requireUnavailable(t *testing.T, pool *sql.DB) {
	t.Helper()
	_, err := pgxtx.Begin(t.Context(), pool, nil, pgxtx.ByDeadline)
	require.ErrorIs(t, err, pgxtx.ErrUnavailable)
	require.Zero(t, pool.Stats().InUse)
	tx, err := pool.BeginTx(t.Context(), nil) // the usual way
	require.NoError(t, err)
	require.NoError(t, tx.Rollback())
}

func TestStatementsPreparedInATransactionEndWithIt(t *testing.T) {
	pool, _ := onePool(t)
	for i := range 3 {
		tx := begin(t, t.Context(), pool)
		text := fmt.Sprintf("SELECT n, %d FROM numbers WHERE n = $1", i)
		_, err := tx.PrepareContext(t.Context(), text)
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
	}
	var left int
	require.NoError(t, pool.QueryRowContext(t.Context(),
		"SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'SELECT n, %'").Scan(&left))
	require.Zero(t, left)
}
