package endtoend

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/ops"
)

// clustered is a load on servers of which Patroni chooses the leader.
type clustered struct {
	loaded
	cluster *servers.Patroni
	judge   *workload.Cable // the test's own way to the leader

	mu        sync.Mutex
	delivered map[string]string // what the ways have acknowledged, and where that is stored
}

func newClustered(t *testing.T, options servers.PatroniOptions) *clustered {
	t.Helper()
	kafka := kafkaServer(t)
	f := &clustered{delivered: map[string]string{}}
	var err error
	f.cluster, err = servers.StartPatroni(options)
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, f.cluster.Close()) })
	leader, err := f.cluster.Leader()
	require.NoError(t, err)
	f.judge, err = workload.StartCable(leader.DSN())
	require.NoError(t, err)
	t.Cleanup(f.judge.Close)
	r := newRigIn(t, f.judge.DSN())
	r.db.SetMaxIdleConns(0) // no session outlives a leader
	r.pace *= 4             // outages last long, and what they leave behind has to be handled
	f.stream = newStreamOn(r, kafka.Admin, kafka.Brokers())
	f.settings.DSN, f.settings.Generation = f.cluster.DSN(), workload.Original
	return f
}

// deliverAll runs disturb while each way delivers, and the load runs.
func (f *clustered) deliverAll(ways map[string]way, disturb func()) {
	f.t.Helper()
	run := func() { f.underLoad(disturb) }
	for name, w := range ways {
		inner := run
		run = func() {
			f.under(inner, func(ctx context.Context, number int) { f.deliver(ctx, w, fmt.Sprintf("%s %d", name, number)) })
		}
	}
	run()
}

// deliver delivers a message until that is acknowledged, and then again, as a duplicate.
func (f *clustered) deliver(ctx context.Context, w way, id string) {
	for range 2 {
		for {
			attempt, cancel := context.WithTimeout(ctx, 3*limit)
			err := w.deliver(attempt, id)
			cancel()
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return
			}
			pause(ctx, 50*time.Millisecond)
		}
		f.mu.Lock()
		f.delivered[id] = w.stored
		f.mu.Unlock()
	}
}

// ways returns the ways of TestAcknowledgedWritesSurviveTheLossOfThePrimary and two more, in a database of their own.
func (f *clustered) ways(dsn string) map[string]way {
	t := f.t
	t.Helper()
	_, err := f.db.ExecContext(t.Context(), "CREATE DATABASE ways")
	require.NoError(t, err)
	db := openGORM(t, onDatabase(t, dsn, "ways"))
	prepareWays(t, db)
	ib, err := inbox.New("failover", db, inbox.Configure(func(o *inbox.Options) {
		o.Processor.StatementTimeout = limit
	}), inbox.Channel("c", inbox.On("t",
		inbox.Func("h", func(context.Context, handler.Message[[]byte]) error { return nil }))))
	require.NoError(t, err)
	operator, err := ib.Ops()
	require.NoError(t, err)
	message := func(id string) handler.RawMessage { return handler.RawMessage{Channel: "c", Type: "t", ID: id} }

	all := waysOn(t, db)
	all["AcceptTx"] = way{deliver: func(ctx context.Context, id string) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			receipt, err := ib.AcceptTx(ctx, tx, message(id))
			if err != nil || receipt.Results[0].Outcome == handler.OutcomeDuplicate {
				return err
			}
			return effect(tx, id)
		})
	}, stored: "inbox_messages m JOIN done d ON d.message_id = m.id WHERE m.id = ?"}
	all["an operator"] = way{deliver: func(ctx context.Context, id string) error {
		if _, err := ib.Accept(ctx, message(id)); err != nil {
			return err
		}
		var status string
		const query = "SELECT id FROM inbox_handler_statuses WHERE message_id = ?"
		if err := db.WithContext(ctx).Raw(query, id).Scan(&status).Error; err != nil {
			return err
		}
		return operator.Reschedule(ctx, "ada", ops.Ref{StatusID: status}, time.Now().Add(24*time.Hour))
	}, stored: "inbox_handler_statuses WHERE message_id = ? AND next_attempt_at > now() + interval '1 hour'"}
	return all
}

// judgeDelivered finds each delivery once.
func (f *clustered) judgeDelivered() {
	f.t.Helper()
	db := openGORM(f.t, onDatabase(f.t, f.judge.DSN(), "ways"))
	var lost []string
	for id, stored := range f.delivered {
		var n int
		require.NoError(f.t, db.Raw("SELECT count(*) FROM "+stored, id).Scan(&n).Error)
		if n != 1 {
			lost = append(lost, fmt.Sprintf("%s: %d", id, n))
		}
	}
	require.Empty(f.t, lost, "acknowledged, and not stored once")
	var doubled []string
	const repeated = "SELECT message_id FROM done GROUP BY message_id HAVING count(*) > 1"
	require.NoError(f.t, db.Raw(repeated).Scan(&doubled).Error)
	require.Empty(f.t, doubled)
	f.t.Logf("%d deliveries were acknowledged, each is stored once", len(f.delivered))
}

