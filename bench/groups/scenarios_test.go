package groups

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/bench/server"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestEachScenarioWorksAndItsCheckFindsAMissingStatus(t *testing.T) {
	for _, g := range []trial.Group{Latency(), Kafka(), Big(), Waiting(), Ordered(), Recovery(), Xmin(), Cleanup(),
		Operations(), ManyOperations(), Large(1_000_000), Workers()} {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			env := tinyEnv(t, g)
			for _, v := range kinds(t, g) {
				t.Run(v.Name, func(t *testing.T) {
					if g.Shared == nil {
						t.Parallel()
					}
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
					defer cancel()
					env := env // each variant has a database of its own
					env.DSN = testenv.PostgresDSN(t)
					one, err := v.New(ctx, &env)
					require.NoError(t, err)
					defer one.Close()
					require.NoError(t, one.Run(ctx))
					require.NoError(t, one.Check(ctx))
					removeNewest(t, ctx, databases(t, ctx, env))
					require.Error(t, one.Check(ctx), "the check does not notice that a status is missing")
				})
			}
		})
	}
}

func TestEachSQLiteVariantWorks(t *testing.T) {
	t.Parallel()
	for _, v := range kinds(t, SQLite()) {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			one, err := v.New(ctx, &trial.Env{Lab: &trial.Lab{Tiny: true, Log: io.Discard}})
			require.NoError(t, err)
			defer one.Close()
			require.Error(t, one.Check(ctx), "the check passes before the work is done")
			require.NoError(t, one.Run(ctx))
			require.NoError(t, one.Check(ctx))
		})
	}
}

func TestEachMariaDBVariantWorks(t *testing.T) {
	t.Parallel()
	shared := &mysqlServer{testenv.MySQLDSN(t, testenv.MariaDBVariable), io.NopCloser(nil)}
	for _, v := range kinds(t, MariaDB()) {
		t.Run(v.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			one, err := v.New(ctx, &trial.Env{Lab: &trial.Lab{Tiny: true, Log: io.Discard}, Shared: shared})
			require.NoError(t, err)
			defer one.Close()
			require.NoError(t, one.Run(ctx))
			require.NoError(t, one.Check(ctx))
		})
	}
}

func TestLatencyIsMeasuredForEveryMessage(t *testing.T) {
	w := newStopwatch(&trial.Env{Lab: &trial.Lab{Quick: true}})
	for i := range w.messages {
		w.due[i] = time.Second
		w.started[i].Store(int64(time.Second + time.Duration(i+1)*time.Millisecond))
	}
	n := float64(len(w.messages))
	require.Equal(t, map[string]float64{"p50_ms": n / 2, "p99_ms": n * 0.99, "max_ms": n}, w.figures())
}

// TestSlowAcceptDelaysAllWaitingMessages checks that a stall counts for all messages that it
// delays. An accept that stalls for the time of 40 messages (a checkpoint, a lock) makes most of 50
// messages late, not only its own.
func TestSlowAcceptDelaysAllWaitingMessages(t *testing.T) {
	const stall = 40 * time.Second / latencyRate
	w := newStopwatch(&trial.Env{Lab: &trial.Lab{Tiny: true}})
	require.Len(t, w.messages, 50)
	require.NoError(t, w.run(t.Context(), func(_ context.Context, i int) error {
		if i == 5 {
			<-time.After(stall)
		}
		w.start(i)
		return nil
	}))
	require.GreaterOrEqual(t, w.figures()["p50_ms"], float64(stall.Milliseconds())/4)
}

// tinyEnv returns an environment for trials on external servers.
func tinyEnv(t *testing.T, g trial.Group) trial.Env {
	t.Helper()
	_ = testenv.PostgresDSN(t) // skips the test if there is no server
	lab := &trial.Lab{Tiny: true, Log: io.Discard, Server: server.Use(os.Getenv(servers.PostgresEnv)),
		Kafka: os.Getenv(servers.KafkaEnv)}
	if g.Name == "kafka" && lab.Kafka == "" {
		testenv.LeaveOut(t, "Kafka on a real broker", servers.KafkaEnv)
	}
	env := trial.Env{Lab: lab}
	if g.Shared != nil {
		shared, err := g.Shared(t.Context(), lab)
		if errors.Is(err, trial.ErrLeftOut) {
			testenv.LeaveOutIf(t, err)
		}
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, shared.Close()) })
		env.Shared = shared
	}
	return env
}

// databases returns the databases in which a trial may have worked.
func databases(t *testing.T, ctx context.Context, env trial.Env) []string {
	t.Helper()
	switch shared := env.Shared.(type) {
	case *bigTables:
		dsns := []string{env.DSN}
		for _, d := range []*server.Database{shared.ordered, shared.random} {
			if d != nil {
				dsns = append(dsns, d.DSN)
			}
		}
		return dsns
	case *expired:
		return []string{shared.database.DSN}
	case *stuckInbox:
		if env.DSN != "" {
			return []string{env.DSN, shared.database.DSN}
		}
		return []string{shared.database.DSN}
	default:
		return []string{env.DSN}
	}
}

// removeNewest removes the newest status or job.
func removeNewest(t *testing.T, ctx context.Context, dsns []string) {
	t.Helper()
	removed := 0
	for _, dsn := range dsns {
		conn, err := pgx.Connect(ctx, dsn)
		require.NoError(t, err)
		for _, table := range []string{"inbox_handler_statuses", "river_job"} {
			var there bool
			require.NoError(t, conn.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, table).Scan(&there))
			if !there {
				continue // the trial used another database
			}
			_, err = conn.Exec(ctx, `DELETE FROM `+table+` WHERE id = (SELECT id FROM `+table+
				` ORDER BY created_at DESC, id DESC LIMIT 1)`)
			require.NoError(t, err)
			removed++
		}
		require.NoError(t, conn.Close(ctx))
	}
	require.NotZero(t, removed)
}
