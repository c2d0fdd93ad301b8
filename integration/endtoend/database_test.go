package endtoend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// TestDatabaseOutageWhileKafkaDeliversIsSurvived proves contract 7.1 and 7.8: while the database is
// down nothing is committed, the partitions are kept and little is logged, and everything resumes
// without help.
func TestDatabaseOutageWhileKafkaDeliversIsSurvived(t *testing.T) {
	t.Parallel()
	server := disturbedPostgres(t)
	kafka := kafkaServer(t)
	s := newStreamOn(newRigOn(t, server), kafka.Admin, kafka.Brokers())
	first, second := s.worker(), s.observed()
	for _, outage := range []struct {
		name       string
		begin, end func() error
		lasts      time.Duration
	}{
		{"database frozen", server.Freeze, server.Thaw, 6 * time.Second},
		{"database stopped", server.Stop, server.Start, 3 * time.Second},
		{"database killed", server.Kill, server.Start, time.Second},
	} {
		s.underKafkaLoad(s.feed, func() {
			s.consumes(first)
			s.await("both are members", second.consumes)
			second.forget()
			require.NoError(t, outage.begin())
			before := second.Health().Consumers[0]
			pause(t.Context(), outage.lasts)
			during := second.Health().Consumers[0]
			require.Equal(t, before.Generation, during.Generation, "it stays a member")
			require.Len(t, during.Partitions, len(before.Partitions))
			require.Error(t, second.Health().Degraded())
			require.NoError(t, outage.end())
			s.worksOn()
			second.quiet(t, outage.name)
		})
		s.finish()
		require.True(t, first.Running(), "no worker gave up")
	}
}

// TestRebalancesDuringSlowAcceptsLoseAndDoubleNothing proves contract 7.1 and 7.2: members
// join and leave, with ten rebalances in a row, while each statement takes 200 ms and each accept
// therefore a second.
func TestRebalancesDuringSlowAcceptsLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	proxy := pgproxy.New(t, s.settings.DSN)
	stays := s.worker(unhurried, func(settings *workload.Settings) { settings.DSN = proxy.DSN() })
	s.underKafkaLoad(s.feed, func() {
		s.consumes(stays)
		proxy.Delay(200 * time.Millisecond)
		const joins = "kafka consumer joined its group"
		generations := func(w *workload.Worker) int {
			n, err := w.Logged(joins)
			require.NoError(t, err)
			return n
		}
		last := stays
		// A leave and the next join may be combined into one rebalance.
		for deadline := time.Now().Add(patience); generations(stays) < 11; {
			require.True(t, time.Now().Before(deadline), "only %d generations", generations(stays))
			next := s.worker(unhurried)
			s.await("it is a member", func() bool { return generations(next) > 0 })
			if last != stays {
				require.NoError(t, last.Wait(patience))
			}
			require.NoError(t, next.Terminate())
			last = next
		}
		require.NoError(t, last.Wait(patience))
		proxy.Delay(0)
		t.Logf("the member that stayed has joined %d generations", generations(stays))
	})
	s.finish()
}

// TestMemberFrozenPastItsSessionMovesNoOffsetBack proves contract 2 and 7.1: a member that was
// frozen past its session commits nothing for partitions that now belong to another.
func TestMemberFrozenPastItsSessionMovesNoOffsetBack(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	stale, other := s.worker(), s.worker()
	s.underKafkaLoad(s.feed, func() {
		s.consumes(stale)
		s.consumes(other)
		require.NoError(t, stale.Freeze())
		pause(t.Context(), s.settings.SessionTimeout)
		s.commitsOn()
		require.NoError(t, stale.Thaw())
		began := time.Now()
		before := s.number(`SELECT count(*) FROM runs WHERE pid = $1`, stale.PID())
		s.await("it is back", func() bool {
			return s.number(`SELECT count(*) FROM runs WHERE pid = $1`, stale.PID()) > before+20
		})
		t.Logf("the member was back within %s", time.Since(began))
	})
	s.finish()
	require.True(t, stale.Running() && other.Running(), "no worker gave up")
}
