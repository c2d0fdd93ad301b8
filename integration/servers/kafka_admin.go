package servers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
)

// Admin performs the operations on a broker that tests need, with kafka-go. It also works with a
// broker that this package did not start.
type Admin struct {
	brokers  []string
	client   *kafka.Client
	replicas int // of a topic
}

const adminClientID = "inbox-test-admin"

// NewAdmin returns an Admin that connects to the brokers (host:port) when used.
func NewAdmin(brokers ...string) *Admin {
	// The transport caches metadata. Keep it briefly, because a test looks up what it just made.
	transport := &kafka.Transport{DialTimeout: 3 * time.Second, MetadataTTL: 100 * time.Millisecond,
		ClientID: adminClientID}
	return &Admin{brokers: brokers, replicas: 1, client: &kafka.Client{Addr: kafka.TCP(brokers...),
		Timeout: 15 * time.Second, Transport: transport}}
}

// Close closes the connections to the broker and drops cached metadata. The Admin remains usable.
func (a *Admin) Close() {
	if transport, ok := a.client.Transport.(*kafka.Transport); ok {
		transport.CloseIdleConnections()
	}
}

// Ping returns an error unless a broker answers on a new connection and every partition has a
// leader.
func (a *Admin) Ping(ctx context.Context) (err error) {
	conn, err := (&kafka.Dialer{ClientID: adminClientID}).DialContext(ctx, "tcp", a.brokers[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	partitions, err := conn.ReadPartitions() // of all topics
	if err != nil {
		return err
	}
	for _, partition := range partitions {
		if partition.Error != nil {
			return fmt.Errorf("%s/%d: %w", partition.Topic, partition.ID, partition.Error)
		}
	}
	return nil
}

// CreateTopic creates a topic with topic configs such as "cleanup.policy", and waits until every
// partition has a leader. The topic is replicated in a Cluster only. An existing topic is an error
// (kafka.TopicAlreadyExists).
func (a *Admin) CreateTopic(ctx context.Context, name string, partitions int, configs map[string]string) error {
	topic := kafka.TopicConfig{Topic: name, NumPartitions: partitions, ReplicationFactor: a.replicas}
	for key, value := range configs {
		topic.ConfigEntries = append(topic.ConfigEntries, kafka.ConfigEntry{ConfigName: key, ConfigValue: value})
	}
	response, err := a.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{topic}})
	if err == nil {
		err = response.Errors[name]
	}
	if err != nil {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	for {
		found, err := a.partitions(ctx, name)
		if err == nil && len(found) == partitions {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("create topic %s: leaders: %w", name, errors.Join(ctx.Err(), err))
		case <-time.After(pollInterval):
		}
	}
}

// DeleteTopic deletes a topic.
func (a *Admin) DeleteTopic(ctx context.Context, name string) error {
	response, err := a.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{name}})
	if err == nil {
		err = response.Errors[name]
	}
	return wrap("delete topic "+name, err)
}

// Produce writes messages and waits for the acknowledgement of all replicas. It ignores a message's
// Partition: the key selects the partition as with Java's client, and without a key it is random.
func (a *Admin) Produce(ctx context.Context, topic string, messages ...kafka.Message) error {
	writer := &kafka.Writer{
		Addr: a.client.Addr, Topic: topic, Transport: a.client.Transport,
		Balancer: &kafka.Murmur2Balancer{}, RequiredAcks: kafka.RequireAll, BatchTimeout: time.Millisecond,
	}
	err := writer.WriteMessages(ctx, messages...)
	var each kafka.WriteErrors // errors.Is cannot unwrap these errors
	if errors.As(err, &each) {
		err = errors.Join(each...)
	}
	return wrap("produce to "+topic, errors.Join(err, writer.Close()))
}

// Committed returns a group's committed offset for each partition of a topic, or -1 where there is
// none.
func (a *Admin) Committed(ctx context.Context, group, topic string) (map[int]int64, error) {
	partitions, err := a.partitions(ctx, topic)
	if err != nil {
		a.Close()
		return nil, fmt.Errorf("committed offsets of %s for %s: %w", group, topic, err)
	}
	response, err := a.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group,
		Topics: map[string][]int{topic: partitions}})
	if err == nil {
		err = response.Error
	}
	if err != nil {
		a.Close()
		return nil, fmt.Errorf("committed offsets of %s for %s: %w", group, topic, err)
	}
	offsets := make(map[int]int64, len(partitions))
	for _, partition := range response.Topics[topic] {
		if partition.Error != nil {
			return nil, fmt.Errorf("committed offsets of %s for %s/%d: %w", group, topic, partition.Partition, partition.Error)
		}
		offsets[partition.Partition] = partition.CommittedOffset
	}
	return offsets, nil
}

// partitions returns a topic's partitions, all of which must have a leader.
func (a *Admin) partitions(ctx context.Context, topic string) ([]int, error) {
	response, err := a.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return nil, err
	}
	var ids []int
	for _, found := range response.Topics {
		if found.Name != topic {
			continue
		}
		if found.Error != nil {
			return nil, found.Error
		}
		for _, partition := range found.Partitions {
			if partition.Error != nil {
				return nil, partition.Error
			}
			ids = append(ids, partition.ID)
		}
	}
	if len(ids) == 0 {
		return nil, kafka.UnknownTopicOrPartition
	}
	slices.Sort(ids)
	return ids, nil
}

// findCoordinator returns an error unless the broker serves groups. The first call creates the
// topic for their offsets.
func (a *Admin) findCoordinator(ctx context.Context) error {
	response, err := a.client.FindCoordinator(ctx, &kafka.FindCoordinatorRequest{Key: "inbox-test",
		KeyType: kafka.CoordinatorKeyTypeConsumer})
	if err != nil {
		return err
	}
	return response.Error
}
