package pgxtx_test

import (
	"context"
	"database/sql"
	"maps"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// writesConn counts what is sent.
type writesConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c writesConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

func TestTransactionIsBoundedInTheRoundTripOfItsBegin(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			var writes atomic.Int64
			pool, _ := onePool(t, func(c *pgx.ConnConfig) {
				c.DefaultQueryExecMode = mode
				if mode != pgx.QueryExecModeSimpleProtocol { // pgx requires it there
					c.RuntimeParams["standard_conforming_strings"] = "off"
				}
				c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, network, address)
					return writesConn{conn, &writes}, err
				}
			})
			setting := func(from interface {
				QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
			}, name string) (value string) {
				require.NoError(t, from.QueryRowContext(t.Context(),
					"SELECT setting FROM pg_settings WHERE name = '"+name+"'").Scan(&value))
				return value
			}
			names := []string{"idle_in_transaction_session_timeout", "tcp_keepalives_idle", "tcp_keepalives_interval",
				"tcp_keepalives_count", "tcp_user_timeout", "jit", "transaction_isolation"}
			before := map[string]string{}
			for _, name := range names {
				before[name] = setting(pool, name)
			}
			keepalives := map[string]string{names[1]: "20", names[2]: "5", names[3]: "4", names[4]: "40000"}
			for _, c := range []struct {
				bound pgxtx.Bound
				want  []string
			}{
				{pgxtx.ByDeadline, []string{"", before[names[1]], before[names[2]], before[names[3]], before[names[4]], "off",
					"repeatable read"}},
				{pgxtx.ByKeepalive, []string{before[names[0]], "20", "5", "4", "40000", "off", "repeatable read"}},
			} {
				ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
				defer cancel()
				first, err := pgxtx.Begin(ctx, pool, nil, c.bound) // on this connection
				require.NoError(t, err)
				require.NoError(t, first.Rollback())
				sent := writes.Load()
				tx, err := pgxtx.Begin(ctx, pool, &sql.TxOptions{Isolation: sql.LevelRepeatableRead}, c.bound,
					"set local jit = off")
				require.NoError(t, err)
				require.EqualValues(t, 1, writes.Load()-sent)
				for i, name := range names {
					got := setting(tx, name)
					if c.want[i] != "" {
						require.Equal(t, c.want[i], got, name)
						continue
					}
					limit, err := time.ParseDuration(got + "ms")
					require.NoError(t, err)
					require.LessOrEqual(t, limit, testenv.Patience)
					require.Zero(t, limit%time.Second, "pg_stat_statements has an entry for each value")
					require.Greater(t, limit, testenv.Patience*9/10)
				}
				require.NoError(t, tx.Commit())
				if c.bound == pgxtx.ByKeepalive {
					maps.Copy(before, keepalives) // those of the connection from its first transaction on
				}
				for _, name := range names {
					require.Equal(t, before[name], setting(pool, name), "it is the session's again")
				}
			}
		})
	}
}

// silentRig is a pool whose connections pass a proxy, and another one to look with.
type silentRig struct {
	t           *testing.T
	proxy       *pgproxy.Proxy
	pool, other *sql.DB
}

func newSilentRig(t *testing.T) silentRig {
	t.Helper()
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	r := silentRig{t: t, proxy: pgproxy.New(t, dsn), other: open(t, config(t, dsn))}
	r.pool = open(t, config(t, r.proxy.DSN()))
	exec(t, r.other, "CREATE TABLE numbers(n bigint)")
	return r
}

// open returns how many transactions are open beside the one that asks.
func (r silentRig) open() (n int) {
	r.t.Helper()
	require.NoError(r.t, r.other.QueryRowContext(r.t.Context(), `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL`).Scan(&n))
	return n
}

// commitInVain commits a transaction whose connection has fallen silent.
func (r silentRig) commitInVain(bound pgxtx.Bound, fail func()) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
	defer cancel()
	tx, err := pgxtx.Begin(ctx, r.pool, nil, bound)
	require.NoError(r.t, err)
	require.NoError(r.t, insert(tx))
	fail()
	_, _ = tx.ExecContext(ctx, "INSERT INTO numbers VALUES ($1)", 2)
	require.Error(r.t, tx.Commit())
}

func TestSessionOfASilentlyLostConnectionIsEnded(t *testing.T) {
	for name, fail := range map[string]func(r silentRig){
		"before the commit":      func(r silentRig) { r.proxy.LoseCommits(pgproxy.Silence, 1) },
		"between two statements": func(r silentRig) { r.proxy.FallSilent() },
		"in the middle of one": func(r silentRig) {
			r.proxy.Lose(pgproxy.SilenceMidway, 1, pgproxy.Containing("numbers"))
		},
		"midway before the commit": func(r silentRig) { r.proxy.LoseCommits(pgproxy.SilenceMidway, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newSilentRig(t)
			neighbour := open(t, config(t, testenv.PostgresDSN(t))) // another database of the server
			idle := begin(t, t.Context(), neighbour)
			open := make(chan int, 100)
			defer pgxtx.Watch(r.pool, func(n int, since time.Time) {
				require.Equal(t, n == 0, since.IsZero())
				open <- n
			})()
			// By keepalive, because only then nothing else ends the session: the proxy's host answers.
			r.commitInVain(pgxtx.ByKeepalive, func() { fail(r) })
			require.Equal(t, 1, r.open(), "the server does not know")
			require.Equal(t, 1, <-open)
			require.Eventually(t, func() bool { return r.open() == 0 }, testenv.Patience, 10*time.Millisecond)
			require.Zero(t, <-open)
			require.Zero(t, count(t, r.other))
			require.NoError(t, idle.Commit(), "a neighbour's transaction goes on")
			requireGivenBack(t, r.pool)
		})
	}
}

// TestServerEndsTheTransactionOfAVanishedProcess proves that nothing of ours has to live for that.
func TestServerEndsTheTransactionOfAVanishedProcess(t *testing.T) {
	r := newSilentRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	tx, err := pgxtx.Begin(ctx, r.pool, nil, pgxtx.ByDeadline)
	require.NoError(t, err)
	require.NoError(t, insert(tx))
	r.proxy.FallSilent()
	require.Equal(t, 1, r.open())
	require.NoError(t, r.pool.Close(), "nothing can end the session through it")
	require.Eventually(t, func() bool { return r.open() == 0 }, testenv.Patience, 10*time.Millisecond)
	require.Zero(t, count(t, r.other))
}

func TestNoSessionIsOpenAfterOrdinaryEnds(t *testing.T) {
	pool, _ := onePool(t)
	for range 3 {
		require.NoError(t, begin(t, t.Context(), pool).Commit())
		require.NoError(t, begin(t, t.Context(), pool).Rollback())
		tx := begin(t, t.Context(), pool)
		exec := func() error { _, err := tx.ExecContext(t.Context(), "SELECT 1/0"); return err }
		require.Error(t, exec())
		require.Error(t, tx.Commit())
	}
	ctx, cancel := context.WithCancel(t.Context())
	begin(t, ctx, pool)
	open := make(chan int, 100)
	defer pgxtx.Watch(pool, func(n int, _ time.Time) { open <- n })()
	cancel() // costs the connection
	requireGivenBack(t, pool)
	require.Zero(t, <-open, "the server has noticed")
	require.Empty(t, open, "the others did not cost theirs")
}
