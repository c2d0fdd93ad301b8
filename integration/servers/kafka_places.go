package servers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

// Coordinator returns the ID of the broker that coordinates a group. As with every request here,
// one without a response may have gone to a frozen broker. The next request goes to a broker that
// accepts a new connection.
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
	response, err := a.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		a.Close()
		return nil, fmt.Errorf("leaders of topic %s: %w", topic, err)
	}
	leaders := map[int]int{}
	for _, found := range response.Topics {
		if found.Name != topic {
			continue
		}
		if found.Error != nil {
			return nil, fmt.Errorf("leaders of topic %s: %w", topic, found.Error)
		}
		for _, partition := range found.Partitions {
			if partition.Error != nil {
				return nil, fmt.Errorf("leader of %s/%d: %w", topic, partition.ID, partition.Error)
			}
			leaders[partition.ID] = partition.Leader.ID
		}
	}
	return leaders, nil
}

// AwaitInSync waits until every partition, including those of internal topics, has all of its
// replicas in sync. Then no broker is the only one with some of the data.
func (a *Admin) AwaitInSync(ctx context.Context) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, 3*time.Second)
		err := a.inSync(attempt)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("await replicas in sync: %w", errors.Join(ctx.Err(), err))
		case <-time.After(pollInterval):
		}
	}
}

func (a *Admin) inSync(ctx context.Context) error {
	response, err := a.client.Metadata(ctx, &kafka.MetadataRequest{}) // of all topics
	if err != nil {
		a.Close()
		return err
	}
	for _, topic := range response.Topics {
		if topic.Error != nil {
			return fmt.Errorf("topic %s: %w", topic.Name, topic.Error)
		}
		for _, partition := range topic.Partitions {
			if partition.Error != nil {
				return fmt.Errorf("%s/%d: %w", topic.Name, partition.ID, partition.Error)
			}
			if len(partition.Isr) < a.replicas || len(partition.Isr) < len(partition.Replicas) {
				return fmt.Errorf("%s/%d has %d of %d replicas in sync", topic.Name, partition.ID, len(partition.Isr),
					len(partition.Replicas))
			}
		}
	}
	return nil
}

// alive returns which brokers the cluster counts as running.
func (a *Admin) alive(ctx context.Context) (map[int]bool, error) {
	response, err := a.client.Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		return nil, err
	}
	alive := map[int]bool{}
	for _, broker := range response.Brokers {
		alive[broker.ID] = true
	}
	return alive, nil
}
