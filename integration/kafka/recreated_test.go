package kafka

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// TestRecreatedTopicWithALargerLogHalts proves contract 7.5. The offset lies within the new log,
// and leader epochs start low again, so only the topic's ID reveals that the log is another one.
func TestRecreatedTopicWithALargerLogHalts(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.ledger.again(b.topic) // brokers forget its offsets
		b.createTopic(1, nil)
		for i := range 5 {
			b.produce(b.client, &kgo.Record{Value: fmt.Append(nil, "old", i)})
		}
		c := b.start(func(c *kafkaconsumer.Config) { c.WatchInterval = time.Minute }) // the member does not notice
		b.awaitEnd()
		_, err := b.admin.DeleteTopics(t.Context(), b.topic)
		require.NoError(t, err)
		eventually(t, "created again", func() bool {
			_, err := b.admin.CreateTopic(t.Context(), 1, 1, nil, b.topic)
			return err == nil
		})
		var records []*kgo.Record
		for i := range 8 {
			records = append(records, &kgo.Record{Value: fmt.Append(nil, "new", i)})
		}
		b.produce(b.newClient(), records...)
		eventually(t, "halted", func() bool { return len(c.Health().Halted()) == 1 })
		var recreated *kafkaconsumer.TopicRecreatedError
		require.ErrorAs(t, c.Health().Halted()[0].Halted, &recreated)
		require.Equal(t, []any{b.topic, 0, int64(5), int64(0)},
			[]any{recreated.Topic, recreated.Partition, recreated.Offset, recreated.First})
		require.ErrorContains(t, recreated, "deleted and created again")
		require.Equal(t, 5, b.ledger.accepted(b.topic))
	})
}

// TestTopicRecreatedWhileNotFetchingIsReadFromItsStart covers a partition that waits for
// its acceptor. It sends no fetch and so sees no error. The connection outlives the topic, and the
// next fetch is answered from the new log.
func TestTopicRecreatedWhileNotFetchingIsReadFromItsStart(t *testing.T) {
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
	produced := 0
	produce := func(n int) {
		for range n {
			require.NoError(t, k.Produce(topic, kafkatest.Record{Value: fmt.Append(nil, produced)}))
			produced++
		}
	}
	produce(5)
	accepted := &values{hold: make(chan struct{})}
	cfg := config(k.Brokers(), topic)
	cfg.WatchInterval, cfg.BatchRecords = time.Minute, 1
	c := consumer(t, cfg, accepted)
	require.NoError(t, c.Start(t.Context()))
	eventually(t, "the fetcher waits", func() bool {
		h := c.Health()
		return len(h.Partitions) == 1 && h.Partitions[0].Next == 3
	})
	require.NoError(t, k.DeleteTopic(topic))
	require.NoError(t, k.CreateTopic(topic, 1))
	first := produced
	produce(8)
	close(accepted.hold)
	gap := 0 // how many events there are up to the gap
	eventually(t, "the gap is met", func() bool {
		produce(1) // only a log that is written to is fetched again
		gap = 1 + slices.IndexFunc(accepted.seen(), func(event string) bool { return strings.HasSuffix(event, "->0") })
		return gap > 0
	})
	eventually(t, "the new log is read", func() bool { return len(accepted.seen()) == gap+produced-first })
	for i, value := range accepted.seen()[gap:] {
		require.Equal(t, fmt.Sprint(first+i), value)
	}
	eventually(t, "it is committed", func() bool { return k.Committed(group, topic)[0] == int64(produced-first) })
}

// TestQuietRecreatedTopicIsReadFromItsStart covers a quiet new log. The fetch that
// reaches it is answered on the old connection, soon after the topic's ID was requested, and no
// further record is written. Records before the offset in the new log must be read anyway.
func TestQuietRecreatedTopicIsReadFromItsStart(t *testing.T) {
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
	waiting, goOn := answerNothing(k, 5)
	writeNumbered(t, k, "old", 5)
	accepted := &values{}
	cfg := config(k.Brokers(), topic)
	cfg.WatchInterval = time.Minute
	c := consumer(t, cfg, accepted)
	require.NoError(t, c.Start(t.Context()))
	<-waiting
	eventually(t, "all is committed", func() bool { return k.Committed(group, topic)[0] == 5 })
	require.NoError(t, k.DeleteTopic(topic))
	require.NoError(t, k.CreateTopic(topic, 1))
	writeNumbered(t, k, "new", 7)
	goOn(0)
	eventually(t, "the new log is read and committed", func() bool {
		seen := accepted.seen()
		return len(seen) > 7 && seen[len(seen)-1] == "new6" && seen[len(seen)-7] == "new0" &&
			k.Committed(group, topic)[0] == 7
	})
	gap := len(accepted.seen()) - 8
	require.Contains(t, accepted.seen()[gap], "->0")
	stop(t, c)
}

