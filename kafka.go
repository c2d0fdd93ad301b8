package inbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// validateKafka returns what is wrong with the channels' transports.
func (cfg *config) validateKafka() error {
	var all []error
	for _, c := range cfg.channels {
		policy := c.options.Acceptor.BadRecords
		for _, k := range c.kafka {
			err := k.Validate()
			switch {
			case cfg.channelOpen(c):
			case policy == acceptor.BadRecordDeadLetter && k.DeadLetterTopic == "":
				err = errors.Join(err,
					fmt.Errorf("option DeadLetterTopic is empty: must be a topic with BadRecords %s",
						policy))
			case policy != acceptor.BadRecordDeadLetter && k.DeadLetterTopic != "" && !k.PublishPoisoned:
				err = errors.Join(err,
					fmt.Errorf("option DeadLetterTopic = %q: must be empty while BadRecords is %s and PublishPoisoned is off",
						k.DeadLetterTopic, policy))
			}
			all = append(all, problems.Prefix(fmt.Sprintf("channel %q: ", c.name), err))
		}
	}
	return errors.Join(all...)
}

// membership is a channel's consumer group.
type membership struct {
	inbox, channel string
	kafka          kafkaconsumer.Config
}

// memberships lists an inbox's consumer groups for checkGroups.
func memberships(inbox string, channels []*channel) []membership {
	var all []membership
	for _, c := range channels {
		for _, cfg := range c.kafka {
			all = append(all, membership{inbox, c.name, cfg})
		}
	}
	return all
}

// checkGroups refuses two channels of one process in one consumer group: Kafka would give each partition to only one of
// them, and the other's handlers would never see its records. Groups are in one cluster if they share a broker. The
// error joins all pairs in a fixed order.
func checkGroups(all []membership) error {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b membership) int { return strings.Compare(a.inbox, b.inbox) })
	var problems []error
	for i, a := range all {
		for _, b := range all[i+1:] {
			shared := slices.ContainsFunc(a.kafka.Brokers, func(broker string) bool {
				return slices.Contains(b.kafka.Brokers, broker)
			})
			sameChannel := a.inbox == b.inbox && a.channel == b.channel // Kafka declared twice, which validateChannels reports
			if shared && !sameChannel && a.kafka.GroupID == b.kafka.GroupID {
				problems = append(problems,
					fmt.Errorf("channel %q of inbox %q and channel %q of inbox %q have the same GroupID %q: each must have its own, or either would get the records of some partitions only",
						a.channel, a.inbox, b.channel, b.inbox, a.kafka.GroupID))
			}
		}
	}
	return errors.Join(problems...)
}

// exitHalted is the application's exit code after ShutdownOnHalt.
const exitHalted = 1

var errNoShutdown = errors.New("option ShutdownOnHalt requires Fx: use OnHalt of kafkaconsumer.Config to end the application")
