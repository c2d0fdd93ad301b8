package groups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/server"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/integration/servers"
)

const (
	kafkaByCalls   = "accepted by calls"
	kafkaAccepted  = "accepted from Kafka"
	kafkaCompleted = "from Kafka to completed"
)

// Kafka measures the way from records in a topic to stored messages.
func Kafka() trial.Group {
	return trial.Group{
		Name: "kafka", Unit: "message",
		About: "records that are already in a topic of 4 partitions, from the consumer's start until all are " +
			"accepted or completed; by calls, the messages are accepted as the consumer decodes them, with key, " +
			"headers and coordinates; broker_us is the broker's CPU per record",
		Shared: newKafkaTopic,
		Variants: []trial.Variant{
			{Name: kafkaByCalls, New: acceptedByCalls},
			{Name: kafkaAccepted, New: fromKafka(true)},
			{Name: kafkaCompleted, New: fromKafka(false)},
		},
		Lines: []trial.Line{
			trial.Ratio("kafka_to_accepted_vs_accept", kafkaAccepted, kafkaByCalls, 0.88),
			trial.Ratio("kafka_to_completed_vs_accept", kafkaCompleted, kafkaByCalls, 0.60),
		},
	}
}

// broker is a broker for a group's trials.
type broker struct {
	*servers.Admin
	started *servers.Kafka // nil for an external broker
	brokers []string
}

func newBroker(_ context.Context, lab *trial.Lab) (io.Closer, error) { return openBroker(lab) }

func openBroker(lab *trial.Lab) (*broker, error) {
	if lab.Kafka != "" {
		return &broker{Admin: servers.NewAdmin(lab.Kafka), brokers: []string{lab.Kafka}}, nil
	}
	started, err := servers.StartKafka(servers.KafkaOptions{})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", trial.ErrLeftOut, err)
	}
	return &broker{Admin: started.Admin, started: started, brokers: started.Brokers()}, nil
}

// Close stops the broker and removes its data. An external one stays.
func (b *broker) Close() error {
	if b.started != nil {
		return b.started.Close()
	}
	b.Admin.Close()
	return nil
}

// cpu returns the broker's CPU time, or zero for an external broker.
func (b *broker) cpu() (time.Duration, error) {
	if b.started == nil {
		return 0, nil
	}
	return server.CPU(b.started.PID())
}

// kafkaTopic is a topic full of records that every trial reads.
type kafkaTopic struct {
	*broker
	name     string
	messages []handler.RawMessage // as they are decoded
}

const kafkaPartitions = 4

func newKafkaTopic(ctx context.Context, lab *trial.Lab) (io.Closer, error) {
	broker, err := openBroker(lab)
	if err != nil {
		return nil, err
	}
	k := &kafkaTopic{broker: broker, name: "inbox-bench-" + uuid.NewString()}
	messages := ours.Messages(lab.Scale(100_000, 20_000))
	err = k.CreateTopic(ctx, k.name, kafkaPartitions, nil)
	if err == nil {
		err = ours.Produce(ctx, k.Admin, k.name, messages)
	}
	if err == nil {
		k.messages, err = ours.Decoded(k.name, kafkaPartitions, messages)
	}
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// Close stops the broker and removes its data, or only deletes the topic of an external broker.
func (k *kafkaTopic) Close() error {
	var err error
	if k.started == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		err = k.DeleteTopic(ctx, k.name)
	}
	return errors.Join(err, k.broker.Close())
}

func acceptedByCalls(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
	ib, err := ours.Open(ctx, env.DSN, 1)
	if err != nil {
		return nil, err
	}
	messages := env.Shared.(*kafkaTopic).messages
	return &trial.Trial{
		Count: len(messages),
		Run: func(ctx context.Context) error {
			return ib.AcceptAll(ctx, messages, acceptBatch, acceptConnections)
		},
		Check: func(ctx context.Context) error { return ib.CheckMessages(ctx, messages, len(messages), 0) },
		Close: ib.Close,
	}, nil
}

// fromKafka consumes the topic. With acceptOnly the handler is paused, so that messages are only
// accepted.
func fromKafka(acceptOnly bool) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		topic := env.Shared.(*kafkaTopic)
		n, completed := len(topic.messages), len(topic.messages)
		ib, err := ours.OpenKafka(ctx, env.DSN, topic.brokers, topic.name, processOptions()...)
		if err != nil {
			return nil, err
		}
		done := ib.Completed
		if acceptOnly {
			done, completed = ib.Accepted, 0
			if err := ib.Pause(ctx, "bench-handler-1"); err != nil {
				ib.Close()
				return nil, err
			}
		}
		t := &trial.Trial{Count: n, Close: ib.Close, Values: map[string]float64{}}
		t.Run = func(ctx context.Context) error {
			before, err := topic.cpu()
			if err != nil {
				return err
			}
			if err := ib.Start(ctx); err != nil {
				return err
			}
			if err := done(ctx, n); err != nil {
				return err
			}
			if !acceptOnly {
				t.Values["% dispatched"] = float64(100*ib.Counters().Dispatched) / float64(n)
			}
			after, err := topic.cpu()
			t.Values["broker_us"] = float64((after - before).Microseconds()) / float64(n)
			return err
		}
		t.Check = func(ctx context.Context) error { return ib.CheckMessages(ctx, topic.messages, n, completed) }
		return t, nil
	}
}