// TestRecreatedTopicOfEqualLengthIsReadFromItsStart covers a new log that
// ends at the same offset as the old one, so that no fetched record can reveal it.
func TestRecreatedTopicOfEqualLengthIsReadFromItsStart(t *testing.T) {
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
	writeNumbered(t, k, "old", 5)
	accepted := &values{hold: make(chan struct{})}
	cfg := config(k.Brokers(), topic)
	cfg.WatchInterval, cfg.BatchRecords = time.Minute, 1
	c := consumer(t, cfg, accepted)
	require.NoError(t, c.Start(t.Context()))
	eventually(t, "the fetcher waits", func() bool {
		h := c.Health()
		return len(h.Partitions) == 1 && h.Partitions[0].Next == 3
	})
	require.NoError(t, k.DeleteTopic(topic))
	require.NoError(t, k.CreateTopic(topic, 1))
	writeNumbered(t, k, "new", 5)
	idle := time.Now()
	eventually(t, "a time in which a topic can be created again", func() bool {
		return time.Since(idle) > 300*time.Millisecond
	})
	close(accepted.hold)
	eventually(t, "the new log is read and committed", func() bool {
		seen := accepted.seen()
		return len(seen) > 5 && seen[len(seen)-5] == "new0" && seen[len(seen)-1] == "new4" &&
			k.Committed(group, topic)[0] == 5
	})
	stop(t, c)
}

// writeNumbered writes n records, with the values prefix0, prefix1 and so on.
func writeNumbered(t *testing.T, k *kafkatest.Kafka, prefix string, n int) {
	t.Helper()
	for i := range n {
		require.NoError(t, k.Produce(topic, kafkatest.Record{Value: fmt.Append(nil, prefix, i)}))
	}
}

// answerNothing makes the leader answer fetches at the offset without records, until goOn is
// called. It closes waiting at the first such fetch. After goOn, one response has the error code,
// if that is not 0, and all others are normal.
func answerNothing(k *kafkatest.Kafka, offset int64) (waiting <-chan struct{}, goOn func(code int16)) {
	began := make(chan struct{})
	var once sync.Once
	var mu sync.Mutex
	held, last := true, int16(0)
	k.Cluster().ControlKey(int16(kmsg.Fetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		k.Cluster().KeepControl()
		at := request.(*kmsg.FetchRequest).Topics[0]
		if at.Partitions[0].FetchOffset != offset {
			return nil, nil, false
		}
		once.Do(func() { close(began) })
		mu.Lock()
		defer mu.Unlock()
		if !held && last == 0 {
			return nil, nil, false
		}
		p := kmsg.NewFetchResponseTopicPartition()
		if !held {
			p.ErrorCode, last = last, 0
		}
		found := kmsg.NewFetchResponseTopic()
		found.Topic, found.Partitions = at.Topic, append(found.Partitions, p)
		response := request.ResponseKind().(*kmsg.FetchResponse)
		response.Topics = append(response.Topics, found)
		return response, nil, true
	})
	return began, func(code int16) {
		mu.Lock()
		defer mu.Unlock()
		held, last = false, code
	}
}

