package kafka

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// TestDiscovery proves contract 7.5: no consumer creates a topic. Each part first checks that its
// broker would create a requested topic, because otherwise no consumer could fail the test. That
// needs a real broker of its own, because the shared one does not create topics.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	scenarios := map[string]func(t *testing.T, b *bench){
		"topics that appear, go and come back are followed and never created": followTopics,
		"a rebalance does not create a topic again that was deleted":          rebalanceWithoutTopic,
		"a topic that appears while another goes is noticed":                  exchangeTopics,
		"partitions are added for a leader and for one that is not":           addPartitions,
	}
	each := func(t *testing.T, brokers func(t *testing.T) []string) {
		for name, scenario := range scenarios {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, brokers(t))
				probe := b.topic + "-probe"
				b.deleteTopics(probe)
				client := b.newClient(kgo.AllowAutoTopicCreation())
				require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: probe, Value: []byte("x")}).FirstErr())
				require.True(t, b.exists(probe), "the broker creates topics")
				scenario(t, b)
			})
		}
	}
	t.Run("in-process", func(t *testing.T) {
		each(t, func(t *testing.T) []string { return kafkatest.Start(t, kafkatest.AutoCreateTopics()).Brokers() })
	})
	t.Run("real", func(t *testing.T) {
		if os.Getenv(servers.KafkaEnv) == "" {
			testenv.LeaveOut(t, "Kafka on a real broker", servers.KafkaEnv)
		}
		broker, err := servers.StartKafka(servers.KafkaOptions{Settings: map[string]string{"auto.create.topics.enable": "true"}})
		testenv.LeaveOutIf(t, err)
		t.Cleanup(func() { require.NoError(t, broker.Close()) })
		each(t, func(*testing.T) []string { return broker.Brokers() })
	})
}

func (b *bench) exists(topic string) bool {
	b.t.Helper()
	topics, err := b.admin.ListTopics(b.t.Context()) // a request for all topics creates none
	require.NoError(b.t, err)
	return topics.Has(topic)
}

// deleteTopics deletes topics when the test ends.
func (b *bench) deleteTopics(topics ...string) {
	// Errors are ignored, because the names are never used again.
	b.t.Cleanup(func() { _, _ = b.admin.DeleteTopics(context.Background(), topics...) })
}

func (b *bench) create(partitions int32, topics ...string) {
	b.t.Helper()
	b.deleteTopics(topics...)
	created, err := b.admin.CreateTopics(b.t.Context(), partitions, 1, nil, topics...)
	require.NoError(b.t, err)
	require.NoError(b.t, created.Error())
}

func (b *bench) remove(topic string) {
	b.t.Helper()
	deleted, err := b.admin.DeleteTopics(b.t.Context(), topic)
	require.NoError(b.t, err)
	require.NoError(b.t, deleted.Error())
	eventually(b.t, "the topic is gone", func() bool { return !b.exists(topic) })
}

