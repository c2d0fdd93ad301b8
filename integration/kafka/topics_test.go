package kafka

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func TestMissingTopicIsLoggedWaitedForAndNeverCreated(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0, kafkatest.AutoCreateTopics())
	c := r.start() // without waiting for the topic
	eventually(t, "said", func() bool {
		h := c.Health()
		return len(h.MissingTopics) == 1 && h.MissingTopics[0] == topic && h.State == kafkaconsumer.StateWaiting &&
			h.Err() != nil
	})
	require.Never(t, func() bool { return r.kafka.HasTopic(topic) }, 500*time.Millisecond, 20*time.Millisecond)
	require.NoError(t, r.kafka.CreateTopic(topic, 2))
	r.produce(10, 0, 1)
	r.awaitAll()
	require.NoError(t, c.Health().Err())
}

func TestOneMissingTopicDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, kafkatest.AutoCreateTopics())
	r.produce(10, 0)
	c := r.start(func(c *kafkaconsumer.Config) { c.Topics = []string{"absent", topic, "later"} })
	r.awaitAll()
	require.Equal(t, []string{"absent", "later"}, c.Health().MissingTopics)
	require.Never(t, func() bool {
		return r.kafka.HasTopic("absent") || r.kafka.HasTopic("later")
	}, 300*time.Millisecond, 20*time.Millisecond)
	require.NoError(t, r.kafka.CreateTopic("later", 1))
	r.produceTo("later", 10, 0)
	r.awaitTopic("later")
	r.produce(10, 0)
	r.awaitAll()
	require.False(t, r.kafka.HasTopic("absent"))
}

func TestAddedPartitionsAreFoundByAllMembers(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	first, second := r.start(), r.start()
	r.produce(10, 0)
	r.awaitAll()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.kafka.Brokers()...))
	require.NoError(t, err)
	defer client.Close()
	_, err = kadm.NewClient(client).CreatePartitions(t.Context(), 3, topic)
	require.NoError(t, err)
	eventually(t, "assigned", func() bool { return len(first.Health().Partitions)+len(second.Health().Partitions) == 4 })
	r.produce(10, 0, 1, 2, 3)
	r.awaitAll()
}

func TestBrokerDownAtStartDoesNotFailOrHangTheStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(10, 0)
	r.kafka.Stop()
	c := r.start()
	eventually(t, "said", func() bool {
		return c.Health().GroupErr != nil && c.Health().State == kafkaconsumer.StateWaiting
	})
	require.NoError(t, r.kafka.Restart())
	r.awaitAll()
	require.NoError(t, c.Health().Err())
}

func TestSASLIsUsedOnEveryConnection(t *testing.T) {
	t.Parallel()
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mechanism, func(t *testing.T) {
			r := newRig(t, 1, kafkatest.SASL(mechanism, "user", "secret"))
			r.produce(10, 0)
			wrong := r.start(func(c *kafkaconsumer.Config) {
				c.SASL = kafkaconsumer.SASL{Mechanism: mechanism, Username: "user", Password: "wrong", AllowWithoutTLS: true}
			})
			eventually(t, "refused", func() bool { return wrong.Health().GroupErr != nil })
			stop(t, wrong)
			r.start(func(c *kafkaconsumer.Config) {
				c.SASL = kafkaconsumer.SASL{Mechanism: mechanism, Username: "user", Password: "secret", AllowWithoutTLS: true}
			})
			r.awaitAll()
		})
	}
}
