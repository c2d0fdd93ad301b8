package groups

import (
	"context"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// tables are the tables whose rows checks count, in the order in which spoil prefers them.
var tables = []string{"bench_effects", "inbox_handler_statuses", "hand_statuses", "river_job", "watermill_bench",
	"gue_jobs"}

func TestEachVariantWorksAndItsCheckFindsAMissingRow(t *testing.T) {
	for _, g := range []trial.Group{Accept(), Accept3(), Process(), Transactional(), EndToEnd()} {
		for _, v := range kinds(t, g) {
			t.Run(g.Name+"/"+v.Name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				env := &trial.Env{Lab: &trial.Lab{Tiny: true, Log: io.Discard}, DSN: testenv.PostgresDSN(t)}
				one, err := v.New(ctx, env)
				require.NoError(t, err)
				defer one.Close()
				require.Error(t, one.Check(ctx), "the check passes before the work is done")
				require.NoError(t, one.Run(ctx))
				require.NoError(t, one.Check(ctx))
				spoil(t, ctx, env.DSN)
				require.Error(t, one.Check(ctx), "the check does not notice a change of one row")
			})
		}
	}
}

// differInANumber are variants that differ from another one of their group only in settings. A tiny
// trial of that other variant covers them.
var differInANumber = map[string][]string{
	"accept3": {gormEach, gormBatches},
	"process": {river2000, river500, textbook8, longTransaction8, minimalProcess2000,
		"Watermill SQL, batches of 1,000, backlog of 30,000", "gue, 32 workers"},
	"endtoend": {river2000, river500},
	"transactional": {"inbox Tx, 32 at once", "inbox TxGroup(10), 32 at once", "River JobCompleteTx, 32 workers",
		"claim, insert behind savepoints and complete, nothing else, 32 at once"},
	"latency": {"accepted elsewhere, polled every second", "River, 500 workers"},
	"workers": {"worker processes: 1", "worker processes: 4"},
	"big":     {acceptOrderedEmpty, processEmpty},
	"idempotent": {"gormstore.Wrap, 32 at once", "check, run, mark in a transaction, 32 at once",
		"check, run, mark without one, 32 at once"},
	"idempotent_redis": {"redisstore, 32 at once", "SET NX, then run, 32 at once", "GET, run, SET, 32 at once",
		"redisstore, 32 at once, duplicates later", "GET, run, SET, 32 at once, duplicates later"},
	"mariadb": {mysqlLog1000},
	"sqlite":  {"accept with mattn", "accept with mattn, GORM one by one", "process with modernc, GORM one by one"},
}

// kinds returns a group's variants without those.
func kinds(t *testing.T, g trial.Group) []trial.Variant {
	t.Helper()
	left := slices.DeleteFunc(slices.Clone(g.Variants), func(v trial.Variant) bool {
		return slices.Contains(differInANumber[g.Name], v.Name)
	})
	require.Len(t, left, len(g.Variants)-len(differInANumber[g.Name]), "%s has no such variants: %q", g.Name,
		differInANumber[g.Name])
	return left
}

// spoil removes one row, or adds one to a table that must end empty.
func spoil(t *testing.T, ctx context.Context, dsn string) {
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'`)
	require.NoError(t, err)
	present, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	at := slices.IndexFunc(tables, func(name string) bool { return slices.Contains(present, name) })
	require.GreaterOrEqual(t, at, 0, "no table that is known: %v", present)
	tag, err := conn.Exec(ctx, `DELETE FROM `+tables[at]+` WHERE ctid = (SELECT max(ctid) FROM `+tables[at]+`)`)
	require.NoError(t, err)
	if tag.RowsAffected() == 1 {
		return
	}
	switch tables[at] {
	case "watermill_bench":
		_, err = conn.Exec(ctx,
			`INSERT INTO watermill_bench (uuid, payload) VALUES ('left', decode(repeat('00', 1024), 'hex'))`)
	case "gue_jobs":
		_, err = conn.Exec(ctx, `INSERT INTO gue_jobs (job_id, priority, run_at, job_type, args, queue, created_at, updated_at)
			VALUES ('left', 0, now(), 'none', decode(repeat('00', 1024), 'hex'), 'none', now(), now())`)
	default:
		require.Fail(t, "nothing to take away", tables[at])
	}
	require.NoError(t, err)
}
