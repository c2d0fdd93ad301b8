package endtoend

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// side is one of two servers, of which one follows the other.
type side interface {
	DSN() string
	Start() error
	Kill() error
	Freeze() error
	Thaw() error
	Promote() error
}

// standbyOf starts the server that the commits of another wait for.
func standbyOf[S interface {
	StartStandby() (S, error)
	Close() error
}](t *testing.T, primary S) S {
	t.Helper()
	standby, err := primary.StartStandby()
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, standby.Close()) })
	return standby
}

func postgresPair(t *testing.T) (primary, standby side) {
	server := disturbedPostgres(t)
	return server, standbyOf(t, server)
}

func mariaDBPair(t *testing.T) (primary, standby side) {
	server := disturbedMariaDB(t)
	return server, standbyOf(t, server)
}

// loaded is a stream beside whose records steps are accepted directly.
type loaded struct {
	*stream
	acknowledged [stepLanes]atomic.Int64
	accepting    atomic.Int64 // how many lanes wait for an answer
	readOnly     atomic.Int64 // how often one was refused because the server is read-only
}

const stepLanes = 5

// replicated is a load on a server whose commits wait for a standby.
type replicated struct {
	loaded
	primary, standby side
	clients, judge   *workload.Cable // the workers' way, and the test's own
}

func newReplicated(t *testing.T, pair func(*testing.T) (primary, standby side)) *replicated {
	f := &replicated{}
	f.primary, f.standby = pair(t)
	kafka := kafkaServer(t)
	for _, cable := range []**workload.Cable{&f.clients, &f.judge} {
		var err error
		*cable, err = workload.StartCable(f.primary.DSN())
		require.NoError(t, err)
		t.Cleanup((*cable).Close)
	}
	f.stream = newStreamOn(newRigIn(t, f.judge.DSN()), kafka.Admin, kafka.Brokers())
	f.settings.DSN, f.settings.Generation = f.clients.DSN(), workload.Original
	if workload.OnMySQL(f.db) {
		f.useAccount()
	}
	return f
}

// useAccount has the workers connect as a user who cannot write on a read-only server.
func (f *replicated) useAccount() {
	for _, statement := range []string{"CREATE USER app@127.0.0.1", "GRANT ALL ON test.* TO app@127.0.0.1"} {
		_, err := f.db.ExecContext(f.t.Context(), statement)
		require.NoError(f.t, err)
	}
	f.settings.DSN = strings.Replace(f.settings.DSN, "root@", "app@", 1)
}

// underLoad runs disturb while records are produced and steps are accepted. Each lane repeats a step until it is
// acknowledged.
func (f *loaded) underLoad(disturb func()) {
	f.t.Helper()
	settings := f.settings
	settings.Brokers = nil
	application := settings.DSN
	if workload.OnMySQL(f.db) { // of this pool the inbox does not close sessions that have become read-only
		application += "&rejectReadOnly=true"
	}
	ib, db := f.inboxOf(settings), openGORM(f.t, application)
	run := func() { f.underKafkaLoad(f.feed, disturb) }
	for lane := range stepLanes {
		inner := run
		run = func() { f.under(inner, func(ctx context.Context, _ int) { f.acceptNext(ctx, ib, db, lane) }) }
	}
	run()
}

