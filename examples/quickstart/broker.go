package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
)

const partitions = 4

// Broker is the Kafka of one run, with a topic and a group of its own.
type Broker struct {
	Addresses    []string
	Topic, Group string
	// Session is how long the broker waits for a killed member.
	Session time.Duration

	client    *kgo.Client
	admin     *kadm.Client
	inProcess *kafkatest.Kafka // nil if the brokers are real
}

// OpenBroker connects to the brokers (host:port, separated by commas) or, if
// there are none, starts one in this process, and creates the topic.
func OpenBroker(ctx context.Context, brokers, run string) (*Broker, error) {
	// 6 seconds are the least that brokers allow unless told otherwise.
	b := &Broker{Topic: "orders.events." + run, Group: "fulfilment." + run, Session: 6 * time.Second}
	if brokers != "" {
		b.Addresses = strings.Split(brokers, ",")
	} else {
		inProcess, err := kafkatest.New()
		if err != nil {
			return nil, err
		}
		b.inProcess, b.Addresses, b.Session = inProcess, inProcess.Brokers(), 2*time.Second
	}
	if err := b.connect(ctx); err != nil {
		return nil, errors.Join(err, b.Close(ctx, true))
	}
	return b, nil
}

func (b *Broker) connect(ctx context.Context) error {
	var err error
	if b.client, err = kgo.NewClient(kgo.SeedBrokers(b.Addresses...),
		kgo.RecordDeliveryTimeout(30*time.Second)); err != nil {
		return fmt.Errorf("kafka at %s: %w", b.Addresses, err)
	}
	b.admin = kadm.NewClient(b.client)
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if _, err := b.admin.CreateTopic(ctx, partitions, 1, nil, b.Topic); err != nil {
		return fmt.Errorf("kafka at %s: create topic %q: %w", b.Addresses, b.Topic, err)
	}
	return nil
}

// Unread counts the topic's records whose offsets are not committed.
func (b *Broker) Unread(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ends, err := b.admin.ListEndOffsets(ctx, b.Topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return 0, fmt.Errorf("end of topic %q: %w", b.Topic, err)
	}
	committed, err := b.admin.FetchOffsets(ctx, b.Group)
	// before the first join
	if err = errors.Join(err, committed.Error()); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return 0, fmt.Errorf("offsets of group %q: %w", b.Group, err)
	}
	var unread int64
	ends.Each(func(end kadm.ListedOffset) {
		unread += end.Offset
		if at, ok := committed.Lookup(b.Topic, end.Partition); ok && at.At > 0 {
			unread -= at.At
		}
	})
	return unread, nil
}

// Close ends what OpenBroker began; on real brokers it deletes the topic and
// the group unless they are to be kept.
func (b *Broker) Close(ctx context.Context, keep bool) error {
	var problems []error
	if b.client != nil {
		if b.inProcess == nil && !keep {
			ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
			defer cancel()
			_, topicErr := b.admin.DeleteTopic(ctx, b.Topic)
			_, groupErr := b.admin.DeleteGroup(ctx, b.Group)
			problems = append(problems, topicErr, groupErr)
		}
		b.client.Close()
	}
	if b.inProcess != nil {
		b.inProcess.Close()
	}
	return errors.Join(problems...)
}

// String says where the broker is.
func (b *Broker) String() string {
	if b.inProcess != nil {
		return "in-process Kafka"
	}
	return "Kafka at " + strings.Join(b.Addresses, ",")
}
