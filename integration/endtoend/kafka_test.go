package endtoend

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/integration/servers"
)

// stream is a rig whose workers consume a topic of their own, watched.
type stream struct {
	*rig
	kafka   *servers.Kafka
	feed    *workload.Feed
	offsets *workload.Offsets
}

const partitions = 4

func newStream(t *testing.T) *stream {
	t.Helper()
	kafka := kafkaServer(t)
	s := &stream{rig: newRig(t), kafka: kafka}
	s.settings.Brokers = kafka.Brokers()
	s.settings.Topic = fmt.Sprintf("jobs-%d", databases.Add(1))
	s.settings.Group = s.settings.Topic + "-group"
	require.NoError(t, kafka.CreateTopic(t.Context(), s.settings.Topic, partitions, nil))
	var err error
	s.feed, err = workload.NewFeed(kafka.Brokers(), s.settings.Topic, s.ledger)
	require.NoError(t, err)
	t.Cleanup(s.feed.Close)
	admin := servers.NewAdmin(kafka.Brokers()...)
	t.Cleanup(admin.Close)
	s.offsets, err = workload.WatchOffsets(admin, kafka.Brokers(), s.settings.Group, s.settings.Topic, s.db)
	require.NoError(t, err)
	t.Cleanup(func() { s.offsets.Stop() })
	return s
}

// finish waits until everything is handled and committed, and judges.
func (s *stream) finish() workload.Verdict {
	s.t.Helper()
	require.NoError(s.t, s.feed.Flush(s.t.Context()))
	s.awaitSettled()
	s.await("everything is committed", func() bool {
		committed, length := s.offsets.Committed()
		return length >= int64(s.ledger.Count()) && committed == length
	})
	s.judgeOffsets()
	return s.verdict()
}

func (s *stream) judgeOffsets() {
	s.t.Helper()
	report := s.offsets.Report()
	s.t.Logf("%d samples of committed offsets", report.Samples)
	require.NotZero(s.t, report.Samples)
	require.Zero(s.t, report.Backwards, strings.Join(report.Details, "\n"))
	require.Zero(s.t, report.PastUnstored, strings.Join(report.Details, "\n"))
}

// Contract 7.1, 7.8.
func TestBrokerOutageUnderLoadIsSurvived(t *testing.T) {
	kafka := kafkaServer(t)
	for _, outage := range []struct {
		name       string
		begin, end func() error
		lasts      time.Duration
	}{
		{"stopped and started again", kafka.Stop, kafka.Start, 10 * time.Second},
		{"frozen", kafka.Freeze, kafka.Thaw, 6 * time.Second},
	} {
		t.Run(outage.name, func(t *testing.T) {
			s := newStream(t)
			first, second := s.worker(), s.worker()
			s.underKafkaLoad(s.feed, func() {
				t.Cleanup(func() { require.NoError(t, kafka.Start()) })
				t.Cleanup(func() { require.NoError(t, kafka.Thaw()) })
				s.await("work is under way", func() bool { return s.number(`SELECT count(*) FROM effects`) > 50 })
				require.NoError(t, outage.begin())
				pause(t.Context(), outage.lasts)
				require.NoError(t, outage.end())
				back := time.Now()
				done := s.number(`SELECT count(*) FROM effects`)
				s.await("work goes on", func() bool { return s.number(`SELECT count(*) FROM effects`) > done+50 })
				t.Logf("work went on within %s", time.Since(back))
			})
			s.finish()
			require.True(t, first.Running() && second.Running(), "no worker gave up")
		})
	}
}

// Contract 2, 7.1: a member that comes, one that leaves and one that dies.
func TestRebalancesUnderLoadLoseAndDoubleNothing(t *testing.T) {
	s := newStream(t)
	first := s.worker()
	s.underKafkaLoad(s.feed, func() {
		consumed := func(w *workload.Worker) {
			t.Helper()
			s.await("it works", func() bool { return s.number(`SELECT count(*) FROM runs WHERE pid = $1`, w.PID()) > 20 })
		}
		consumed(first)
		second := s.worker()
		consumed(second)
		require.NoError(t, first.Terminate())
		third := s.worker()
		require.NoError(t, first.Wait(patience))
		consumed(third)
		require.NoError(t, second.Kill())
		before, _ := s.offsets.Committed()
		s.await("the survivor has taken over all partitions", func() bool {
			committed, length := s.offsets.Committed()
			return committed > before && length-committed < 100
		})
	})
	s.finish()
}

// Contract 2, first row: redelivered records become no second message.
func TestWorkerKilledBetweenAcceptAndCommitDoublesNothing(t *testing.T) {
	s := newStream(t)
	never := func(settings *workload.Settings) { settings.CommitInterval = time.Hour }
	victim := s.worker(never)
	s.settings.Concurrency = 4
	s.rig.feed(t.Context(), s.feed, 200, 0)
	require.NoError(t, s.feed.Flush(t.Context()))
	s.await("all is accepted and some of it done", func() bool {
		p, err := s.progress()
		return err == nil && p.Messages == 200 && p.Rejected == 1 && p.Completed > 0
	})
	committed, length := s.offsets.Committed()
	require.Zero(t, committed, "nothing is committed")
	require.NoError(t, victim.Kill())
	s.worker()
	v := s.finish()
	require.Equal(t, 200, v.Accepted)
	committed, _ = s.offsets.Committed()
	require.GreaterOrEqual(t, committed, length)
}
