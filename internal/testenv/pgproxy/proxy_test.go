package pgproxy_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = testenv.Patience

// rig is a database with a table, reached directly and through a proxy.
type rig struct {
	t               *testing.T
	proxy           *pgproxy.Proxy
	direct, proxied *sql.DB
}

func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	r := &rig{t: t, proxy: pgproxy.New(t, dsn)}
	r.direct, r.proxied = r.open(dsn), r.open(r.proxy.DSN())
	_, err := r.direct.ExecContext(t.Context(), "CREATE TABLE notes (n integer)")
	require.NoError(t, err)
	return r
}

func (r *rig) open(dsn string) *sql.DB {
	db, err := sql.Open("pgx", dsn)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, db.Close()) })
	return db
}

func (r *rig) notes() (n int) {
	r.t.Helper()
	require.NoError(r.t, r.direct.QueryRowContext(r.t.Context(), "SELECT count(*) FROM notes").Scan(&n))
	return n
}

// note inserts a row in a transaction of its own.
func (r *rig) note(ctx context.Context) error {
	tx, err := r.proxied.BeginTx(ctx, nil)
	require.NoError(r.t, err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(ctx, "INSERT INTO notes VALUES ($1)", 1)
	require.NoError(r.t, err)
	return tx.Commit()
}

func TestFaultsOfACommit(t *testing.T) {
	for _, c := range []struct {
		fault pgproxy.Fault
		want  int // rows
	}{{pgproxy.AnswerLost, 1}, {pgproxy.RequestLost, 0}, {pgproxy.AnswerSilent, 1}, {pgproxy.ConnectionLost, 1}} {
		t.Run(c.fault.String(), func(t *testing.T) {
			r := newRig(t)
			r.proxy.LoseCommits(c.fault, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.Error(t, r.note(ctx))
			require.Zero(t, r.proxy.Left())
			if c.fault == pgproxy.ConnectionLost {
				require.Eventually(t, func() bool { return r.notes() == 1 }, patience, 5*time.Millisecond)
			}
			require.Equal(t, c.want, r.notes())
			require.NoError(t, r.note(t.Context()), "only one commit is lost")
			require.Equal(t, c.want+1, r.notes())
		})
	}
}

func TestConnectionIsLostDuringTheCommit(t *testing.T) {
	r := newRig(t)
	_, err := r.direct.ExecContext(t.Context(), `
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON notes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()`)
	require.NoError(t, err)
	r.proxy.LoseCommits(pgproxy.ConnectionLost, 1)
	require.Error(t, r.note(t.Context()))
	require.Zero(t, r.notes(), "it is still at it")
	require.Eventually(t, func() bool { return r.notes() == 1 }, patience, 5*time.Millisecond)
}

func TestPreparedStatementIsMatchedEachTimeItIsExecuted(t *testing.T) {
	r := newRig(t)
	insert := func() error {
		_, err := r.proxied.ExecContext(t.Context(), "INSERT INTO notes VALUES ($1)", 7)
		return err
	}
	require.NoError(t, insert(), "prepared")
	r.proxy.Lose(pgproxy.AnswerLost, 1, pgproxy.Containing("INSERT", "notes"))
	var one int
	require.NoError(t, r.proxied.QueryRowContext(t.Context(), "SELECT 1 WHERE $1 = 1", 1).Scan(&one), "another statement")
	require.Error(t, insert())
	require.Equal(t, 2, r.notes())
	require.NoError(t, insert())
	r.proxy.Lose(pgproxy.RequestLost, 1, pgproxy.Containing("INSERT", "notes"))
	require.Error(t, insert())
	require.Equal(t, 3, r.notes())
	r.proxy.Lose(pgproxy.RequestLost, 1, pgproxy.Containing("INSERT", "notes"))
	r.proxy.Mend()
	require.NoError(t, insert())
}

func TestPartitionHidesEvenTheEndOfAConnection(t *testing.T) {
	r := newRig(t)
	tx, err := r.proxied.BeginTx(context.Background(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), "INSERT INTO notes VALUES (1)")
	require.NoError(t, err)
	open := func() (n int) {
		require.NoError(t, r.direct.QueryRowContext(t.Context(),
			"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'").Scan(&n))
		return n
	}
	require.Equal(t, 1, open())
	r.proxy.Partition()
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = tx.ExecContext(short, "INSERT INTO notes VALUES (2)")
	require.Error(t, err, "nothing passes")
	require.Error(t, tx.Commit(), "the driver has given the connection up")
	require.Never(t, func() bool { return open() == 0 }, 200*time.Millisecond, 20*time.Millisecond,
		"the server does not know")
	r.proxy.Heal()
	require.Eventually(t, func() bool { return open() == 0 }, patience, 5*time.Millisecond)
	require.Zero(t, r.notes())
	require.NoError(t, r.note(t.Context()))
}

// sessions returns how many sessions of the table's database are in a transaction and wait for their
// client: between two statements, or in the middle of one.
func (r *rig) sessions() (idle, midway int) {
	r.t.Helper()
	require.NoError(r.t, r.direct.QueryRowContext(r.t.Context(), `
		SELECT count(*) FILTER (WHERE state = 'idle in transaction'),
			count(*) FILTER (WHERE state = 'active' AND wait_event = 'ClientRead')
		FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`).Scan(&idle, &midway))
	return idle, midway
}

func TestSilentConnectionStaysOpenOnTheServer(t *testing.T) {
	insert := pgproxy.Containing("INSERT", "notes")
	for name, c := range map[string]struct {
		fail                 func(r *rig, tx *sql.Tx)
		wantIdle, wantMidway int
	}{
		"statement": {func(r *rig, _ *sql.Tx) { r.proxy.Lose(pgproxy.Silence, 1, insert) }, 1, 0},
		"half of a statement": {func(r *rig, tx *sql.Tx) {
			_, err := tx.ExecContext(t.Context(), "INSERT INTO notes VALUES ($1)", 0)
			require.NoError(r.t, err, "prepared")
			r.proxy.Lose(pgproxy.SilenceMidway, 1, insert)
		}, 0, 1},
		"between statements": {func(r *rig, _ *sql.Tx) { r.proxy.FallSilent() }, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			tx, err := r.proxied.BeginTx(context.Background(), nil)
			require.NoError(t, err)
			c.fail(r, tx)
			short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			began := time.Now()
			_, err = tx.ExecContext(short, "INSERT INTO notes VALUES ($1)", 1)
			require.ErrorIs(t, err, context.DeadlineExceeded, "the client does not know either")
			require.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond)
			require.Error(t, tx.Commit(), "the driver has given the connection up")
			require.Never(t, func() bool { idle, midway := r.sessions(); return idle != c.wantIdle || midway != c.wantMidway },
				200*time.Millisecond, 20*time.Millisecond, "the server does not know")
			require.NoError(t, r.note(t.Context()), "other connections work")
			require.Equal(t, 1, r.notes())
			r.proxy.Close()
			require.Eventually(t, func() bool { idle, midway := r.sessions(); return idle+midway == 0 }, patience,
				5*time.Millisecond)
			require.Equal(t, 1, r.notes())
		})
	}
}

