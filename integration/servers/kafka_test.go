package servers

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
)

func TestKafkaKeepsItsDataThrough(t *testing.T) {
	k := startKafka(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	require.NoError(t, k.CreateTopic(ctx, "orders", 3, map[string]string{"retention.ms": "-1"}))
	require.ErrorIs(t, k.CreateTopic(ctx, "orders", 3, nil), kafka.TopicAlreadyExists)

	written := int64(0)
	for _, outage := range []struct {
		name string
		run  func() error
	}{
		{"an orderly restart", k.Stop},
		{"a crash", k.Kill},
		{"a crash while frozen", func() error { return firstError(k.Freeze, k.Kill, k.Kill, k.Stop) }},
		{"a stop while frozen", func() error { return firstError(k.Freeze, k.Stop, k.Stop, k.Kill, k.Thaw) }},
	} {
		t.Run(outage.name, func(t *testing.T) {
			brokers := k.Brokers()
			for _, key := range []string{"a", "b", "c", "d"} {
				require.NoError(t, k.Produce(ctx, "orders", kafka.Message{Key: []byte(key), Value: []byte(outage.name)}))
				written++
			}
			require.NoError(t, outage.run())
			require.Error(t, pingKafka(k, time.Second), "it still answers")
			require.NoError(t, k.Start())
			require.NoError(t, k.Start(), "twice")
			require.Equal(t, brokers, k.Brokers())
			require.Equal(t, written, messagesIn(ctx, t, k, "orders", 3))
		})
	}
}

func TestFrozenKafkaHangsUntilThawed(t *testing.T) {
	k := startKafka(t)
	require.NoError(t, k.Freeze())
	require.NoError(t, k.Freeze(), "twice")
	require.ErrorIs(t, pingKafka(k, 300*time.Millisecond), context.DeadlineExceeded)
	require.NoError(t, k.Thaw())
	require.NoError(t, k.Thaw(), "twice")
	require.Eventually(t, func() bool { return pingKafka(k, time.Second) == nil }, 2*time.Minute, 50*time.Millisecond)
}

func TestKafkaRunsAsTestsNeedIt(t *testing.T) {
	k := startKafka(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()

	t.Run("topics are not created by accident", func(t *testing.T) {
		require.ErrorIs(t, k.Produce(ctx, "never-created", kafka.Message{Value: []byte("x")}), kafka.UnknownTopicOrPartition)
		_, err := k.Committed(ctx, "group", "never-created")
		require.ErrorIs(t, err, kafka.UnknownTopicOrPartition)
	})
	t.Run("topic configs hold", func(t *testing.T) {
		require.NoError(t, k.CreateTopic(ctx, "compacted", 1, map[string]string{"cleanup.policy": "compact"}))
		require.ErrorIs(t, k.Produce(ctx, "compacted", kafka.Message{Value: []byte("no key")}), kafka.InvalidRecord)
		require.NoError(t, k.DeleteTopic(ctx, "compacted"))
	})
	t.Run("a group's offsets are returned", func(t *testing.T) {
		require.NoError(t, k.CreateTopic(ctx, "read", 2, nil))
		require.NoError(t, k.Produce(ctx, "read", kafka.Message{Value: []byte("1")}, kafka.Message{Value: []byte("2")}))
		none, err := k.Committed(ctx, "readers", "read")
		require.NoError(t, err)
		require.Equal(t, map[int]int64{0: -1, 1: -1}, none)

		reader := kafka.NewReader(kafka.ReaderConfig{Brokers: k.Brokers(), GroupID: "readers", GroupTopics: []string{"read"},
			StartOffset: kafka.FirstOffset, MaxWait: 100 * time.Millisecond})
		for range 2 {
			_, err := reader.ReadMessage(ctx) // reads and commits
			require.NoError(t, err)
		}
		require.NoError(t, reader.Close())
		committed, err := k.Committed(ctx, "readers", "read")
		require.NoError(t, err)
		require.EqualValues(t, 2, max(committed[0], 0)+max(committed[1], 0))
	})
}

func TestClosedKafkaLeavesNothing(t *testing.T) {
	k := startKafka(t)
	pid := k.process.pid()
	require.NoError(t, k.Freeze())
	require.NoError(t, k.Close())
	require.NoError(t, k.Close(), "twice")
	require.True(t, gone(pid))
	require.NoDirExists(t, k.directory.path)
	require.ErrorContains(t, k.Start(), "closed")
}

func TestMissingKafkaIsNamed(t *testing.T) {
	oldJava := filepath.Join(t.TempDir(), "bin", "java")
	require.NoError(t, os.MkdirAll(filepath.Dir(oldJava), 0o755))
	require.NoError(t, os.WriteFile(oldJava, []byte("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n"),
		0o755))
	t.Setenv("PATH", t.TempDir())
	t.Setenv("JAVA_HOME", filepath.Dir(filepath.Dir(oldJava)))
	t.Setenv(KafkaEnv+MissingSuffix, "")
	_, err := StartKafka(KafkaOptions{})
	require.ErrorContains(t, err, "Kafka on a real broker: no Java 17 or newer (")
	require.ErrorContains(t, err,
		"is Java 11); install default-jdk-headless and maven, or set INBOX_TEST_KAFKA")
	require.NotContains(t, err.Error(), "\n")
}

func TestFailedKafkaStartShowsItsLog(t *testing.T) {
	_, err := StartKafka(KafkaOptions{Settings: map[string]string{"node.id": "not-a-number"}})
	leaveOutIfMissing(t, err)
	require.ErrorContains(t, err, "not-a-number")
	require.NotContains(t, err.Error(), "\n")
}

func TestIgnoredSignalEndsInAKill(t *testing.T) {
	directory := t.TempDir()
	p, err := startProcess(exec.Command("/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"), nil,
		filepath.Join(directory, "log"))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return logTail(filepath.Join(directory, "log")) == "ready"
	}, 2*time.Minute, 10*time.Millisecond)
	require.ErrorContains(t, p.end(syscall.SIGTERM, 200*time.Millisecond), "was killed")
	require.False(t, p.running())
}

func startKafka(t *testing.T) *Kafka {
	t.Helper()
	k, err := StartKafka(KafkaOptions{})
	leaveOutIfMissing(t, err)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, k.Close()) })
	return k
}

func pingKafka(k *Kafka, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return k.Ping(ctx)
}

func messagesIn(ctx context.Context, t *testing.T, k *Kafka, topic string, partitions int) (total int64) {
	t.Helper()
	for partition := range partitions {
		conn, err := kafka.DialLeader(ctx, "tcp", k.Brokers()[0], topic, partition)
		require.NoError(t, err)
		last, err := conn.ReadLastOffset()
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		total += last
	}
	return total
}