// acceptNext accepts the next step of a lane, every second one in a transaction of its own.
func (f *loaded) acceptNext(ctx context.Context, ib *inbox.Inbox, db *gorm.DB, lane int) {
	n := int(f.acknowledged[lane].Load()) + 1
	step := workload.Step{Lane: fmt.Sprint("lane ", lane), N: n, Fails: max(0, n%10-8), Snoozes: n%10 == 5}
	accept := func() (err error) {
		attempt, cancel := context.WithTimeout(ctx, 3*limit)
		defer cancel()
		if n%2 == 0 {
			_, err = ib.Accept(attempt, step.Message())
			return err
		}
		return db.WithContext(attempt).Transaction(func(tx *gorm.DB) error {
			_, err := ib.AcceptTx(attempt, tx, step.Message())
			return err
		})
	}
	for ctx.Err() == nil {
		f.accepting.Add(1)
		err := accept()
		f.accepting.Add(-1)
		if err == nil {
			f.acknowledged[lane].Add(1)
			return
		}
		if strings.Contains(err.Error(), "Error 1290") {
			f.readOnly.Add(1)
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// stepped returns how many steps were acknowledged.
func (f *loaded) stepped() (n int) {
	for lane := range stepLanes {
		n += int(f.acknowledged[lane].Load())
	}
	return n
}

// judgeLanes waits until each step is handled, and compares them with what was acknowledged.
func (f *loaded) judgeLanes() {
	f.t.Helper()
	f.await("each step is handled", func() bool {
		return f.number(`SELECT count(*) FROM inbox_handler_statuses WHERE completed_at IS NULL AND NOT is_poisoned`) == 0
	})
	verdict, err := workload.ReadLanes(f.t.Context(), f.db, f.stepped())
	require.NoError(f.t, err)
	f.t.Logf("%+v", verdict)
	require.Equal(f.t, workload.LaneVerdict{Lanes: stepLanes, Steps: f.stepped(), Reruns: verdict.Reruns}, verdict)
}

// fallSilent waits until no accept is answered any more.
func (f *replicated) fallSilent(begin func() error) {
	f.t.Helper()
	require.NoError(f.t, begin())
	f.await("each lane waits for its answer", func() bool { return f.accepting.Load() == stepLanes })
}

// promote makes the standby the primary, which by then has all that was acknowledged.
func (f *replicated) promote() {
	f.t.Helper()
	before := f.stepped()
	require.Positive(f.t, before)
	require.NoError(f.t, f.standby.Promote())
	f.hasAll(f.standby.DSN(), before)
	require.NoError(f.t, f.clients.Redirect(f.standby.DSN()))
}

// hasAll has the test's own statements go to a new primary, which must have as many steps as were acknowledged.
func (f *replicated) hasAll(primary string, acknowledged int) {
	f.t.Helper()
	require.NoError(f.t, f.judge.Redirect(primary))
	f.judge.Cut()
	stored := 0
	const steps = `SELECT count(*) FROM inbox_messages WHERE type = '` + workload.StepType + `'`
	require.Eventually(f.t, func() bool {
		return f.db.QueryRowContext(f.t.Context(), steps).Scan(&stored) == nil
	}, patience, 50*time.Millisecond)
	f.t.Logf("%d steps were acknowledged by the former primary, %d are stored by its standby", acknowledged, stored)
	require.GreaterOrEqual(f.t, stored, acknowledged)
}

// TestFailoverUnderLoadLosesAndDoublesNothing proves contract 2 and 5.12 for a primary that is lost while it accepts
// and workers consume. What it has acknowledged is handled once and in the order of its lanes.
func TestFailoverUnderLoadLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for _, loss := range []struct {
		name  string
		pair  func(*testing.T) (primary, standby side)
		begin func(f *replicated)
		end   func(f *replicated) error
	}{
		{"PostgreSQL killed", postgresPair, (*replicated).kill, nil},
		{"MariaDB killed", mariaDBPair, (*replicated).kill, nil},
		{"MariaDB frozen, fenced and back", mariaDBPair, func(f *replicated) {
			f.fallSilent(f.primary.Freeze)
			f.promote()
			f.clients.Cut()
		}, func(f *replicated) error { return f.primary.Thaw() }},
		{"MariaDB read-only, with its sessions", mariaDBPair, (*replicated).switchOver, func(f *replicated) error {
			require.Positive(f.t, f.readOnly.Load(), "sessions with the former primary")
			return nil
		}},
	} {
		t.Run(loss.name, func(t *testing.T) {
			t.Parallel()
			f := newReplicated(t, loss.pair)
			first, second := f.worker(), f.worker()
			f.underLoad(func() {
				f.consumes(first)
				f.consumes(second)
				loss.begin(f)
				f.worksOn()
				f.commitsOn()
				if loss.end != nil {
					require.NoError(t, loss.end(f))
					f.worksOn()
				}
			})
			f.judgeAll(first, second)
		})
	}
}

// judgeAll waits until everything is handled, and judges the records, the steps and the workers.
func (f *loaded) judgeAll(workers ...*workload.Worker) {
	f.t.Helper()
	f.finish()
	f.judgeLanes()
	for _, worker := range workers {
		require.True(f.t, worker.Running(), "no worker gave up")
	}
}

// kill kills the primary while the standby is silent, so that it has commits that were not acknowledged.
func (f *replicated) kill() {
	f.fallSilent(f.standby.Freeze)
	require.NoError(f.t, f.primary.Kill())
	require.NoError(f.t, f.standby.Thaw())
	f.promote()
}

// switchOver leaves the clients' sessions with the former primary, which takes no writes any more.
func (f *replicated) switchOver() {
	_, err := f.db.ExecContext(f.t.Context(), "SET GLOBAL read_only = ON")
	require.NoError(f.t, err)
	f.promote()
}

// TestAsynchronousFailoverLosesWhatNoReplicaHadUntilItIsReadAgain shows what contract 2 does not promise: without a
// synchronous standby, a failover loses what was acknowledged last. Records are read from Kafka again. What was
// accepted directly is gone.
func TestAsynchronousFailoverLosesWhatNoReplicaHadUntilItIsReadAgain(t *testing.T) {
	t.Parallel()
	f := newReplicated(t, postgresPair)
	f.mayLose = true
	began := time.Now()
	var kept, before [stepLanes]int
	note := func(to *[stepLanes]int) {
		for lane := range to {
			to[lane] = int(f.acknowledged[lane].Load())
		}
	}
	first, second := f.worker(), f.worker()
	f.underLoad(func() {
		f.consumes(first)
		f.consumes(second)
		note(&kept) // by the standby, which commits have waited for
		for _, statement := range []string{"ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"} {
			_, err := f.db.ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		require.NoError(t, f.standby.Kill())
		f.worksOn()
		f.commitsOn()
		require.NoError(t, f.primary.Kill())
		note(&before)
		require.NoError(t, f.standby.Start())
		require.NoError(t, f.standby.Promote())
		require.NoError(t, f.judge.Redirect(f.standby.DSN()))
		require.NoError(t, f.clients.Redirect(f.standby.DSN()))
		f.worksOn()
		f.commitsOn()
	})
	f.judgeLost(kept, before)

	require.NoError(t, f.feed.Flush(t.Context()))
	f.await("everything is committed", func() bool {
		committed, length := f.offsets.Committed()
		return length >= int64(f.ledger.Count()) && committed == length
	})
	skipped, err := f.offsets.Skipped(t.Context())
	require.NoError(t, err)
	require.NotZero(t, skipped)
	settings := f.settings
	settings.StatementTimeout = patience // it accepts 1,000 records at once, on a busy machine
	operator, err := f.inboxOf(settings).Ops()
	require.NoError(t, err)
	again, err := operator.ReadAgain(t.Context(), "ada", envelope.ReadAgain{Channel: workload.Channel,
		Topic: f.settings.Topic, From: began})
	require.NoError(t, err)
	t.Logf("%d records were committed and lost; reading again: %+v", skipped, again)
	require.Empty(t, again.Left)
	f.finish()
	require.True(t, first.Running() && second.Running(), "no worker gave up")
}

// judgeLost counts the steps that were acknowledged before the primary was lost, and are not stored. The standby had
// the kept ones.
func (f *loaded) judgeLost(kept, before [stepLanes]int) {
	f.t.Helper()
	stored := map[string]bool{}
	for _, id := range f.lines(`SELECT id FROM inbox_messages WHERE type = $1`, workload.StepType) {
		stored[id] = true
	}
	acknowledged, lost := 0, 0
	for lane := range stepLanes {
		acknowledged += before[lane]
		for n := range before[lane] {
			id := workload.Step{Lane: fmt.Sprint("lane ", lane), N: n + 1}.Message().ID
			if stored[id] {
				continue
			}
			lost++
			require.Greater(f.t, n+1, kept[lane], "%s was on the standby", id)
		}
	}
	f.t.Logf("%d steps were acknowledged by the former primary, %d of them are lost", acknowledged, lost)
	require.NotZero(f.t, lost)
}
