package servers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

// Admin performs the operations on a broker that tests need, with kafka-go. It also works with a
// broker that this package did not start.
//
// A request without a response may have gone to a frozen broker. The next request goes to a broker
// that accepts a new connection.
type Admin struct {
	brokers   []string
	client    *kafka.Client
	transport *kafka.Transport
}

// NewAdmin returns an Admin that connects to the brokers (host:port) when used.
func NewAdmin(brokers ...string) *Admin {
	// The transport caches metadata. Keep it briefly, because a test looks up what it just made.
	transport := &kafka.Transport{DialTimeout: 3 * time.Second, MetadataTTL: 100 * time.Millisecond,
		ClientID: "inbox-test-admin"}
	client := &kafka.Client{Addr: kafka.TCP(brokers...), Timeout: 15 * time.Second, Transport: transport}
	return &Admin{brokers: brokers, client: client, transport: transport}
}

// Close closes the connections to the broker and drops cached metadata. The Admin remains usable. A
// nil Admin is valid.
func (a *Admin) Close() {
	if a != nil {
		a.transport.CloseIdleConnections()
	}
}

// Ping returns an error unless a broker answers on a new connection and every partition has a
// leader.
func (a *Admin) Ping(ctx context.Context) error {
	fresh := NewAdmin(a.brokers...)
	defer fresh.Close()
	_, err := fresh.partitions(ctx)
	return err
}

// CreateTopic creates a topic with topic configs such as "cleanup.policy", and waits until every
// partition has a leader. The broker's default says how many replicas it has: two in a Cluster. An
// existing topic is an error (kafka.TopicAlreadyExists).
func (a *Admin) CreateTopic(ctx context.Context, name string, partitions int, configs map[string]string) error {
	topic := kafka.TopicConfig{Topic: name, NumPartitions: partitions, ReplicationFactor: -1}
	for key, value := range configs {
		topic.ConfigEntries = append(topic.ConfigEntries, kafka.ConfigEntry{ConfigName: key, ConfigValue: value})
	}
	response, err := a.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{topic}})
	if err == nil {
		err = response.Errors[name]
	}
	if err == nil {
		err = poll(ctx, func(ctx context.Context) error {
			found, err := a.partitions(ctx, name)
			if err == nil && len(found) != partitions {
				err = fmt.Errorf("%d of %d partitions have a leader", len(found), partitions)
			}
			return err
		})
	}
	return wrap("create topic "+name, err)
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
		Addr: a.client.Addr, Topic: topic, Transport: a.transport,
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
func (a *Admin) Committed(ctx context.Context, group, topic string) (offsets map[int]int64, err error) {
	defer func() { err = wrap(fmt.Sprintf("committed offsets of %s for %s", group, topic), err) }()
	found, err := a.partitions(ctx, topic)
	if err != nil {
		return nil, err
	}
	request := &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: nil}}
	for _, partition := range found {
		request.Topics[topic] = append(request.Topics[topic], partition.ID)
	}
	response, err := a.client.OffsetFetch(ctx, request)
	if err == nil {
		err = response.Error
	}
	if err != nil {
		a.Close()
		return nil, err
	}
	offsets = make(map[int]int64, len(found))
	for _, partition := range response.Topics[topic] {
		if partition.Error != nil {
			return nil, fmt.Errorf("partition %d: %w", partition.Partition, partition.Error)
		}
		offsets[partition.Partition] = partition.CommittedOffset
	}
	return offsets, nil
}

// Records returns how many records the partitions of a topic have together.
func (a *Admin) Records(ctx context.Context, topic string) (n int64, err error) {
	defer func() { err = wrap("records of "+topic, err) }()
	found, err := a.partitions(ctx, topic)
	if err != nil {
		return 0, err
	}
	request := &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{}}
	for _, p := range found {
		request.Topics[topic] = append(request.Topics[topic], kafka.FirstOffsetOf(p.ID), kafka.LastOffsetOf(p.ID))
	}
	response, err := a.client.ListOffsets(ctx, request)
	if err != nil {
		return 0, err
	}
	for _, p := range response.Topics[topic] {
		if p.Error != nil {
			return 0, fmt.Errorf("partition %d: %w", p.Partition, p.Error)
		}
		n += p.LastOffset - p.FirstOffset
	}
	return n, nil
}

// Coordinator returns the ID of the broker that coordinates a group. The first call creates the
// topic for the offsets of all groups.
func (a *Admin) Coordinator(ctx context.Context, group string) (int, error) {
	response, err := a.client.FindCoordinator(ctx, &kafka.FindCoordinatorRequest{Key: group,
		KeyType: kafka.CoordinatorKeyTypeConsumer})
	if err == nil {
		err = response.Error
	}
	if err != nil {
		a.Close()
		return 0, fmt.Errorf("coordinator of group %s: %w", group, err)
	}
	return response.Coordinator.NodeID, nil
}

// Leaders returns the ID of the broker that leads each partition of a topic.
func (a *Admin) Leaders(ctx context.Context, topic string) (map[int]int, error) {
	found, err := a.partitions(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("leaders of topic %s: %w", topic, err)
	}
	leaders := map[int]int{}
	for _, partition := range found {
		leaders[partition.ID] = partition.Leader.ID
	}
	return leaders, nil
}

// inSync returns an error unless every partition, including those of internal topics, has all of
// its replicas in sync.
func (a *Admin) inSync(ctx context.Context) error {
	found, err := a.partitions(ctx)
	for _, partition := range found {
		if len(partition.Isr) < len(partition.Replicas) {
			return fmt.Errorf("%s/%d has %d of %d replicas in sync", partition.Topic, partition.ID, len(partition.Isr),
				len(partition.Replicas))
		}
	}
	return err
}

// partitions returns the partitions of these topics, or of all topics if none is named. All of them
// must have a leader.
func (a *Admin) partitions(ctx context.Context, topics ...string) (found []kafka.Partition, err error) {
	response, err := a.client.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		a.Close()
		return nil, err
	}
	for _, topic := range response.Topics {
		if topic.Error != nil {
			return nil, fmt.Errorf("topic %s: %w", topic.Name, topic.Error)
		}
		for _, partition := range topic.Partitions {
			if partition.Error != nil {
				return nil, fmt.Errorf("%s/%d: %w", topic.Name, partition.ID, partition.Error)
			}
		}
		found = append(found, topic.Partitions...)
	}
	if len(found) == 0 && len(topics) > 0 {
		return nil, kafka.UnknownTopicOrPartition
	}
	return found, nil
}
