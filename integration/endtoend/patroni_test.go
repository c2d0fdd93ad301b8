package endtoend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/ops"
)

// clustered is a load on servers of which Patroni chooses the leader. The first worker has all of them in its DSN, the
// second one connects through HAProxy, and all other clients through PgBouncer before HAProxy.
type clustered struct {
	loaded
	cluster *servers.Patroni
	judge   *workload.Cable // the test's own way to the leader
	workers []*workload.Worker
	ways    map[string]way
	lost    time.Time // when the last leader was lost

	mu        sync.Mutex
	delivered map[string][]string // the message IDs that each way has acknowledged
}

func newClustered(t *testing.T) *clustered {
	t.Helper()
	kafka := kafkaServer(t)
	f := &clustered{delivered: map[string][]string{}}
	var err error
	f.cluster, err = servers.StartPatroni(3)
	requireStarted(t, err)
	t.Cleanup(func() { require.NoError(t, f.cluster.Close()) })
	proxy, err := f.cluster.StartHAProxy()
	requireStarted(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	pooler, err := servers.StartPgBouncer(servers.PgBouncerOptions{Server: proxy.DSN(), Settings: map[string]string{
		"default_pool_size": "100", "server_login_retry": "1", "server_connect_timeout": "2",
	}})
	requireStarted(t, err)
	t.Cleanup(func() { require.NoError(t, pooler.Close()) })
	leader, err := f.cluster.Leader()
	require.NoError(t, err)
	f.judge, err = workload.StartCable(leader.DSN())
	require.NoError(t, err)
	t.Cleanup(f.judge.Close)

	r := newRigIn(t, f.judge.DSN())
	r.db.SetMaxIdleConns(0) // no session outlives a leader
	r.pace *= 4             // an outage is long, and its backlog has to be handled
	f.stream = newStreamOn(r, kafka.Admin, kafka.Brokers())
	f.settings.Generation = workload.Original
	f.settings.StatementTimeout, f.settings.WorkerTimeout = 5*time.Second, 5*time.Second
	f.settings.HeartbeatInterval = time.Second
	f.settings.OutTopic = f.settings.Topic + "-out"
	require.NoError(t, kafka.CreateTopic(t.Context(), f.settings.OutTopic, partitions, nil))
	for _, dsn := range []string{f.cluster.DSN(), proxy.DSN()} {
		f.workers = append(f.workers, f.worker(func(s *workload.Settings) { s.DSN = dsn }))
	}
	f.settings.DSN = pooler.DSN() + "&default_query_exec_mode=exec"
	f.openWays()
	return f
}

// openWays makes a database for what is delivered beside the load, by the ways of
// TestAcknowledgedWritesSurviveTheLossOfThePrimary and by a reschedule.
func (f *clustered) openWays() {
	t := f.t
	t.Helper()
	_, err := f.db.ExecContext(t.Context(), "CREATE DATABASE ways")
	require.NoError(t, err)
	db := openGORM(t, onDatabase(t, f.settings.DSN, "ways"))
	prepareWays(t, db)
	operator, err := ops.New(db, func(o *ops.Options) { o.StatementTimeout = limit })
	require.NoError(t, err)
	f.ways = waysOn(t, db)
	accept := f.ways["Accept"].deliver
	f.ways["a reschedule"] = way{deliver: func(ctx context.Context, id string) error {
		if err := accept(ctx, id); err != nil {
			return err
		}
		var status string
		const query = "SELECT id FROM inbox_handler_statuses WHERE message_id = ?"
		if err := db.WithContext(ctx).Raw(query, id).Scan(&status).Error; err != nil {
			return err
		}
		return operator.Reschedule(ctx, "ada", ops.Ref{StatusID: status}, time.Now().Add(24*time.Hour))
	}, stored: "inbox_handler_statuses WHERE message_id = ? AND next_attempt_at > now() + interval '1 hour'"}
}

// underAll runs disturb under the load while each way delivers messages, each of them twice.
func (f *clustered) underAll(what string, disturb func()) {
	f.t.Helper()
	run := func() { f.underLoad(disturb) }
	for name, w := range f.ways {
		inner := run
		run = func() {
			f.under(inner, func(ctx context.Context, number int) {
				id := fmt.Sprintf("%s %d, %s", name, number, what)
				if w.repeat(ctx, id) != nil {
					return
				}
				f.mu.Lock()
				f.delivered[name] = append(f.delivered[name], id)
				f.mu.Unlock()
				_ = w.repeat(ctx, id) // under reports the end of ctx
			})
		}
	}
	run()
}

// repeat delivers a message until that is acknowledged or ctx ends.
func (w way) repeat(ctx context.Context, id string) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, 3*limit)
		err := w.deliver(attempt, id)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// judgeDelivered finds each delivery once, also after all were delivered again to the last leader.
