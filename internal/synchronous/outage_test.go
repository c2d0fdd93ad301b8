package synchronous_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// A commit whose response is lost charges nothing. A transactional handler's writes are there at
// least once, with markers exactly once. SQLite has no connection to lose.
func TestLostCommitIsRepeatedUncharged(t *testing.T) {
	for _, tc := range []struct {
		name    string
		fault   pgproxy.Fault
		marked  bool
		runs    int32
		effects int
	}{
		{"committed, without markers", pgproxy.AnswerLost, false, 2, 2},
		{"committed, with markers", pgproxy.AnswerLost, true, 1, 1},
		{"not committed, without markers", pgproxy.RequestLost, false, 2, 1},
		{"not committed, with markers", pgproxy.RequestLost, true, 2, 1},
		{"not committed and silent, with markers", pgproxy.Silence, true, 2, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dsn := testenv.PostgresDSN(t)
			db := testenv.OpenPostgres(t, dsn)
			inboxtest.Exec(t, db, "CREATE TABLE effects (message_id varchar(200), run int)")
			proxy := pgproxy.New(t, dsn)
			runs := atomic.Int32{}
			h := handler.NewTx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				return tx.Exec("INSERT INTO effects VALUES (?, ?)", m.ID, runs.Add(1)).Error
			})
			tables(t, db)
			r, counters := newRunner(t, testenv.OpenPostgres(t, proxy.DSN()), func(c *synchronous.Config) {
				c.StatementTimeout = 5 * time.Second
				if c.MaxRetries = 1; tc.marked {
					remember(t, c, tables(t, c.DB))
				}
			}, h)
			proxy.LoseCommits(tc.fault, 1)
			require.NoError(t, deliver(t, r, 0, "1"))
			require.Zero(t, proxy.Left())
			require.Equal(t, tc.runs, runs.Load())
			var written int64
			require.NoError(t, db.Table("effects").Count(&written).Error)
			require.EqualValues(t, tc.effects, written)
			require.Zero(t, counters.Load(telemetry.Failed))
			require.EqualValues(t, 1, counters.Load(telemetry.Released))
		})
	}
}

// An unreachable database is not the handler's failure.
func TestOutageOfTheDatabaseChargesNoTransactionalHandler(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	proxy := pgproxy.New(t, dsn)
	written := effects(t, testenv.OpenPostgres(t, dsn))
	h := handler.NewTx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error { return write(tx, m.ID) })
	r, counters := newRunner(t, testenv.OpenPostgres(t, proxy.DSN()), func(c *synchronous.Config) { c.MaxRetries = 1 }, h)
	proxy.Lose(pgproxy.RequestLost, 5, func(sql string) bool { return strings.HasPrefix(strings.ToLower(sql), "begin") })
	require.NoError(t, deliver(t, r, 0, "1"))
	require.Zero(t, proxy.Left())
	require.GreaterOrEqual(t, counters.Load(telemetry.Released), int64(1))
	require.Equal(t, []string{"1"}, written())
	require.Zero(t, counters.Load(telemetry.Failed))
}