// judgePublished compares what has left with what handlers have committed.
func (f *clustered) judgePublished() {
	f.t.Helper()
	f.await("all has left", func() bool {
		left, err := workload.ReadUnpublished(f.t.Context(), f.db)
		return err == nil && left == 0
	})
	v, err := workload.ReadPublished(f.t.Context(), f.db, f.settings.Brokers, f.settings.OutTopic)
	require.NoError(f.t, err)
	f.t.Logf("published: %+v", v)
	require.NotZero(f.t, v.Messages)
	require.Zero(f.t, v.Missing+v.Unknown+v.OutOfOrder)
}

// loss is a way in which a leader stops being one.
type loss struct {
	name  string
	begin func(*clustered, *servers.PatroniMember) error
	end   func(*servers.PatroniMember) error // brings it back, unless that happens by itself
}

var (
	killed = loss{"machine killed", func(_ *clustered, leader *servers.PatroniMember) error { return leader.Kill() },
		(*servers.PatroniMember).Start}
	crashed = loss{"PostgreSQL killed", func(_ *clustered, leader *servers.PatroniMember) error {
		return leader.KillPostgres()
	}, nil}
	frozen = loss{"machine frozen, and back", func(_ *clustered, leader *servers.PatroniMember) error {
		return leader.Freeze()
	}, (*servers.PatroniMember).Thaw}
	cutOff = loss{"cut off from etcd", func(_ *clustered, leader *servers.PatroniMember) error {
		return leader.Disconnect()
	}, (*servers.PatroniMember).Reconnect}
	switchedOver = loss{"switched over", func(f *clustered, _ *servers.PatroniMember) error {
		_, err := f.cluster.SwitchOver()
		return err
	}, nil}
)

// throughHAProxy starts a proxy, and returns its DSN.
func (f *clustered) throughHAProxy() string {
	f.t.Helper()
	proxy, err := f.cluster.StartHAProxy()
	testenv.LeaveOutIf(f.t, err)
	f.t.Cleanup(func() { require.NoError(f.t, proxy.Close()) })
	return proxy.DSN()
}

// throughPgBouncer starts a pooler before such a proxy, and returns its DSN.
func (f *clustered) throughPgBouncer() string {
	f.t.Helper()
	pooler, err := servers.StartPgBouncer(servers.PgBouncerOptions{Server: f.throughHAProxy(), Settings: map[string]string{
		"default_pool_size": "100", "server_login_retry": "1", "server_connect_timeout": "2",
	}})
	testenv.LeaveOutIf(f.t, err)
	f.t.Cleanup(func() { require.NoError(f.t, pooler.Close()) })
	return pooler.DSN() + "&default_query_exec_mode=exec"
}

// survives has the leader lost, waits until work goes on with another one, and brings the former one back.
func (f *clustered) survives(l loss) {
	f.t.Helper()
	require.NoError(f.t, f.cluster.AwaitCandidate())
	leader := f.blind()
	began := time.Now()
	require.NoError(f.t, l.begin(f, leader))
	f.follow(leader)
	elected := time.Since(began)
	f.worksOn()
	f.commitsOn()
	if l.end != nil {
		require.NoError(f.t, l.end(leader))
	}
	require.NoError(f.t, f.cluster.AwaitReplicas())
	f.worksOn()
	f.t.Logf("%s: another leader after %s; no accept for %s, no handler for %s", l.name,
		elected.Round(10*time.Millisecond),
		f.pauseSince(began, "SELECT received_at AS at FROM inbox_messages WHERE type = '"+workload.StepType+"'"),
		f.pauseSince(began, "SELECT at FROM effects"))
}

// blind ends the test's own way to the leader, which may soon lack what the next one has, and returns the leader.
func (f *clustered) blind() *servers.PatroniMember {
	f.t.Helper()
	leader, err := f.cluster.Leader()
	require.NoError(f.t, err)
	require.NoError(f.t, f.judge.Redirect("postgres://127.0.0.1:1/"))
	f.judge.Cut()
	return leader
}

// follow waits for another leader than this one, and directs the test's own way to it.
func (f *clustered) follow(former *servers.PatroniMember) {
	f.t.Helper()
	leader, err := f.cluster.AwaitLeader(former)
	require.NoError(f.t, err)
	require.NoError(f.t, f.judge.Redirect(leader.DSN()))
}