func (f *clustered) judgeDelivered() {
	f.t.Helper()
	f.judgeStored()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	failed := make(chan error, len(f.ways))
	for name, w := range f.ways {
		go func() {
			var err error
			for _, id := range f.delivered[name] {
				err = errors.Join(err, w.repeat(ctx, id))
			}
			failed <- err
		}()
	}
	for range f.ways {
		require.NoError(f.t, <-failed)
	}
	f.judgeStored()
}

// judgeStored finds each delivery once.
func (f *clustered) judgeStored() {
	f.t.Helper()
	db := openGORM(f.t, onDatabase(f.t, f.judge.DSN(), "ways"))
	deliveries := 0
	var lost, doubled []string
	for name, ids := range f.delivered {
		deliveries += len(ids)
		for _, id := range ids {
			var n int
			require.NoError(f.t, db.Raw("SELECT count(*) FROM "+f.ways[name].stored, id).Scan(&n).Error)
			if n != 1 {
				lost = append(lost, fmt.Sprintf("%s: %d", id, n))
			}
		}
	}
	require.Empty(f.t, lost, "acknowledged, and not stored once")
	const repeated = "SELECT message_id FROM done GROUP BY message_id HAVING count(*) > 1"
	require.NoError(f.t, db.Raw(repeated).Scan(&doubled).Error)
	require.Empty(f.t, doubled)
	f.t.Logf("%d deliveries were acknowledged, each is stored once", deliveries)
}

// judgePublished compares what has left with what handlers have committed.
func (f *clustered) judgePublished() {
	f.t.Helper()
	f.await("all has left", func() bool {
		left, err := workload.ReadUnpublished(f.t.Context(), f.db)
		return err == nil && left == 0
	})
	v, err := workload.ReadPublished(f.t.Context(), f.db, f.settings.Brokers, f.settings.OutTopic, nil)
	require.NoError(f.t, err)
	f.t.Logf("published: %+v", v)
	require.NotZero(f.t, v.Messages)
	require.Zero(f.t, v.Missing+v.Unknown+v.OutOfOrder)
}

// judgeUncharged finds no failure of a transactional handler that did not ask for it (contract 5.7).
func (f *clustered) judgeUncharged() {
	f.t.Helper()
	require.Empty(f.t, f.lines(`SELECT concat_ws(' ', s.handler_key, s.message_id, s.error_count, s.last_error)
		FROM inbox_handler_statuses s JOIN inbox_messages m ON m.number = s.message_number
		WHERE s.handler_key IN ('record-effect', 'step-tx') AND s.error_count > 0 AND NOT s.is_poisoned
		AND convert_from(m.content, 'UTF8')::jsonb->'fails' IS NULL LIMIT 20`))
}

// loss is a way in which a leader stops being one.
type loss struct {
	name    string
	begin   func(*clustered, *servers.PatroniMember) error
	end     func(*servers.PatroniMember) error // brings it back, unless that happens by itself
	expires bool                               // another leader comes after ttl
}

// leaderLosses are all of them. Each run has the first two.
var leaderLosses = []loss{
	{"switched over", func(f *clustered, _ *servers.PatroniMember) error { return f.cluster.SwitchOver() }, nil, false},
	{"machine killed", (*clustered).kill, (*servers.PatroniMember).Start, true},
	{"PostgreSQL killed", func(_ *clustered, leader *servers.PatroniMember) error {
		return leader.KillPostgres()
	}, nil, false},
	{"frozen, and back", func(_ *clustered, leader *servers.PatroniMember) error {
		return leader.Freeze()
	}, (*servers.PatroniMember).Thaw, true},
	{"cut off from etcd", func(_ *clustered, leader *servers.PatroniMember) error {
		return leader.Disconnect()
	}, (*servers.PatroniMember).Reconnect, true},
}

// kill kills the leader while its replicas are silent. What they have not received by then is lost with it, because
// their PostgreSQL dies before it reads what waits in its connections.
func (f *clustered) kill(leader *servers.PatroniMember) (err error) {
	replicas := slices.DeleteFunc(f.cluster.Members(), func(m *servers.PatroniMember) bool { return m == leader })
	for _, m := range replicas {
		err = errors.Join(err, m.Freeze())
	}
	accepted, since := f.stepped(), time.Now()
	f.await("nothing is accepted any more", func() bool {
		if n := f.stepped(); n != accepted {
			accepted, since = n, time.Now()
		}
		return time.Since(since) > 3*time.Second // a busy machine pauses for less
	})
	f.lost = time.Now()
	err = errors.Join(err, leader.Kill())
	for _, m := range replicas {
		err = errors.Join(err, m.KillPostgres(), m.Thaw())
	}
	return err
}

