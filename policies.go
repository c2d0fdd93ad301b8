package inbox

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// AcceptRejected accepts a rejected message's record again, by its channel's
// decoder, handlers and policies as they are now, and deletes the rejected row
// in the same transaction. It needs no Start. It fails with
// acceptor.ErrRejectedNotFound for an unknown ID, with a *handler.StillBadError, leaving the row
// with the new reason, if the record is still bad, and with an *acceptor.InvalidError if
// this process does not declare the channel. A channel without Kafka decodes
// by the default decoder. Of a record with several messages (batched
// CloudEvents), one that was handled and cleaned up since runs its handlers
// again. See acceptor.Acceptor.AcceptRejected (contract 7.4).
func (ib *Inbox) AcceptRejected(ctx context.Context, id string) ([]acceptor.Result, error) {
	if err := ib.tables.ready(ctx); err != nil {
		return nil, ib.name(err)
	}
	results, err := ib.acceptor.AcceptRejected(ctx, id)
	return results, ib.name(err)
}

// decoders are those of the channels that have a transport. What is wrong with
// a decoder's config is the consumer's to say.
func (ib *Inbox) decoders() map[string]*envelope.Decoder {
	decoders := map[string]*envelope.Decoder{}
	for _, c := range ib.cfg.channels {
		for _, cfg := range c.kafka {
			if decoder, err := envelope.NewDecoder(cfg.Decoder, ib.log); err == nil {
				decoders[c.name] = decoder
			}
		}
	}
	return decoders
}

// validateKafka reports what is wrong with the channels' transports.
func (cfg *config) validateKafka() error {
	var all []error
	policy := cfg.options.Acceptor.BadRecords
	for _, c := range cfg.channels {
		for _, k := range c.kafka {
			err := k.Validate()
			switch {
			case policy == acceptor.BadRecordDeadLetter && k.DeadLetterTopic == "":
				err = errors.Join(err,
					fmt.Errorf("option DeadLetterTopic is empty: must be a topic with BadRecords %s",
						policy))
			case policy != acceptor.BadRecordDeadLetter && k.DeadLetterTopic != "":
				err = errors.Join(err,
					fmt.Errorf("option DeadLetterTopic = %q: must be empty while BadRecords is %s",
						k.DeadLetterTopic, policy))
			}
			all = append(all, problems.Prefix(fmt.Sprintf("channel %q: ", c.name), err))
		}
	}
	return errors.Join(all...)
}

// consuming is a channel's consumer as the inbox's policies want it.
func (ib *Inbox) consuming(channel string, cfg kafkaconsumer.Config) kafkaconsumer.Config {
	onDeadLetter := cfg.OnDeadLetter
	cfg.OnDeadLetter = func(record envelope.Record, reason error) {
		ib.counters.OfChannel(telemetry.DeadLettered, channel, 1)
		if onDeadLetter != nil {
			onDeadLetter(record, reason)
		}
	}
	if ib.cfg.options.ShutdownOnHalt {
		first := cfg.OnHalt
		cfg.OnHalt = func(topic string, partition int, reason error) {
			defer ib.endApplication(channel, topic, partition, reason) // also if the user's function panics
			if first != nil {
				first(topic, partition, reason)
			}
		}
	}
	return cfg
}

// exitHalted is the exit code of an application that ShutdownOnHalt ends.
const exitHalted = 1

var errNoShutdown = errors.New("option ShutdownOnHalt requires Fx: use OnHalt of kafkaconsumer.Config to end the application")

// endApplication ends the Fx application, once.
func (ib *Inbox) endApplication(channel, topic string, partition int, reason error) {
	ib.ending.Do(func() {
		ib.log.Error("inbox: a partition is halted, shutting the application down",
			zap.String(telemetry.FieldChannel, channel),
			zap.String(telemetry.FieldTopic, topic), zap.Int(telemetry.FieldPartition, partition), zap.Error(reason))
		if err := ib.cfg.shutdown(exitHalted); err != nil {
			ib.log.Error("inbox: shutting the application down failed", zap.Error(err))
		}
	})
}
