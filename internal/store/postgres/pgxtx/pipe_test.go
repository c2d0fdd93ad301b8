package pgxtx_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
)

const insertNumber = "INSERT INTO numbers SELECT generate_series(1, $1::bigint)"

func execAfter(
	t *testing.T, tx *pgxtx.Tx, before []string, statement string, args ...any,
) (affected int64, ran bool, err error) {
	t.Helper()
	err = tx.Do(t.Context(), func(c *pgx.Conn) (err error) {
		affected, ran, err = pgxtx.ExecAfter(t.Context(), c, before, statement, args)
		return err
	})
	return affected, ran, err
}

type failingValue struct{ panics bool }

var errValue = errors.New("no value")

func (v failingValue) Value() (driver.Value, error) {
	if v.panics {
		panic("no value")
	}
	return nil, errValue
}

// TestStatementFailsAfterEarlierOnesRan runs each case with a statement that the connection knows
// and with one that it does not.
func TestStatementFailsAfterEarlierOnesRan(t *testing.T) {
	before := []string{"SAVEPOINT a", "SAVEPOINT b"}
	back := []string{"ROLLBACK TO a"}
	for _, known := range []bool{true, false} {
		pool, _ := onePool(t)
		started := 0
		start := func(t *testing.T) (tx *pgxtx.Tx, insert string) {
			tx = begin(t, t.Context(), pool)
			if known {
				_, _, err := execAfter(t, tx, nil, insertNumber, 1)
				require.NoError(t, err)
				return tx, insertNumber
			}
			started++
			return tx, fmt.Sprintf("%s /* %d */", insertNumber, started)
		}
		t.Run(fmt.Sprintf("known %v", known), func(t *testing.T) {
			t.Run("it affects as many rows as it says", func(t *testing.T) {
				tx, insert := start(t)
				affected, ran, err := execAfter(t, tx, before, insert, 7)
				require.NoError(t, err)
				require.True(t, ran)
				require.EqualValues(t, 7, affected)
				_, _, err = execAfter(t, tx, back, insertNumber, 2)
				require.NoError(t, err)
				var n int
				require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT count(*) FROM numbers WHERE n > 1").Scan(&n))
				require.Equal(t, 1, n, "what stood behind the savepoint is undone")
				require.NoError(t, tx.Rollback())
			})
			t.Run("the server refuses it", func(t *testing.T) {
				tx, _ := start(t)
				divide := fmt.Sprintf("INSERT INTO numbers SELECT %d / $1::bigint", started)
				if known {
					_, _, err := execAfter(t, tx, nil, divide, 1)
					require.NoError(t, err)
				}
				_, ran, err := execAfter(t, tx, before, divide, 0)
				require.True(t, ran)
				require.IsType(t, &pgconn.PgError{}, err, "as it would be by itself")
				_, ran, err = execAfter(t, tx, back, insertNumber, 1)
				require.NoError(t, err)
				require.True(t, ran)
				require.NoError(t, tx.Rollback())
			})
			t.Run("the server refuses what is before it", func(t *testing.T) {
				tx, insert := start(t)
				_, ran, err := execAfter(t, tx, []string{"SAVEPOINT a", "RELEASE b"}, insert, 1)
				require.False(t, ran)
				require.IsType(t, &pgconn.PgError{}, err)
				require.NoError(t, tx.Rollback())
			})
			for name, arg := range map[string]any{"an argument that does not fit": struct{}{},
				"an argument without a value": failingValue{}} {
				t.Run(name, func(t *testing.T) {
					tx, insert := start(t)
					_, ran, err := execAfter(t, tx, before, insert, arg)
					require.Error(t, err)
					require.Equal(t, !known, ran)
					if !ran { // they can still be sent
						_, ran, err = execAfter(t, tx, before, insertNumber, 1)
						require.NoError(t, err)
						require.True(t, ran)
					}
					_, _, err = execAfter(t, tx, back, insertNumber, 1)
					require.NoError(t, err, "the connection lives, the transaction is not aborted")
					require.NoError(t, tx.Rollback())
				})
			}
			t.Run("an argument that panics", func(t *testing.T) {
				tx, insert := start(t)
				require.Panics(t, func() { _, _, _ = execAfter(t, tx, before, insert, failingValue{panics: true}) })
				_, _, err := execAfter(t, tx, before, insertNumber, 1)
				require.NoError(t, err, "the connection lives")
				require.NoError(t, tx.Rollback())
			})
		})
	}
}

func TestInvalidStatementFailsAfterEarlierOnesRan(t *testing.T) {
	pool, _ := onePool(t)
	tx := begin(t, t.Context(), pool)
	_, ran, err := execAfter(t, tx, []string{"SAVEPOINT a"}, "INSERT INTO nowhere VALUES ($1)", 1)
	require.True(t, ran)
	require.ErrorContains(t, err, "nowhere")
	_, _, err = execAfter(t, tx, []string{"ROLLBACK TO a"}, insertNumber, 1)
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
}

// TestStatementIsPreparedAgainAfterAFailure proves that a statement is prepared again if what the
// connection has prepared is gone or outdated.
func TestStatementIsPreparedAgainAfterAFailure(t *testing.T) {
	pool, other := onePool(t)
	run := func() error {
		tx := begin(t, t.Context(), pool)
		defer func() { _ = tx.Rollback() }()
		_, _, err := execAfter(t, tx, []string{"SAVEPOINT a"}, "INSERT INTO numbers VALUES ($1) RETURNING *", 1)
		return err
	}
	require.NoError(t, run())
	require.NoError(t, run())
	exec(t, other, "ALTER TABLE numbers ADD COLUMN more text")
	require.ErrorContains(t, run(), "cached plan")
	require.NoError(t, run())
	exec(t, pool, "DEALLOCATE ALL")
	require.ErrorContains(t, run(), "does not exist")
	require.NoError(t, run())
}

func TestPreparedStatementsAreFewAndPrivate(t *testing.T) {
	pool, _ := onePool(t)
	for i := range 130 {
		tx := begin(t, t.Context(), pool)
		_, _, err := execAfter(t, tx, []string{"SAVEPOINT a"}, fmt.Sprintf("INSERT INTO numbers SELECT %d + $1::bigint", i),
			i)
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
	}
	var kept int
	require.NoError(t, pool.QueryRowContext(t.Context(),
		"SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'inbox_%'").Scan(&kept))
	require.Equal(t, 100, kept)

	statement := "INSERT INTO numbers SELECT 0 + $1::bigint" // one that is kept
	prepared, err := pool.PrepareContext(t.Context(), statement)
	require.NoError(t, err)
	_, err = prepared.ExecContext(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, prepared.Close(), "closing theirs")
	tx, err := pgxtx.Begin(context.Background(), pool, &sql.TxOptions{}, pgxtx.ByDeadline)
	require.NoError(t, err)
	_, _, err = execAfter(t, tx, []string{"SAVEPOINT a"}, statement, 1)
	require.NoError(t, err, "leaves ours")
	require.NoError(t, tx.Commit())
}