// failOver has the leader lost, waits until all goes on with another one, and brings the former one back. In a hurry it
// does not wait until the leader's time in etcd is up.
func (f *clustered) failOver(l loss, hurry bool) {
	f.t.Helper()
	require.NoError(f.t, f.cluster.AwaitCandidate())
	leader := f.disconnectJudge()
	f.lost = time.Now()
	require.NoError(f.t, l.begin(f, leader))
	if l.expires && hurry {
		require.NoError(f.t, f.cluster.ExpireLeader())
	}
	next, err := f.cluster.AwaitLeader(leader)
	require.NoError(f.t, err)
	require.NoError(f.t, f.judge.Redirect(next.DSN()))
	f.goesOn()
	if l.end != nil {
		require.NoError(f.t, l.end(leader))
	}
	require.NoError(f.t, f.cluster.AwaitReplicas())
	f.goesOn()
	handled := func(w *workload.Worker) time.Duration {
		return f.pauseSinceLoss("SELECT at FROM effects WHERE pid = " + strconv.Itoa(w.PID()))
	}
	f.t.Logf("%s: all hosts in the DSN: no handler for %s; HAProxy: no handler for %s; PgBouncer: no accept for %s", l.name,
		handled(f.workers[0]), handled(f.workers[1]),
		f.pauseSinceLoss("SELECT received_at AS at FROM inbox_messages WHERE type = '"+workload.StepType+"'"))
}

// disconnectJudge ends the test's own way to the leader, which may soon lack what the next one has, and returns the
// leader.
func (f *clustered) disconnectJudge() *servers.PatroniMember {
	f.t.Helper()
	leader, err := f.cluster.Leader()
	require.NoError(f.t, err)
	require.NoError(f.t, f.judge.Redirect("postgres://127.0.0.1:1/"))
	f.judge.Cut()
	return leader
}

// goesOn waits until each worker, the consumers, each lane and each way have worked after this call.
func (f *clustered) goesOn() {
	f.t.Helper()
	before := f.counts()
	for _, w := range f.workers {
		f.consumes(w)
	}
	f.commitsOn()
	f.await("each lane and each way go on", func() bool {
		for what, n := range f.counts() {
			if n == before[what] {
				return false
			}
		}
		return true
	})
}

// counts returns how much each lane and each way has acknowledged.
func (f *clustered) counts() map[string]int {
	counts := map[string]int{}
	for lane := range stepLanes {
		counts[fmt.Sprint("lane ", lane)] = int(f.acknowledged[lane].Load())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for name := range f.ways {
		counts[name] = len(f.delivered[name])
	}
	return counts
}

// pauseSinceLoss returns the longest time between two rows since the last loss, or between the loss and a row.
func (f *clustered) pauseSinceLoss(rows string) time.Duration {
	f.t.Helper()
	milliseconds := f.number(`SELECT COALESCE(max(1000 * extract(epoch FROM at - GREATEST(before, $1))), 0)::bigint FROM
		(SELECT at, lag(at) OVER (ORDER BY at) AS before FROM (`+rows+`) r) gaps WHERE at >= $1`, f.lost.UTC())
	return time.Duration(milliseconds) * time.Millisecond
}

// TestPatroniFailoversLoseAndDoubleNothing proves contract 2, 5.7 and 5.12 on a cluster as users run it, with a
// synchronous replica. However the leader is lost, what was acknowledged is stored, handled and published, in the order
// of its lanes. With all losses, each new leader also waits for ttl, which users see.
func TestPatroniFailoversLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	chosen, others := leaderLosses, leaderLosses[2:]
	part := testenv.Rotation(t, len(others))
	if part != testenv.All {
		chosen = append(slices.Clone(leaderLosses[:2]), others[part])
	}
	f := newClustered(t)
	for _, l := range chosen {
		f.underAll(l.name, func() {
			f.goesOn()
			f.failOver(l, part != testenv.All)
		})
	}
	f.finish()
	f.judgeLanes()
	f.judgePublished()
	f.judgeUncharged()
	f.judgeDelivered()
	require.True(t, f.workers[0].Running() && f.workers[1].Running(), "no worker gave up")
}

// onDatabase returns a DSN with another database.
func onDatabase(t *testing.T, dsn, database string) string {
	t.Helper()
	server, query, found := strings.Cut(dsn, "/postgres?")
	require.True(t, found, dsn)
	return server + "/" + database + "?" + query
}
