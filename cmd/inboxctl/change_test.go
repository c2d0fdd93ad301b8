package main

import (
	"hash/fnv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

func TestDeletingRequiresTheIDAsConfirmation(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("boom", "a", "b")
		rejected := r.reject(1, nil, nil)
		for _, args := range [][]string{{"delete", "a"}, {"rejected", "delete", rejected}} {
			for _, no := range []string{"", "yes\n", "b\n"} {
				out := r.answer(no, args...)
				require.Equal(t, exitRefused, out.code, out.errOut)
				require.Contains(t, out.errOut, "cannot be undone")
			}
			require.Equal(t, exitMisuse, r.run(append(args, "--confirm", "b")...).code)
			require.Equal(t, exitMisuse, r.run(append(args, "--confirm", "")...).code)
		}
		require.Empty(t, r.audit())
		require.Equal(t, 2, inboxtest.CountMessages(t, r.ib))

		require.Contains(t, r.answer("a\n", "delete", "a").out, "deleted message a")
		require.Equal(t, map[string]any{"message_id": "b", "outcome": "deleted"},
			r.done("delete", "b", "--confirm", "b", "-o", "json").object())
		require.Zero(t, inboxtest.CountMessages(t, r.ib))
		require.Equal(t, exitNotFound, r.run("delete", "a", "--confirm", "a").code)
		require.Contains(t, r.answer(rejected+"\n", "rejected", "delete", rejected).out, "deleted rejected message")
		require.Equal(t, exitNotFound, r.run("rejected", "delete", rejected, "--confirm", rejected).code)
		require.Equal(t, []string{"alice delete message a", "alice delete message b",
			"alice delete_rejected rejected message " + rejected}, r.audit())
	})
}

func TestPausedHandlersAreNotClaimedUntilResumed(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		inboxtest.Accept(t, r.ib, "a")
		require.Equal(t, exitNotFound, r.run("pause", "unknown").code)
		out := r.run("pause", "unknown", failing)
		require.Equal(t, exitPartly, out.code)
		require.Equal(t, "paused "+failing+"\n", out.out)
		require.Contains(t, r.done("status").out, "paused")
		inboxtest.Process(t, r.ib)
		require.Nil(t, r.status("a").CompletedAt)
		r.done("resume", failing, "-o", "json")
		require.Equal(t, failing+" was not paused\n", r.done("resume", failing).out)
		inboxtest.Process(t, r.ib)
		require.NotNil(t, r.status("a").CompletedAt)
		require.Equal(t, exitMisuse, r.run("pause").code)
		require.Equal(t, []string{"alice pause handler " + failing, "alice resume handler " + failing}, r.audit())
	})
}

// TestHelpSaysWhatNeedsTheApplication proves contract 11.1: and how to do it in Go where none runs.
func TestHelpSaysWhatNeedsTheApplication(t *testing.T) {
	t.Parallel()
	help := runWith(t, t.Context(), nil, "", "help", "application").out
	require.Contains(t, help, "o.Replay(")
	require.Contains(t, help, "o.ReAccept(")
	require.Contains(t, help, "o.ReAcceptMatching(")
	require.Contains(t, help, "o.Backfill(")
	require.Contains(t, help, "o.ReadAgain(")
}

func TestRejectedRecordsAreListedByPartition(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		id := r.reject(1, nil, nil)
		require.Contains(t, r.done("rejected", "list", "--topic", "orders", "--partition", "0").out, id)
		require.Contains(t, r.done("rejected", "list", "--topic", "orders", "--partition", "1").out, "No rejected message found")
		require.Equal(t, exitMisuse, r.run("rejected", "list", "--topic", "orders", "--partition", "-1").code)
	})
}

