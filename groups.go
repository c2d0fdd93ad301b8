package inbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// membership is a channel's part in a consumer group.
type membership struct {
	inbox, channel string
	kafka          kafkaconsumer.Config
}

// memberships lists those of an inbox for checkGroups.
func memberships(inbox string, channels []*channel) []membership {
	var all []membership
	for _, c := range channels {
		for _, cfg := range c.kafka {
			all = append(all, membership{inbox, c.name, cfg})
		}
	}
	return all
}

// checkGroups refuses two channels of one process in one consumer group: Kafka
// would give each partition to one of them, whose handlers alone would see its
// records. The error joins all pairs, in an order that does not depend on
// chance. Clusters are told apart by their brokers (contract 10.4).
func checkGroups(all []membership) error {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b membership) int { return strings.Compare(a.inbox, b.inbox) })
	var problems []error
	for i, a := range all {
		for _, b := range all[i+1:] {
			shared := slices.ContainsFunc(a.kafka.Brokers, func(broker string) bool {
				return slices.Contains(b.kafka.Brokers, broker)
			})
			sameChannel := a.inbox == b.inbox && a.channel == b.channel // which is another mistake
			if shared && !sameChannel && a.kafka.GroupID == b.kafka.GroupID {
				problems = append(problems,
					fmt.Errorf("channel %q of inbox %q and channel %q of inbox %q have the same GroupID %q: each must have its own, or either would get the records of some partitions only",
						a.channel, a.inbox, b.channel, b.inbox, a.kafka.GroupID))
			}
		}
	}
	return errors.Join(problems...)
}