// send writes a record to partition 0 of a topic, retrying until the topic accepts it.
func (b *bench) send(topic, value string) {
	b.t.Helper()
	client := b.newClient()
	defer client.Close()
	require.NoError(b.t, client.ProduceSync(b.t.Context(), &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr())
}

// values collects the values of the records that the ledger's consumers accept.
func (b *bench) values() func() []string {
	var (
		mu     sync.Mutex
		values []string
	)
	b.ledger.after = func(_ context.Context, received []envelope.Received) error {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range received {
			values = append(values, string(r.Record.Value))
		}
		return nil
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(values)
	}
}

func topics(names ...string) func(*kafkaconsumer.Config) {
	return func(c *kafkaconsumer.Config) { c.Topics = names }
}

func followTopics(t *testing.T, b *bench) {
	early, late := b.topic+"-early", b.topic+"-late"
	values := b.values()
	c := b.start(topics(early, late))
	eventually(t, "both are missed", func() bool {
		return slices.Equal(c.Health().MissingTopics, []string{early, late}) && c.State() == kafkaconsumer.StateWaiting
	})
	require.ErrorContains(t, c.Health().Err(), late)
	b.create(1, early)
	b.send(early, "first")
	eventually(t, "one is consumed", func() bool { return slices.Contains(values(), "first") })
	require.Equal(t, []string{late}, c.Health().MissingTopics)
	b.create(1, late)
	b.send(late, "second")
	eventually(t, "the other, too", func() bool {
		return slices.Contains(values(), "second") && len(c.Health().MissingTopics) == 0
	})

	b.remove(early)
	eventually(t, "it is missed", func() bool { return slices.Equal(c.Health().MissingTopics, []string{early}) })
	b.send(late, "third")
	eventually(t, "the other goes on", func() bool { return slices.Contains(values(), "third") })
	require.False(t, b.exists(early), "it stays deleted")
	b.create(2, early)
	b.send(early, "fourth")
	eventually(t, "its successor is consumed", func() bool {
		return slices.Contains(values(), "fourth") && len(c.Health().Partitions) == 3
	})
	eventually(t, "all is well", func() bool { return c.Health().Err() == nil })
}

// rebalanceWithoutTopic covers the group's leader. It requests the partitions of its members'
// topics at each rebalance, and kafka-go would let the broker create topics that are gone.
func rebalanceWithoutTopic(t *testing.T, b *bench) {
	gone, stays := b.topic+"-gone", b.topic+"-stays"
	values := b.values()
	b.create(1, gone, stays)
	unaware := func(c *kafkaconsumer.Config) { c.WatchInterval = time.Hour }
	leader := b.start(topics(gone, stays), unaware)
	b.send(gone, "first")
	eventually(t, "consumed", func() bool { return slices.Contains(values(), "first") })
	b.remove(gone)
	second := b.start(topics(gone, stays))
	eventually(t, "the second has joined", func() bool {
		return leader.Health().Rebalances >= 1 && second.State() == kafkaconsumer.StateRunning
	})
	b.send(stays, "second")
	eventually(t, "the other topic is consumed though the leader does not know yet", func() bool {
		return slices.Contains(values(), "second")
	})
	stop(t, second)
	eventually(t, "the group rebalances again", func() bool { return leader.Health().Rebalances >= 2 })
	b.send(stays, "third")
	eventually(t, "and again", func() bool { return slices.Contains(values(), "third") })
	require.Never(t, func() bool {
		topics, err := b.admin.ListTopics(context.Background()) // may outlive the test
		return err == nil && topics.Has(gone)
	}, time.Second, 20*time.Millisecond)
}

// exchangeTopics deletes one topic and creates another, so the number of topics stays the same.
func exchangeTopics(t *testing.T, b *bench) {
	gone, comes := b.topic+"-gone", b.topic+"-comes"
	values := b.values()
	b.create(1, gone)
	c := b.start(topics(gone, comes), func(c *kafkaconsumer.Config) { c.WatchInterval = 2 * time.Second })
	b.send(gone, "first")
	eventually(t, "consumed", func() bool { return slices.Contains(values(), "first") })
	b.create(1, comes) // both before the consumer's next check
	b.remove(gone)
	b.send(comes, "second")
	eventually(t, "consumed", func() bool { return slices.Contains(values(), "second") })
	eventually(t, "missed", func() bool { return slices.Equal(c.Health().MissingTopics, []string{gone}) })
	require.False(t, b.exists(gone))
}

func addPartitions(t *testing.T, b *bench) {
	b.createTopic(2, nil)
	members := []*kafkaconsumer.Consumer{b.start(), b.start()}
	assigned := func() (n int) {
		for _, c := range members {
			n += len(c.Health().Partitions)
		}
		return n
	}
	eventually(t, "one each", func() bool {
		return len(members[0].Health().Partitions) == 1 && len(members[1].Health().Partitions) == 1
	})
	_, err := b.admin.UpdatePartitions(t.Context(), 4, b.topic)
	require.NoError(t, err)
	eventually(t, "two each", func() bool {
		return len(members[0].Health().Partitions) == 2 && len(members[1].Health().Partitions) == 2
	})
	require.Equal(t, 4, assigned())
}
