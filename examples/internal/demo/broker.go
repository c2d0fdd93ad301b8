package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
)

// Partitions is how many each topic has.
const Partitions = 4

// Broker is the Kafka of one run.
type Broker struct {
	Addresses []string
	// Session is how long the broker waits for a killed group member.
	Session time.Duration
	Client  *kgo.Client

	admin     *kadm.Client
	groups    map[string]string // by topic
	inProcess bool
}

// Broker connects to Kafka at addresses (host:port, separated by commas) or, if there are none, starts
// one in this process. It creates the topics, each with the name of the group that consumes it. Close
// of the environment deletes them.
func (e *Environment) Broker(ctx context.Context, addresses string, groups map[string]string) (*Broker, error) {
	// 6 seconds are the least that brokers allow by default.
	b := &Broker{groups: groups, Addresses: strings.Split(addresses, ","), Session: 6 * time.Second}
	if addresses == "" {
		kafka, err := kafkatest.New()
		if err != nil {
			return nil, err
		}
		e.Cleanup(func(context.Context, bool) error {
			kafka.Close()
			return nil
		})
		b.inProcess, b.Addresses, b.Session = true, kafka.Brokers(), 2*time.Second
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addresses...), kgo.RecordDeliveryTimeout(30*time.Second))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b, err)
	}
	b.Client = client
	b.admin = kadm.NewClient(b.Client)
	e.Cleanup(b.close)
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for topic := range groups {
		if _, err := b.admin.CreateTopic(ctx, Partitions, 1, nil, topic); err != nil {
			return nil, fmt.Errorf("%s: create topic %q: %w", b, topic, err)
		}
	}
	return b, nil
}

// close closes the client. On real brokers it deletes the topics and groups unless keep is true.
func (b *Broker) close(ctx context.Context, keep bool) error {
	defer b.Client.Close()
	if b.inProcess || keep {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	_, topicErr := b.admin.DeleteTopics(ctx, slices.Collect(maps.Keys(b.groups))...)
	_, groupErr := b.admin.DeleteGroups(ctx, slices.Collect(maps.Values(b.groups))...)
	return errors.Join(topicErr, groupErr)
}

// Unread counts the topic's records whose offsets its group has not committed.
func (b *Broker) Unread(ctx context.Context, topic string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ends, err := b.admin.ListEndOffsets(ctx, topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return 0, fmt.Errorf("end of topic %q: %w", topic, err)
	}
	group := b.groups[topic]
	committed, err := b.admin.FetchOffsets(ctx, group)
	// The group does not exist before its first member joins.
	if err = errors.Join(err, committed.Error()); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return 0, fmt.Errorf("offsets of group %q: %w", group, err)
	}
	var unread int64
	ends.Each(func(end kadm.ListedOffset) {
		unread += end.Offset
		if at, ok := committed.Lookup(topic, end.Partition); ok && at.At > 0 {
			unread -= at.At
		}
	})
	return unread, nil
}

// String says where the broker is.
func (b *Broker) String() string {
	if b.inProcess {
		return "in-process Kafka"
	}
	return "Kafka at " + strings.Join(b.Addresses, ",")
}
