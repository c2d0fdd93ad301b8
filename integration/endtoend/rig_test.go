package endtoend

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

const patience = testenv.Patience

// readTimeout limits one of the test's own queries. The database may be silent, or read many rows.
const readTimeout = 20 * time.Second

// rig is a test's database with the inbox's tables, a ledger and workers.
type rig struct {
	t        *testing.T
	settings workload.Settings
	db       *sql.DB // the test's own connection to the database
	ledger   *workload.Ledger
	produced int
	pace     time.Duration // between two calls of what produces a load
}

var databases atomic.Int64

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigOn(t, postgresServer(t))
}

func newRigOn(t *testing.T, postgres *servers.Postgres) *rig {
	t.Helper()
	server, err := url.Parse(postgres.DSN())
	require.NoError(t, err)
	name := fmt.Sprintf("test_%d", databases.Add(1))
	admin := openSQL(t, server.String())
	_, err = admin.ExecContext(t.Context(), "CREATE DATABASE "+name+" TEMPLATE template0")
	require.NoError(t, err)
	server.Path = "/" + name

	return newRigIn(t, server.String())
}

// newRigOnMySQL makes a database of its own on a server of MySQL's kind.
func newRigOnMySQL(t *testing.T, server *servers.MySQL) *rig {
	t.Helper()
	name := fmt.Sprintf("test_%d", databases.Add(1))
	_, err := openSQL(t, server.DSN()).ExecContext(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	dsn, err := testenv.OnMySQLDatabase(server.DSN(), name)
	require.NoError(t, err)
	return newRigIn(t, dsn)
}

func newRigIn(t *testing.T, dsn string) *rig {
	t.Helper()
	return newRigBehind(t, dsn, dsn)
}

// newRigBehind makes a rig whose inboxes use another way to the database than the test itself.
func newRigBehind(t *testing.T, dsn, own string) *rig {
	t.Helper()
	r := &rig{t: t, settings: workload.Quick(dsn), db: openSQL(t, own), ledger: &workload.Ledger{},
		pace: 50 * time.Millisecond}
	require.NoError(t, workload.CreateTables(t.Context(), r.db))
	require.NoError(t, r.newInbox(r.settings.DSN).Migrate(t.Context()))
	require.NoError(t, workload.KeepDeleted(t.Context(), r.db))
	return r
}

func openSQL(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := workload.OpenSQL(dsn)
	require.NoError(t, err)
	db.SetMaxIdleConns(4)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// newInbox makes an inbox in this process without starting it. Its plain handler writes with the
// test's own connection.
func (r *rig) newInbox(dsn string) *inbox.Inbox {
	r.t.Helper()
	settings := r.settings
	settings.DSN = dsn
	return r.inboxOf(settings)
}

// inboxOf makes such an inbox with settings of its own.
func (r *rig) inboxOf(settings workload.Settings) *inbox.Inbox {
	r.t.Helper()
	db := openGORM(r.t, settings.DSN)
	ib, err := inbox.New(workload.InboxName, db, settings.Options(workload.NewHandlers(r.db), zap.NewNop())...)
	require.NoError(r.t, err)
	return ib
}

// openGORM opens a session, again while the database does not respond.
func openGORM(t *testing.T, dsn string) *gorm.DB {
	t.Helper()
	for deadline := time.Now().Add(patience); ; pause(t.Context(), 100*time.Millisecond) {
		db, err := workload.Open(dsn)
		if err == nil {
			pool, err := db.DB()
			require.NoError(t, err)
			t.Cleanup(func() {
				err := pool.Close() // MySQL's driver reports connections that a killed server has lost
				require.True(t, err == nil || strings.Contains(err.Error(), "bad connection"), err)
			})
			return db
		}
		require.True(t, time.Now().Before(deadline), "still cannot connect: %v", err)
	}
}

// worker starts a worker process. The test fails if it races or panics.
func (r *rig) worker(change ...func(*workload.Settings)) *workload.Worker {
	r.t.Helper()
	settings := r.settings
	for _, c := range change {
		c(&settings)
	}
	w, err := workload.StartWorker(settings, r.t.TempDir())
	require.NoError(r.t, err)
	r.t.Cleanup(func() {
		require.NoError(r.t, w.Kill())
		complaints, err := w.Complaints()
		require.NoError(r.t, err)
		require.Empty(r.t, complaints)
		if r.t.Failed() {
			r.t.Log(w.LogTail())
		}
	})
	return w
}

// id returns the next message ID.
func (r *rig) id() string {
	r.produced++
	return fmt.Sprintf("m-%06d", r.produced)
}

// jobs returns n messages.
func (r *rig) jobs(n int, job func(i int) workload.Job) []handler.RawMessage {
	messages := make([]handler.RawMessage, n)
	for i := range messages {
		messages[i] = job(i).Message(r.id())
	}
	return messages
}

// same returns the same job for every message.
func same(job workload.Job) func(int) workload.Job { return func(int) workload.Job { return job } }

// mixed returns quick jobs, some of which fail once or twice and a few of which poison.
func mixed(i int) workload.Job {
	job := workload.Job{DelayMS: i % 7 * 3}
	switch {
	case i%50 == 49:
		job.Poison = true
	case i%10 == 9:
		job.Fails = 1 + i%2
	}
	return job
}

// accept accepts messages directly and records them in the ledger. It retries until that succeeds,
// like a producer.
func (r *rig) accept(ib *inbox.Inbox, messages ...handler.RawMessage) {
	r.t.Helper()
	ids := make([]string, len(messages))
	for i, m := range messages {
		ids[i] = m.ID
	}
	r.ledger.Produced(ids...)
	deadline := time.Now().Add(patience)
	for {
		_, err := ib.Accept(r.t.Context(), messages...)
		if err == nil {
			return
		}
		require.NoError(r.t, r.t.Context().Err())
		require.True(r.t, time.Now().Before(deadline), "accept still fails: %v", err)
		pause(r.t.Context(), 100*time.Millisecond)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// progress reads the progress so far. A database that is down counts as no progress.
func (r *rig) progress() (workload.Progress, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), readTimeout)
	defer cancel()
	return workload.ReadProgress(ctx, r.db)
}

// awaitSettled waits until everything produced has ended, as long as there is progress. How much
// there is to do depends on the machine.
func (r *rig) awaitSettled() {
	r.t.Helper()
	var last workload.Progress
	deadline := time.Now().Add(patience)
	for {
		p, err := r.progress()
		if err == nil && r.ledger.Settled(p) {
			return
		}
		if err == nil {
			if p.Ended() > last.Ended() {
				deadline = time.Now().Add(patience)
			}
			last = p
		}
		if time.Now().After(deadline) {
			suspects, suspectsErr := r.ledger.Suspects(context.Background(), r.db)
			require.FailNow(r.t, "not settled", "%d produced, %+v, %v, %v\n%s", r.ledger.Count(), last, err, suspectsErr,
				strings.Join(suspects, "\n"))
		}
		pause(r.t.Context(), 100*time.Millisecond) // the query counts all rows
	}
}

// verdict compares the ledger with the database, and fails the test if a promise was broken.
func (r *rig) verdict() workload.Verdict {
	r.t.Helper()
	v, err := r.ledger.Verdict(r.t.Context(), r.db)
	require.NoError(r.t, err)
	r.t.Logf("ledger: %+v", v)
	if v.Broken() {
		suspects, err := r.ledger.Suspects(r.t.Context(), r.db)
		require.NoError(r.t, err)
		require.FailNow(r.t, "a promise was broken", "%+v\n%s", v, strings.Join(suspects, "\n"))
	}
	return v
}

// number runs a query that returns one number, again while the database does not respond.
func (r *rig) number(query string, args ...any) (n int) {
	r.t.Helper()
	lines := r.lines(query, args...)
	require.NotEmpty(r.t, lines, query)
	_, err := fmt.Sscan(lines[0], &n)
	require.NoError(r.t, err, query)
	return n
}

// lines runs a query that returns one text per row, again while the database does not respond.
func (r *rig) lines(query string, args ...any) []string {
	r.t.Helper()
	for deadline := time.Now().Add(patience); ; pause(r.t.Context(), 100*time.Millisecond) {
		lines, err := r.read(query, args...)
		if err == nil {
			return lines
		}
		require.True(r.t, time.Now().Before(deadline), "%s: still fails: %v", query, err)
	}
}

func (r *rig) read(query string, args ...any) (lines []string, err error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), readTimeout)
	defer cancel()
	rows, err := r.db.QueryContext(ctx, workload.Text(r.db, query), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, rows.Err()
}

// await waits for a condition. When it times out, it reports what is not done.
func (r *rig) await(what string, condition func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); !condition(); pause(r.t.Context(), 50*time.Millisecond) {
		if time.Now().After(deadline) {
			open := `SELECT to_jsonb(s)::text FROM inbox_handler_statuses s WHERE completed_at IS NULL ORDER BY id LIMIT 50`
			sessions := `SELECT to_jsonb(a)::text FROM pg_stat_activity a WHERE datname = current_database()`
			if workload.OnMySQL(r.db) {
				open = `SELECT CONCAT_WS(' ', message_id, handler_key, version, error_count, processing_started_at, due_at, last_error)
					FROM inbox_handler_statuses WHERE completed_at IS NULL ORDER BY id LIMIT 50`
				sessions = `SELECT CONCAT_WS(' ', id, user, command, time, state, info) FROM information_schema.processlist`
			}
			statuses, statusesErr := r.read(open)
			clients, clientsErr := r.read(sessions)
			require.FailNow(r.t, "waited in vain: "+what, "open:\n%s\nsessions:\n%s\n%v", strings.Join(statuses, "\n"),
				strings.Join(clients, "\n"), errors.Join(statusesErr, clientsErr))
		}
	}
}

// statuses returns all statuses with all of their columns, as JSON.
func (r *rig) statuses() []string {
	r.t.Helper()
	return r.lines(`SELECT to_jsonb(s)::text FROM inbox_handler_statuses s ORDER BY id`)
}