func TestCleanupDeletesOldCompletedMessages(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		inboxtest.Accept(t, r.ib, "old", "new")
		r.poisoned("boom", "poisoned")
		long := time.Now().UTC().Add(-48 * time.Hour)
		require.NoError(t, r.d.DB.Model(&models.HandlerStatus{}).Where("message_id IN ? AND completed_at IS NOT NULL",
			[]string{"old", "poisoned"}).Update("completed_at", long).Error)
		require.NoError(t, r.d.DB.Model(&models.Message{}).Where("id IN ?", []string{"old", "poisoned"}).Update("received_at",
			long).Error)
		require.NoError(t, r.d.DB.Model(&models.HandlerStatus{}).Where("message_id IN ?",
			[]string{"old", "poisoned"}).Update("created_at", long).Error)

		// The application keeps running: its workers list their handlers.
		st := inboxtest.Store(t, r.d.DB)
		require.NoError(t, st.Heartbeat(t.Context(), store.Worker{ID: "0197a1c2-0000-7000-8000-000000000002", Host: "host",
			PID: 7, HandlerKeys: []string{failing, fine}}, time.Now()))

		for _, bad := range []string{"", "0", "-1h", "soon", "99999999d"} {
			require.Equal(t, exitMisuse, r.run("cleanup", "--yes", "--retention", bad).code, bad)
		}
		require.Equal(t, exitRefused, r.answer("no\n", "cleanup", "--retention", "1d").code)
		require.Equal(t, 3, inboxtest.CountMessages(t, r.ib))
		require.Empty(t, r.audit())

		report := r.answer("yes\n", "cleanup", "--retention", "1d", "-o", "json")
		require.Zero(t, report.code, report.errOut)
		require.Equal(t, 1.0, report.object()["messages"])
		require.Equal(t, 3.0, report.object()["statuses"])
		require.True(t, r.status("poisoned").IsPoisoned)
		require.Equal(t, 2, inboxtest.CountMessages(t, r.ib))
		require.Equal(t, []string{"alice cleanup inbox", "alice cleanup inbox"}, r.audit())

		held, err := st.AcquireLease(t.Context(), "cleanup", "0197a1c2-0000-7000-8000-000000000001", time.Minute, time.Now())
		require.NoError(t, err)
		require.True(t, held)
		require.Equal(t, exitRefused, r.run("cleanup", "--retention", "1d", "--yes").code)
		require.NoError(t, st.ReleaseLease(t.Context(), "cleanup", "0197a1c2-0000-7000-8000-000000000001"))
		require.Zero(t, r.run("cleanup", "--retention", "1d", "--yes").code)

		unread := []models.Partition{{Channel: "c", GroupID: "g", Topic: "orders"}}
		require.NoError(t, st.RecordProgress(t.Context(), unread, nil, time.Now()))
		waits := r.run("cleanup", "--retention", "1d", "--yes")
		require.Equal(t, exitRefused, waits.code)
		require.Contains(t, waits.errOut, "orders/0 has never been read to its end")
	})
}

func TestActorIsRequiredByCommands(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("boom", "a", "b")
		a, b := r.status("a").ID, r.status("b").ID
		for _, args := range [][]string{{"retry", a}, {"discard", "--matching", "--handler", failing, "--yes"}, {"show", "a"},
			{"delete", "a"}, {"pause", failing}, {"resume", failing},
			{"cleanup", "--retention", "1d"}, {"rejected", "show", a},
			{"rejected", "delete", a}} {
			for _, nobody := range []string{"", "  "} {
				out := r.run(append(args, "--actor", nobody)...)
				require.Equal(t, exitMisuse, out.code, "%v: %s", args, out.errOut)
				require.Contains(t, out.errOut, "give your name with --actor")
			}
			require.Equal(t, exitMisuse, r.run(append(args, "--actor", strings.Repeat("x", 201))...).code, "%v", args)
		}
		r.done("status", "--actor", "")
		require.Empty(t, r.audit())
		r.done("retry", a, "--actor", "bob")
		out := runWith(t, t.Context(), r.with(actorVariable, ""), "", "retry", b)
		require.Zero(t, out.code, out.errOut)
		require.Equal(t, []string{"bob retry status " + a, defaultActor(func(string) string { return "" }) +
			" retry status " + b}, r.audit())
		require.Contains(t, r.audit()[1], "@")
	})
}