// lag makes the leader report a log that ends at offset 4, for as long as lies returns true. It
// returns how often the leader was asked for the log's start.
func lag(k *kafkatest.Kafka, lies func(asked int32) bool) *atomic.Int32 {
	asked := &atomic.Int32{}
	k.Cluster().ControlKey(int16(kmsg.Fetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		k.Cluster().KeepControl()
		if !lies(asked.Load()) {
			return nil, nil, false
		}
		response := request.ResponseKind().(*kmsg.FetchResponse)
		found := kmsg.NewFetchResponseTopic()
		found.Topic = request.(*kmsg.FetchRequest).Topics[0].Topic
		p := kmsg.NewFetchResponseTopicPartition()
		p.ErrorCode = 1
		found.Partitions = append(found.Partitions, p)
		response.Topics = append(response.Topics, found)
		return response, nil, true
	})
	k.Cluster().ControlKey(int16(kmsg.ListOffsets), func(request kmsg.Request) (kmsg.Response, error, bool) {
		k.Cluster().KeepControl()
		lying := lies(asked.Load())
		at := request.(*kmsg.ListOffsetsRequest).Topics[0]
		if at.Partitions[0].Timestamp == -2 {
			asked.Add(1)
		}
		if !lying {
			return nil, nil, false
		}
		response := request.ResponseKind().(*kmsg.ListOffsetsResponse)
		found := kmsg.NewListOffsetsResponseTopic()
		found.Topic = at.Topic
		p := kmsg.NewListOffsetsResponseTopicPartition()
		p.Offset = 0
		if at.Partitions[0].Timestamp == -1 {
			p.Offset = 4
		}
		found.Partitions = append(found.Partitions, p)
		response.Topics = append(response.Topics, found)
		return response, nil, true
	})
	return asked
}

// TestVanishedGapIsNotSkipped checks that a gap is verified again after all records before
// it are accepted. A newly elected leader may not have known the end of its log.
func TestVanishedGapIsNotSkipped(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.ledger.again(topic) // see ledger.again
	r.produce(5, 0)
	accepted := &values{hold: make(chan struct{})}
	c := consumer(t, config(r.kafka.Brokers(), topic), accepted)
	require.NoError(t, c.Start(t.Context()))
	eventually(t, "all are fetched", func() bool {
		h := c.Health()
		return len(h.Partitions) == 1 && h.Partitions[0].Next == 5
	})
	var over atomic.Bool
	asked := lag(r.kafka, func(int32) bool { return !over.Load() })
	eventually(t, "the gap is believed", func() bool { return asked.Load() == 3 })
	await(t.Context(), 100*time.Millisecond) // the rest of the third response
	over.Store(true)
	close(accepted.hold)
	r.produce(1, 0)
	eventually(t, "reading goes on", func() bool { return r.committed(0) == 6 })
	require.Len(t, accepted.seen(), 6, "and nothing is read again")
	require.Empty(t, c.Health().Halted())
}

// TestOffsetMovesBackOnlyIfTheLogConfirmsItForAWhile checks that a leader may lag for a second.
func TestOffsetMovesBackOnlyIfTheLogConfirmsItForAWhile(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.ledger.again(topic) // see ledger.again
	r.produce(5, 0)
	accepted := &values{}
	c := consumer(t, config(r.kafka.Brokers(), topic), accepted)
	require.NoError(t, c.Start(t.Context()))
	eventually(t, "all are committed", func() bool { return r.committed(0) == 5 })
	asked := lag(r.kafka, func(asked int32) bool { return asked < 8 })
	eventually(t, "the lag is over", func() bool { return asked.Load() == 8 })
	r.produce(1, 0)
	eventually(t, "reading goes on", func() bool { return r.committed(0) == 6 })
	require.Len(t, accepted.seen(), 6, "and nothing is read again")
}

// TestGapIsReportedOnceWhileTheBrokerDoesNotRespond checks that a stored gap is not reported again
// because the broker does not tell where the log ends.
func TestGapIsReportedOnceWhileTheBrokerDoesNotRespond(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.ledger.again(topic) // see ledger.again
	r.produce(5, 0)
	commit(t, r.kafka, 100)
	accepted := &values{}
	var refused atomic.Int32
	r.kafka.Cluster().ControlKey(int16(kmsg.ListOffsets), func(request kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.Cluster().KeepControl()
		if len(accepted.seen()) == 0 || refused.Add(1) > 5 {
			return nil, nil, false
		}
		response := request.ResponseKind().(*kmsg.ListOffsetsResponse)
		found := kmsg.NewListOffsetsResponseTopic()
		found.Topic = topic
		p := kmsg.NewListOffsetsResponseTopicPartition()
		p.ErrorCode = 5 // LEADER_NOT_AVAILABLE
		found.Partitions = append(found.Partitions, p)
		response.Topics = append(response.Topics, found)
		return response, nil, true
	})
	c := consumer(t, config(r.kafka.Brokers(), topic), accepted)
	require.NoError(t, c.Start(t.Context()))
	eventually(t, "the log is read", func() bool { return r.committed(0) == 5 })
	require.Len(t, accepted.seen(), 1+5)
	require.Equal(t, "100->0", accepted.seen()[0])
}
