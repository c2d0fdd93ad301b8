package groups

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/peers/byhand"
	"github.com/gorm-inbox/inbox/bench/peers/watermill"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/models"
)

const (
	leaveOneKey    = "inbox, one key"
	leaveKeys      = "inbox, 1,000 keys"
	leaveAlone     = "inbox, each its own key"
	leaveProcess   = "inbox, a handler that does nothing"
	leaveByHand    = "by hand: read 1,000, produce, delete"
	leaveForwarder = "Watermill's forwarder"
)

// Outgoing measures an outbox: from stored messages to records in a topic.
func Outgoing() trial.Group {
	return trial.Group{
		Name: "outgoing", Unit: "message",
		About: "messages that are stored already, from the start of what publishes them until all are in a topic of 4 " +
			"partitions with all replicas' acknowledgement and stored as published; the loop by hand is one relay, which keeps " +
			"the order; the forwarder publishes one by one; the handler that does nothing publishes nothing",
		Shared: newBroker,
		Variants: []trial.Variant{
			{Name: leaveKeys, New: leave(1_000, outgoingCount, outgoingQuick)},
			{Name: leaveOneKey, New: leave(1, outgoingCount, outgoingQuick)},
			{Name: leaveAlone, New: leave(0, outgoingCount, outgoingQuick)},
			{Name: leaveProcess, New: leaveOurs},
			{Name: leaveByHand, New: leaveHand},
			{Name: leaveForwarder, New: leaveWatermill},
		},
		Lines: []trial.Line{
			trial.Ratio("outgoing_1000_keys_vs_process", leaveKeys, leaveProcess, 0.5),
			trial.Rate("outgoing_one_key_rate", leaveOneKey, 2_000),
			trial.Ratio("outgoing_vs_byhand", leaveKeys, leaveByHand, 0),
			trial.Ratio("outgoing_vs_watermill_forwarder", leaveKeys, leaveForwarder, 0),
		},
	}
}

const outgoingCount, outgoingQuick = 100_000, 20_000

// newTopic creates a topic and returns its name.
func (b *broker) newTopic(ctx context.Context) (string, error) {
	name := "inbox-bench-" + uuid.NewString()
	return name, b.CreateTopic(ctx, name, kafkaPartitions, nil)
}

// checkRecords returns an error unless a topic has at least n records.
func (b *broker) checkRecords(ctx context.Context, topic string, n int) error {
	records, err := b.Records(ctx, topic)
	if err == nil && records < int64(n) {
		err = fmt.Errorf("%d records in the topic, expected %d", records, n)
	}
	return err
}

// leave publishes n messages with so many keys, in turn; 0 means that each has its own.
func leave(keys, full, quick int) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		broker, n := env.Shared.(*broker), env.Scale(full, quick)
		topic, err := broker.newTopic(ctx)
		if err != nil {
			return nil, err
		}
		ib, err := ours.OpenOutgoing(ctx, env.DSN, broker.brokers, topic, processOptions()...)
		if err != nil {
			return nil, err
		}
		if keys == 0 {
			keys = n
		}
		return processAccepted(ctx, env, ib, laneMessages(n, keys, "key-"), func(ctx context.Context) error {
			completed, err := gorm.G[models.HandlerStatus](ib.DB, ib.Tables()).Where("completed_at IS NOT NULL").Count(ctx, "*")
			if err == nil && completed != int64(n) {
				err = fmt.Errorf("%d statuses completed, expected %d", completed, n)
			}
			if err != nil {
				return err
			}
			return broker.checkRecords(ctx, topic, n)
		})
	}
}

// leaveOurs processes as many messages with a handler that does nothing.
func leaveOurs(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
	n := env.Scale(outgoingCount, outgoingQuick)
	ib, err := ours.Open(ctx, env.DSN, 1, processOptions()...)
	if err != nil {
		return nil, err
	}
	return processAccepted(ctx, env, ib, ours.Messages(n), func(ctx context.Context) error {
		return ib.CheckStored(ctx, n, n, n)
	})
}

func leaveHand(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
	broker, n := env.Shared.(*broker), env.Scale(outgoingCount, outgoingQuick)
	topic, err := broker.newTopic(ctx)
	if err != nil {
		return nil, err
	}
	outbox, err := byhand.OpenOutbox(ctx, env.DSN, broker.brokers, topic)
	if err != nil {
		return nil, err
	}
	if err := outbox.Fill(ctx, n, 1_000); err != nil {
		outbox.Close()
		return nil, err
	}
	return &trial.Trial{Count: n, Run: func(ctx context.Context) error { return outbox.Relay(ctx, 1_000) },
		Check: func(ctx context.Context) error { return broker.checkRecords(ctx, topic, n) }, Close: outbox.Close}, nil
}

func leaveWatermill(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
	broker, n := env.Shared.(*broker), env.Scale(outgoingCount/20, outgoingQuick/20)
	topic, err := broker.newTopic(ctx)
	if err != nil {
		return nil, err
	}
	w, err := watermill.OpenForwarder(ctx, env.DSN, broker.brokers, topic)
	if err != nil {
		return nil, err
	}
	if err := w.Fill(ctx, n, 1_000); err != nil {
		w.Close()
		return nil, err
	}
	return &trial.Trial{Count: n, Run: func(ctx context.Context) error { return w.Forward(ctx, n) },
		Check: func(ctx context.Context) error { return broker.checkRecords(ctx, topic, n) }, Close: w.Close}, nil
}