func TestMigrateCreatesTheTables(t *testing.T) {
	for dialect, dsn := range map[string]func(testing.TB) string{"postgres": testenv.PostgresDSN,
		"sqlite": testenv.SQLiteDSN} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			env := map[string]string{dsnVariable: dsn(t), actorVariable: "alice", prefixVariable: "in_"}
			names := []string{"--prefix", "in_"}
			if dialect == "postgres" {
				env[schemaVariable] = "orders"
				names = append(names, "--schema", "orders")
			} else {
				out := runWith(t, t.Context(), env, "", "migrate", "status")
				require.Equal(t, exitFailed, out.code)
				require.Contains(t, out.errOut, "does not exist")
				require.Equal(t, exitMisuse, runWith(t, t.Context(), env, "", "migrate", "up", "--inbox", "x", "--schema",
					"s").code)
			}
			run := func(args ...string) result { return runWith(t, t.Context(), env, "", args...) }
			require.Equal(t, exitMisuse, run("migrate", "up").code, "without a name an application could not start on them")
			if dialect == "postgres" {
				require.Equal(t, "missing", func() any {
					out := run("migrate", "status", "-o", "json")
					require.Equal(t, exitFailed, out.code)
					return out.object()["state"]
				}())
				out := run("status")
				require.Equal(t, exitFailed, out.code)
				require.Contains(t, out.errOut, "inbox tables are missing")
			}
			require.Contains(t, run("migrate", "up", "--inbox", "orders").out, "created: version")
			require.Contains(t, run("migrate", "up", "--inbox", "orders").out, "nothing to do: version")
			require.Contains(t, run("migrate", "status").out, "current: version")
			require.Zero(t, run("status").code)
			out := run("migrate", "up", "--inbox", "other")
			require.Equal(t, exitFailed, out.code)
			require.Contains(t, out.errOut, "belong to another inbox")

			// The printed SQL makes the same tables, whichever tool runs it.
			printed := runWith(t, t.Context(), nil, "", append([]string{"migrate", "print", "--dialect", dialect}, names...)...)
			require.Zero(t, printed.code, printed.errOut)
			env[dsnVariable] = dsn(t)
			open := testenv.OpenSQLite
			if dialect == "postgres" {
				open = testenv.OpenPostgres
			}
			db := open(t, env[dsnVariable])
			for _, statement := range (models.Migration{SQL: printed.out}).Statements() {
				require.NoError(t, db.Exec(statement).Error, statement)
			}
			require.Contains(t, run("migrate", "status").out, "current: version")
			require.Contains(t, run("migrate", "up", "--inbox", "orders").out, "nothing to do")
			tables := models.Naming{Schema: env[schemaVariable], Prefix: "in_"}
			require.NoError(t, db.Clauses(tables).Where(`"key" = 'hash_0001'`).Updates(&models.Meta{Value: "other"}).Error)
			for _, args := range [][]string{{"status"}, {"migrate", "status"}, {"migrate", "up", "--inbox", "orders"}} {
				out := run(args...)
				require.Equal(t, exitFailed, out.code, args)
				require.Contains(t, out.errOut, "another commit of this module made them", args)
			}
			require.Empty(t, run("migrate", "print", "--after", "1000000").out)
		})
	}
}

// TestTablesAreDividedByTimeAndBack proves contract 6.8 for the commands.
func TestTablesAreDividedByTimeAndBack(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		operator := r.env[dsnVariable]
		refused := r.run("migrate", "partition")
		require.Equal(t, exitFailed, refused.code, "an operator does not own the tables")
		require.Contains(t, refused.errOut, "permission denied")
		r.env[dsnVariable] = d.DSN()
		require.Equal(t, "the tables are partitioned\n", r.done("migrate", "partition").out)
		require.Equal(t, "partitioned", r.done("migrate", "partition", "-o", "json").object()["layout"])
		require.Contains(t, r.done("migrate", "status").out, "current: version")
		require.Contains(t, r.done("migrate", "up", "--inbox", "test").out, "nothing to do")
		r.env[dsnVariable] = operator
		r.poisoned("broken", "m1")
		require.Contains(t, r.done("list", "--state", "poisoned").out, "m1")
		r.fixed()
		r.done("retry", "m1", "--yes")
		inboxtest.Process(t, r.ib)
		require.NotNil(t, r.status("m1").CompletedAt)
		r.env[dsnVariable] = d.DSN()
		left := r.run("migrate", "unpartition")
		require.Equal(t, exitFailed, left.code)
		require.Contains(t, left.errOut, "partitions are left: 2")
	})
}

func TestMigrateWaitsNoLongerThanItsTimeout(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		key := fnv.New64a()
		key.Write([]byte("inbox migrate " + models.Naming{}.Meta()))
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			// another process's migration holds this lock
			require.NoError(t, tx.Exec(`SELECT pg_advisory_xact_lock(?)`, int64(key.Sum64())).Error)
			out := r.run("migrate", "up", "--inbox", "test", "--timeout", "1s")
			require.Equal(t, exitFailed, out.code, out.out)
			require.Contains(t, out.errOut, "not done within 1s, increase --timeout")
			return nil
		}))
		require.Zero(t, r.run("migrate", "up", "--inbox", "test").code)
	})
}

