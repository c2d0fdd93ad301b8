package kafkatest_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
)

// patience is the timeout of every wait in a test. Only a defect reaches it.
const patience = 2 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// consume reads n records as a group and commits them.
func consume(t *testing.T, k *kafkatest.Kafka, group, topic string, n int) []*kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(append(k.ClientOptions(), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.DisableAutoCommit())...)
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var records []*kgo.Record
	for len(records) < n {
		fetches := client.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		records = append(records, fetches.Records()...)
	}
	require.NoError(t, client.CommitRecords(ctx, records...))
	return records
}

func TestBrokerReturnsRecordsAndCommits(t *testing.T) {
	k := kafkatest.Start(t, kafkatest.Topic("orders", 2))
	require.NoError(t, k.Produce("orders",
		kafkatest.Record{Partition: 1, Key: []byte{}, Value: nil, Headers: []kafkatest.Header{{Key: "h", Value: nil}},
			Timestamp: time.UnixMilli(5)},
		kafkatest.Record{Partition: 1, Key: nil, Value: []byte{}},
	))
	records := consume(t, k, "group", "orders", 2)
	require.Equal(t, int32(1), records[0].Partition)
	require.NotNil(t, records[0].Key)
	require.Nil(t, records[0].Value)
	require.Nil(t, records[0].Headers[0].Value)
	require.Equal(t, int64(5), records[0].Timestamp.UnixMilli())
	require.Nil(t, records[1].Key)
	require.NotNil(t, records[1].Value)
	require.Equal(t, map[int]int64{1: 2}, k.Committed("group", "orders"))
	require.Empty(t, k.Committed("group", "other"))
}

func TestTopicsAreNotCreatedByAccident(t *testing.T) {
	k := kafkatest.Start(t)
	require.Error(t, k.Produce("missing", kafkatest.Record{Value: []byte("x")}))
	require.False(t, k.HasTopic("missing"))
	require.NoError(t, k.CreateTopic("missing", 1))
	require.Error(t, k.CreateTopic("missing", 1))
	require.NoError(t, k.Produce("missing", kafkatest.Record{Value: []byte("x")}))
	require.NoError(t, k.DeleteTopic("missing"))
	require.False(t, k.HasTopic("missing"))
}

func TestStopRefusesConnectionsAndRestartKeepsState(t *testing.T) {
	k := kafkatest.Start(t, kafkatest.Topic("orders", 1))
	require.NoError(t, k.Produce("orders", kafkatest.Record{Value: []byte("a")}))
	conn, err := net.Dial("tcp", k.Brokers()[0])
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.Eventually(t, func() bool { return k.Connections() == 1 }, patience, time.Millisecond)
	k.Stop()
	k.Stop()
	require.Eventually(t, func() bool { return k.Connections() == 0 }, patience, time.Millisecond)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	_, err = net.Dial("tcp", k.Brokers()[0])
	require.Error(t, err)
	require.NoError(t, k.Restart())
	require.NoError(t, k.Produce("orders", kafkatest.Record{Value: []byte("b")}))
	require.Len(t, consume(t, k, "group", "orders", 2), 2)
}

func TestFrozenBrokerRespondsAfterRestart(t *testing.T) {
	k := kafkatest.Start(t, kafkatest.Topic("orders", 1))
	require.NoError(t, k.Produce("orders", kafkatest.Record{Value: []byte("a")}))
	k.Freeze()
	produced := make(chan error, 1)
	go func() { produced <- k.Produce("orders", kafkatest.Record{Value: []byte("b")}) }()
	select {
	case err := <-produced:
		t.Fatalf("a frozen broker answered: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	require.NoError(t, k.Restart())
	require.NoError(t, <-produced)
}

func TestClosedBrokerStaysClosed(t *testing.T) {
	k, err := kafkatest.New()
	require.NoError(t, err)
	k.Close()
	k.Close()
	require.Error(t, k.Restart())
}

func TestOrderedFaultsAreCounted(t *testing.T) {
	k := kafkatest.Start(t, kafkatest.Topic("orders", 1))
	fault := k.FailNext(kmsg.Produce, 6, 2) // NOT_LEADER_OR_FOLLOWER, which producers retry
	require.NoError(t, k.Produce("orders", kafkatest.Record{Value: []byte("a")}))
	require.Equal(t, 2, fault.Hits())
	fault.Remove()
}

func TestSASLIsRequired(t *testing.T) {
	k := kafkatest.Start(t, kafkatest.Topic("orders", 1), kafkatest.SASL("SCRAM-SHA-256", "u", "p"))
	require.NoError(t, k.Produce("orders", kafkatest.Record{Value: []byte("a")}))
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	require.NoError(t, err)
	defer client.Close()
	require.Error(t, client.Ping(t.Context()))
}
