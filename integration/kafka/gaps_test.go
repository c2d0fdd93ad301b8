package kafka

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
)

// continuing returns an inbox that continues after gaps.
func continuing(t *testing.T, d *inboxtest.Database, k *kafkatest.Kafka, more ...inbox.Option) *inbox.Inbox {
	t.Helper()
	cfg := config(k.Brokers(), topic)
	cfg.Decoder = envelope.DecoderConfig{Type: "t"} // the ID is in a header
	return inboxtest.New(t, d.DB, append([]inbox.Option{inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
		o.Acceptor.OnGap = acceptor.GapContinue
	}),
		inbox.Channel("c", inbox.Kafka(cfg), inbox.On("t", inboxtest.Do("h", inboxtest.Nothing)))}, more...)...)
}

func during(t *testing.T, ib *inbox.Inbox, work func()) {
	t.Helper()
	require.NoError(t, ib.Start(t.Context()))
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, ib.Stop(ctx))
	}()
	work()
}

func produceIDs(t *testing.T, k *kafkatest.Kafka, from, to int) {
	t.Helper()
	var records []kafkatest.Record
	for i := from; i < to; i++ {
		records = append(records, record(0, fmt.Sprint(i)))
	}
	require.NoError(t, k.Produce(topic, records...))
}

func gapsOf(t *testing.T, ib *inbox.Inbox) (gaps []models.Gap) {
	t.Helper()
	require.NoError(t, ib.DB().Clauses(ib.Tables()).Order("id").Find(&gaps).Error)
	return gaps
}

// TestGapIsStoredOnceBeforeTheOffsetMoves proves contract 7.5. The commit after the gap fails, as in
// a crash, so the next consumer finds the same gap. There must be one row.
func TestGapIsStoredOnceBeforeTheOffsetMoves(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
		observed, logs := inboxtest.Observe()
		ib := continuing(t, d, k, observed)
		produceIDs(t, k, 0, 20)
		during(t, ib, func() {
			eventually(t, "the first are committed", func() bool { return k.Committed(group, topic)[0] == 20 })
		})
		produceIDs(t, k, 20, 40)
		require.NoError(t, k.DeleteRecords(topic, 0, 35))
		fault := k.FailNext(kmsg.OffsetCommit, 22, 4) // tries of two sessions
		during(t, ib, func() {
			eventually(t, "those that are left are committed", func() bool { return k.Committed(group, topic)[0] == 40 })
		})
		require.Positive(t, fault.Hits())
		require.Equal(t, 25, inboxtest.CountMessages(t, ib))
		gaps := gapsOf(t, ib)
		require.Len(t, gaps, 1)
		require.Equal(t, []any{"c", topic, int32(0), int64(20), int64(35)},
			[]any{gaps[0].Channel, gaps[0].Topic, gaps[0].Partition, gaps[0].FromOffset, gaps[0].ToOffset})
		require.Contains(t, gaps[0].Reason, "15 records were deleted unread")
		require.EqualValues(t, 1, ib.Counters().Gaps)
		require.NotZero(t, logs.FilterMessageSnippet("kept already").Len(), "it came again")
		lines := logs.FilterMessageSnippet("records are missing").FilterField(zap.Int64("from_offset",
			20)).FilterField(zap.Int64("to_offset", 35)).All()
		require.Len(t, lines, 1)
		require.Equal(t, topic, lines[0].ContextMap()["topic"])
	})
}

// TestLogEndingBeforeTheOffsetIsReadFromItsStart checks an offset after the log's end, which
// belongs to another log. All of this log is read, and the committed offset moves back to its
// beginning.
func TestLogEndingBeforeTheOffsetIsReadFromItsStart(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
		ib := continuing(t, d, k)
		produceIDs(t, k, 0, 5)
		commit(t, k, 100)
		commits := observeCommits(k)
		during(t, ib, func() {
			eventually(t, "all is committed", func() bool { return k.Committed(group, topic)[0] == 5 })
			h := ib.Health().Consumers[0]
			require.True(t, h.CaughtUp(), "with what this log holds")
			require.Zero(t, h.Partitions[0].Lag)
		})
		require.Equal(t, 5, inboxtest.CountMessages(t, ib))
		for _, offset := range commits() {
			require.LessOrEqual(t, offset, int64(5))
		}
		gaps := gapsOf(t, ib)
		require.Len(t, gaps, 1)
		require.Equal(t, []int64{100, 0}, []int64{gaps[0].FromOffset, gaps[0].ToOffset})
	})
}

