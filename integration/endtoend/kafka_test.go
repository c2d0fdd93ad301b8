package endtoend

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/integration/servers"
)

// stream is a rig whose workers consume a topic of their own. Its offsets are watched.
type stream struct {
	*rig
	feed    *workload.Feed
	offsets *workload.Offsets
	mayLose bool // the database may lose what it has acknowledged
}

const partitions = 4

func newStream(t *testing.T) *stream {
	t.Helper()
	kafka := kafkaServer(t)
	return newStreamOn(newRig(t), kafka.Admin, kafka.Brokers())
}

// newStreamOn makes a stream with servers of the test's own.
func newStreamOn(r *rig, admin *servers.Admin, brokers []string) *stream {
	t := r.t
	t.Helper()
	s := &stream{rig: r}
	s.settings.Brokers = brokers
	s.settings.Topic = fmt.Sprintf("jobs-%d", databases.Add(1))
	s.settings.Group = s.settings.Topic + "-group"
	require.NoError(t, admin.CreateTopic(t.Context(), s.settings.Topic, partitions, nil))
	var err error
	s.feed, err = workload.NewFeed(brokers, s.settings.Topic, s.ledger)
	require.NoError(t, err)
	t.Cleanup(s.feed.Close)
	s.offsets, err = workload.WatchOffsets(t.Context(), admin, brokers, s.settings.Group, s.settings.Topic, s.db)
	require.NoError(t, err)
	t.Cleanup(func() { // the workers have stopped
		if !t.Failed() {
			s.judgeOffsets()
		}
		s.offsets.Stop()
	})
	return s
}

// finish waits until everything is handled and committed, and returns the verdict.
func (s *stream) finish() workload.Verdict {
	s.t.Helper()
	require.NoError(s.t, s.feed.Flush(s.t.Context()))
	s.awaitSettled()
	s.await("everything is committed", func() bool {
		committed, length := s.offsets.Committed()
		return length >= int64(s.ledger.Count()) && committed == length
	})
	s.judgeOffsets()
	require.NotZero(s.t, s.offsets.Report().Commits)
	skipped, err := s.offsets.Skipped(s.t.Context())
	require.NoError(s.t, err)
	require.Zero(s.t, skipped, "records of the topic are stored nowhere")
	return s.verdict()
}

// worksOn waits until handlers have run after this call.
func (s *stream) worksOn() {
	s.t.Helper()
	began, done := time.Now(), s.number(`SELECT count(*) FROM effects`)
	s.await("work goes on", func() bool { return s.number(`SELECT count(*) FROM effects`) > done+50 })
	s.t.Logf("work went on within %s", time.Since(began))
}

// commitsOn waits until records were accepted and committed after this call.
func (s *stream) commitsOn() {
	s.t.Helper()
	began := time.Now()
	before, _ := s.offsets.Committed()
	s.await("offsets are committed", func() bool {
		committed, _ := s.offsets.Committed()
		return committed > before+50
	})
	s.t.Logf("offsets were committed within %s", time.Since(began))
}

// consumes waits until a worker has run handlers after this call.
func (s *stream) consumes(w *workload.Worker) {
	s.t.Helper()
	runs := func() int { return s.number(`SELECT count(*) FROM runs WHERE pid = $1`, w.PID()) }
	before := runs()
	s.await("it works", func() bool { return runs() > before+20 })
}

// judgeOffsets judges all commits so far.
func (s *stream) judgeOffsets() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience) // a cleanup has no context of the test
	defer cancel()
	require.NoError(s.t, s.offsets.CatchUp(ctx))
	report := s.offsets.Report()
	s.t.Logf("%d commits of offsets", report.Commits)
	require.Zero(s.t, report.Backwards, strings.Join(report.Details, "\n"))
	if !s.mayLose {
		require.Zero(s.t, report.PastUnstored, strings.Join(report.Details, "\n"))
	}
}

// TestRebalancesUnderLoadLoseAndDoubleNothing proves contract 2 and 7.1 for members that join,
// leave and die.
func TestRebalancesUnderLoadLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	first := s.worker()
	s.underKafkaLoad(s.feed, func() {
		s.consumes(first)
		second := s.worker()
		s.consumes(second)
		require.NoError(t, first.Terminate())
		third := s.worker()
		require.NoError(t, first.Wait(patience))
		s.consumes(third)
		require.NoError(t, second.Kill())
		before, _ := s.offsets.Committed()
		s.await("the survivor has taken over all partitions", func() bool {
			committed, length := s.offsets.Committed()
			return committed > before && length-committed < 100
		})
	})
	s.finish()
}

// TestWorkerKilledBetweenAcceptAndCommitDuplicatesNothing proves contract 2, first row: redelivered
// records do not become second messages.
func TestWorkerKilledBetweenAcceptAndCommitDuplicatesNothing(t *testing.T) {
	t.Parallel()
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