// TestReAcceptOfRejectedMessagesIsRequested proves contract 11.1: by ID and by filter, after a count.
func TestReAcceptOfRejectedMessagesIsRequested(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ids := []string{r.reject(1, nil, nil), r.reject(2, nil, nil), r.reject(3, nil, nil)}
		requested := func() (n int64) {
			require.NoError(t, r.ib.DB().Model(&models.RejectedMessage{}).Where("requested_by = 'alice'").Count(&n).Error)
			return n
		}
		for _, args := range [][]string{{}, {ids[0], "--dry-run"}, {ids[0], "--channel", "c"}, {"--matching"},
			{"--matching", "--channel", "c", ids[0]}, {"--matching", "--channel", "c", "--chunk", "0"}} {
			require.Equal(t, exitMisuse, r.run(append([]string{"rejected", "accept"}, args...)...).code, args)
		}
		require.Equal(t, exitNotFound, r.run("rejected", "accept", "00000000-0000-7000-8000-00000000000f").code)
		require.Zero(t, requested())
		require.Equal(t, "requested to accept "+ids[0]+"\n", r.done("rejected", "accept", ids[0]).out)
		require.EqualValues(t, 1, requested())
		require.Contains(t, r.done("rejected", "accept", "--matching", "--channel", "c", "--dry-run").errOut,
			"Rejected messages that match: 3")
		require.Equal(t, exitRefused, r.answer("no\n", "rejected", "accept", "--matching", "--channel", "c").code)
		require.EqualValues(t, 1, requested())
		require.Contains(t, r.answer("yes\n", "rejected", "accept", "--matching", "--channel", "c").out, "requested 3")
		require.EqualValues(t, 3, requested())
	})
}

// TestMigrateCreatesTheTablesOfMySQL proves that the command and the printed SQL make the same tables, in the DSN's
// database and in another one.
func TestMigrateCreatesTheTablesOfMySQL(t *testing.T) {
	t.Parallel()
	for _, named := range []bool{false, true} {
		dsn := testenv.MySQLDSN(t, testenv.MariaDBVariable)
		db := testenv.Open(t, mysql.Open(dsn), gorm.Config{})
		flags := func() (flags []string) {
			if named {
				schema := "inbox_" + strings.ReplaceAll(uuid.NewString(), "-", "")
				t.Cleanup(func() { require.NoError(t, testenv.RunMySQL(dsn, "DROP DATABASE IF EXISTS "+schema)) })
				flags = []string{"--schema", schema}
			}
			return append(flags, "--prefix", "in_")
		}
		run := func(args ...string) result {
			return runWith(t, t.Context(), map[string]string{dsnVariable: dsn, actorVariable: "alice"}, "", args...)
		}
		at := flags()
		require.Equal(t, exitFailed, run(append(at, "status")...).code)
		require.Contains(t, run(append(at, "migrate", "up", "--inbox", "orders")...).out, "created: version")
		require.Contains(t, run(append(at, "migrate", "up", "--inbox", "orders")...).out, "nothing to do: version")
		require.Zero(t, run(append(at, "status")...).code)
		out := run(append(at, "migrate", "up", "--inbox", "other")...)
		require.Equal(t, exitFailed, out.code)
		require.Contains(t, out.errOut, "belong to another inbox")

		if !named { // the tables are not there yet
			dsn = testenv.MySQLDSN(t, testenv.MariaDBVariable)
			db = testenv.Open(t, mysql.Open(dsn), gorm.Config{})
		}
		at = flags()
		printed := runWith(t, t.Context(), nil, "", append(at, "migrate", "print", "--dialect", "mysql")...)
		require.Zero(t, printed.code, printed.errOut)
		for range 2 { // each statement commits by itself, so the script can be run again after a failure
			for _, statement := range (models.Migration{SQL: printed.out}).Statements() {
				require.NoError(t, db.Exec(statement).Error, statement)
			}
		}
		require.Contains(t, run(append(at, "migrate", "status")...).out, "current: version")
		require.Contains(t, run(append(at, "migrate", "up", "--inbox", "orders")...).out, "nothing to do")
	}
}