func TestEachResponseIsDelayed(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.note(t.Context()), "connected")
	const delay = 50 * time.Millisecond
	r.proxy.Delay(delay)
	began := time.Now()
	require.NoError(t, r.note(t.Context()))
	require.GreaterOrEqual(t, time.Since(began), 3*delay, "begin, insert, commit")
	r.proxy.Delay(0)
	require.Equal(t, 2, r.notes())
}

func TestResponsesLostAtRandom(t *testing.T) {
	r := newRig(t)
	r.proxy.LoseAnswers(1)
	failed := 0
	for range 300 {
		// The argument matters: without one, pgx 5.12 takes a lost answer for a statement that was
		// not sent, and database/sql sends it again.
		if _, err := r.proxied.ExecContext(t.Context(), "INSERT INTO notes VALUES ($1)", 1); err != nil {
			failed++
		}
	}
	require.NotZero(t, failed)
	require.GreaterOrEqual(t, r.proxy.AnswersLost(), failed)
	r.proxy.LoseAnswers(0)
	_, err := r.proxied.ExecContext(t.Context(), "INSERT INTO notes VALUES (1)")
	require.NoError(t, err)
}

func TestCutClosesEveryConnection(t *testing.T) {
	r := newRig(t)
	conn, err := r.proxied.Conn(t.Context())
	require.NoError(t, err)
	require.NoError(t, conn.PingContext(t.Context()))
	require.Equal(t, 1, r.proxy.Cut())
	require.Error(t, conn.PingContext(t.Context()))
	require.ErrorIs(t, conn.Close(), sql.ErrConnDone)
	require.NoError(t, r.note(t.Context()), "on a new connection")
	require.Equal(t, 1, r.notes())
}

func TestCutEndsConnectionsThatAreHalfOpenOnTheServersSide(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.proxied.PingContext(t.Context()))
	r.proxy.Lose(pgproxy.Silence, 1, pgproxy.Containing("SELECT 1234"))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := r.proxied.ExecContext(ctx, "SELECT 1234")
	require.Error(t, err)
	sessions := func() (n int) {
		require.NoError(t, r.direct.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid()`).Scan(&n))
		return n
	}
	require.Equal(t, 1, sessions())
	r.proxy.Cut()
	require.Eventually(t, func() bool { return sessions() == 0 }, patience, 5*time.Millisecond)
}

func TestRedirectLeadsNewConnectionsToAnotherServer(t *testing.T) {
	r := newRig(t)
	require.ErrorContains(t, r.proxy.Redirect("postgres://%"), "proxy to")
	outer := pgproxy.New(t, r.proxy.DSN()) // leads to r.proxy at first
	require.NoError(t, outer.Redirect(testenv.PostgresDSN(t)))
	r.proxy.Partition()
	defer r.proxy.Heal()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, r.open(outer.DSN()).PingContext(ctx), "not through r.proxy any more")
}