// commit sets the group's offset like an operator.
func commit(t *testing.T, k *kafkatest.Kafka, offset int64) {
	t.Helper()
	client, err := kgo.NewClient(k.ClientOptions()...)
	require.NoError(t, err)
	defer client.Close()
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, 0, offset, -1)
	require.NoError(t, kadm.NewClient(client).CommitAllOffsets(t.Context(), group, offsets))
}

// observeCommits returns a function that returns the offsets committed so far.
func observeCommits(k *kafkatest.Kafka) func() []int64 {
	var mu sync.Mutex
	var offsets []int64
	k.Cluster().ControlKey(int16(kmsg.OffsetCommit), func(request kmsg.Request) (kmsg.Response, error, bool) {
		k.Cluster().KeepControl()
		mu.Lock()
		defer mu.Unlock()
		for _, topic := range request.(*kmsg.OffsetCommitRequest).Topics {
			for _, p := range topic.Partitions {
				offsets = append(offsets, p.Offset)
			}
		}
		return nil, nil, false
	})
	return func() []int64 {
		mu.Lock()
		defer mu.Unlock()
		return append([]int64(nil), offsets...)
	}
}

// values is an acceptor that continues after gaps. It records the values of one partition and the
// gaps, in order. If hold is set, it waits for hold before it accepts. If behind is set, it waits
// for behind before it accepts records after a gap.
type values struct {
	noRequests
	hold, behind chan struct{}

	mu     sync.Mutex
	events []string
	gap    bool
}

// passed reports whether the acceptor was given a gap.
func (a *values) passed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gap
}

func (a *values) AcceptRecords(ctx context.Context, _ string, received []envelope.Received) ([]envelope.Result, error) {
	wait := a.hold
	if a.behind != nil && a.passed() {
		wait = a.behind
	}
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range received {
		a.events = append(a.events, string(r.Record.Value))
	}
	return make([]envelope.Result, len(received)), nil
}

func (a *values) AcceptGap(_ context.Context, _ string, gap envelope.Gap) (envelope.Disposition, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gap = true
	a.events = append(a.events, fmt.Sprintf("%d->%d", gap.From, gap.To))
	return envelope.Durable, nil
}

func (a *values) seen() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.events...)
}

// TestTopicRecreatedWhileConsumingIsReadFromItsStart recreates a topic while records of the old
// log wait to be accepted. Their acceptance must not move the offset past the new records. The gap
// comes after them and before any record of the new log, even where the offset lies within the new
// log.
func TestTopicRecreatedWhileConsumingIsReadFromItsStart(t *testing.T) {
	t.Parallel()
	t.Run("smaller", func(t *testing.T) { readAgain(t, "t", "u") })
	t.Run("larger", func(t *testing.T) { readAgain(t, "t", "u", "v", "w", "x", "y", "z") })
}