// pauseSince returns the longest time between two rows after this moment.
func (f *clustered) pauseSince(began time.Time, rows string) time.Duration {
	f.t.Helper()
	milliseconds := f.number(`SELECT COALESCE(max(1000 * extract(epoch FROM at - before)), 0)::bigint FROM
		(SELECT at, lag(at) OVER (ORDER BY at) AS before FROM (`+rows+`) r) gaps WHERE at >= $1`, began.UTC())
	return time.Duration(milliseconds) * time.Millisecond
}

// TestPatroniFailoversLoseAndDoubleNothing proves contract 2 and 5.12 on a cluster as users run it, with a synchronous
// replica: whatever happens to the leader, what was acknowledged is stored, handled and published, in the order of its
// lanes.
func TestPatroniFailoversLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	for _, route := range []struct {
		name   string
		dsn    func(*clustered) string
		losses []loss
	}{
		{"all hosts in the DSN", func(f *clustered) string { return f.cluster.DSN() }, []loss{killed, frozen}},
		{"HAProxy", (*clustered).throughHAProxy, []loss{switchedOver, cutOff, crashed}},
		{"PgBouncer before HAProxy", (*clustered).throughPgBouncer, []loss{frozen}},
	} {
		t.Run(route.name, func(t *testing.T) {
			t.Parallel()
			f := newClustered(t, servers.PatroniOptions{})
			f.settings.DSN = route.dsn(f)
			f.settings.OutTopic = f.settings.Topic + "-out"
			require.NoError(t, kafkaServer(t).CreateTopic(t.Context(), f.settings.OutTopic, partitions, nil))
			first, second := f.worker(), f.worker()
			f.deliverAll(f.ways(f.settings.DSN), func() {
				f.consumes(first)
				f.consumes(second)
				for _, l := range route.losses {
					f.survives(l)
				}
			})
			f.finish()
			f.judgeLanes()
			f.judgePublished()
			f.judgeDelivered()
			require.True(t, first.Running() && second.Running(), "no worker gave up")
		})
	}
}

// TestAsynchronousFailoverLosesWhatNoReplicaHadUntilItIsReadAgain shows what contract 2 does not promise: without a
// synchronous replica, a failover loses what was acknowledged last. Records are read from Kafka again. What was
// accepted directly is gone.
func TestAsynchronousFailoverLosesWhatNoReplicaHadUntilItIsReadAgain(t *testing.T) {
	t.Parallel()
	f := newClustered(t, servers.PatroniOptions{Members: 2, Asynchronous: true})
	f.loses = true
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
		note(&kept)
		replica := f.replica()
		f.awaitReceived(replica)
		require.NoError(t, replica.Kill())
		f.worksOn()
		f.commitsOn()
		leader := f.blind()
		require.NoError(t, leader.Kill())
		note(&before)
		require.NoError(t, replica.Start())
		f.follow(leader)
		f.worksOn()
		f.commitsOn()
		require.NoError(t, leader.Start())
		require.NoError(t, f.cluster.AwaitReplicas())
		f.worksOn()
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

// replica returns the member that is not the leader, of two.
func (f *clustered) replica() *servers.PatroniMember {
	f.t.Helper()
	leader, err := f.cluster.Leader()
	require.NoError(f.t, err)
	for _, m := range f.cluster.Members() {
		if m != leader {
			return m
		}
	}
	require.Fail(f.t, "no replica")
	return nil
}

// awaitReceived waits until a replica has all that the leader has written by now.
func (f *clustered) awaitReceived(replica *servers.PatroniMember) {
	f.t.Helper()
	position := f.lines("SELECT pg_current_wal_flush_lsn()::text")[0]
	db := openSQL(f.t, replica.DSN())
	f.await("the replica has it", func() bool {
		var received bool
		err := db.QueryRowContext(f.t.Context(), "SELECT pg_last_wal_receive_lsn() >= $1::pg_lsn", position).Scan(&received)
		return err == nil && received
	})
}

// judgeLost counts the steps that were acknowledged before the leader was lost, and are not stored. The replica had the
// kept ones.
func (f *clustered) judgeLost(kept, before [stepLanes]int) {
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
			require.Greater(f.t, n+1, kept[lane], "%s was on the replica", id)
		}
	}
	f.t.Logf("%d steps were acknowledged by the former leader, %d of them are lost", acknowledged, lost)
	require.NotZero(f.t, lost)
}

// onDatabase returns a DSN with another database.
func onDatabase(t *testing.T, dsn, database string) string {
	t.Helper()
	server, query, found := strings.Cut(dsn, "/postgres?")
	require.True(t, found, dsn)
	return server + "/" + database + "?" + query
}