func readAgain(t *testing.T, fresh ...string) {
	t.Helper()
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
	write := func(texts ...string) {
		var records []kafkatest.Record
		for _, text := range texts {
			records = append(records, kafkatest.Record{Value: []byte(text)})
		}
		require.NoError(t, k.Produce(topic, records...))
	}
	write("a", "b", "c", "d", "e")
	waiting, goOn := answerNothing(k, 5)
	accepted := &values{hold: make(chan struct{}), behind: make(chan struct{})}
	cfg := config(k.Brokers(), topic)
	cfg.WatchInterval = time.Minute // the member does not notice that the topic is gone
	c := consumer(t, cfg, accepted)
	require.NoError(t, c.Start(t.Context()))
	<-waiting // all are fetched
	require.NoError(t, k.DeleteTopic(topic))
	require.NoError(t, k.CreateTopic(topic, 1))
	write(fresh...)
	commits := observeCommits(k)
	goOn(kerr.UnknownTopicOrPartition.Code)
	eventually(t, "the gap is met", func() bool {
		h := c.Health()
		return len(h.Partitions) == 1 && h.Partitions[0].Err != nil
	})
	close(accepted.hold)
	// A commit covers what is accepted when it is sent, so new records would be part of the commit
	// that moves the offset back.
	eventually(t, "the offset has moved back", func() bool { return len(commits()) >= 2 })
	close(accepted.behind)
	eventually(t, "the new log is read and committed", func() bool {
		return k.Committed(group, topic)[0] == int64(len(fresh)) && len(accepted.seen()) == 6+len(fresh)
	})
	require.Equal(t, append([]string{"a", "b", "c", "d", "e", "5->0"}, fresh...), accepted.seen())
	require.Equal(t, []int64{5, 0}, commits()[:2], "the offset moves back once nothing of the old log can move it")
	stop(t, c)
}

// TestLogOfAnEarlierEpochIsReadFromItsStart checks that the leader epoch reveals another log even
// where the offset lies within it. Records that wait to be accepted come before the gap, because
// nothing may move the offset past the new log.
func TestLogOfAnEarlierEpochIsReadFromItsStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.ledger.again(topic) // the committed offset moves back
	fetches := r.serve([]craftedBatch{{base: 0, last: 0, offsets: []int64{0}, epoch: 5}})
	accepted := &values{hold: make(chan struct{})}
	c := consumer(t, config(r.kafka.Brokers(), topic), accepted)
	require.NoError(t, c.Start(t.Context()))
	eventually(t, "the first log is read", func() bool {
		h := c.Health()
		return len(h.Partitions) == 1 && h.Partitions[0].Next == 1
	})
	before := fetches.Load()
	r.serve([]craftedBatch{{base: 0, last: 2, offsets: []int64{0, 1, 2}, epoch: 4}})
	eventually(t, "the gap is believed", func() bool { return fetches.Load() >= before+3 })
	await(t.Context(), 500*time.Millisecond) // enough time to pass it by mistake
	close(accepted.hold)
	eventually(t, "the second log is read", func() bool { return r.committed(0) == 3 })
	require.Equal(t, []string{"0", "1->0", "0", "1", "2"}, accepted.seen())
}

// TestFallingEpochWithinALogHaltsUnderContinue checks that a log whose epoch falls within it
// is not read repeatedly.
func TestFallingEpochWithinALogHaltsUnderContinue(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.serve([]craftedBatch{{base: 0, last: 0, offsets: []int64{0}, epoch: 5},
		{base: 1, last: 1, offsets: []int64{1}, epoch: 4}})
	r.ledger.again(topic)
	halted := make(chan error, 5)
	accepted := &values{}
	c := consumer(t, config(r.kafka.Brokers(), topic), accepted, func(c *kafkaconsumer.Config) {
		c.OnHalt = func(_ string, _ int, reason error) { halted <- reason }
	})
	require.NoError(t, c.Start(t.Context()))
	var epoch *kafkaconsumer.EpochError
	require.ErrorAs(t, receive(t, halted), &epoch)
	require.Equal(t, []string{"0", "1->0", "0"}, accepted.seen())
}

// TestOffsetWithinTheLogIsNoGap checks that an offset is verified when a broker calls it out
// of range. The broker may have just become the leader, or be no leader any more.
func TestOffsetWithinTheLogIsNoGap(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	fault := r.kafka.FailNext(kmsg.Fetch, 1, 5) // more often than an error of the data is tried
	r.produce(10, 0)
	c := r.start()
	r.awaitAll()
	require.Equal(t, 5, fault.Hits())
	require.Empty(t, c.Health().Halted())
}
