package inbox

import "fmt"

// InboxRequirement says whether channels may consume without an inbox.
type InboxRequirement string

// The requirements of ConsumeChannelInboxRequirement.
const (
	// RequirementNone lets them.
	RequirementNone InboxRequirement = "none"
	// RequirementWarn says so at each start, once per channel.
	RequirementWarn InboxRequirement = "warn"
	// RequirementFail refuses to start.
	RequirementFail InboxRequirement = "fail"
)

// DeliveryOptions are about channels whose handlers run while the transport
// waits.
type DeliveryOptions struct {
	// ConsumeChannelInboxRequirement says whether there may be such channels.
	// Default RequirementNone (contract 7.7).
	ConsumeChannelInboxRequirement InboxRequirement `yaml:"consume_channel_inbox_requirement" env:"CONSUME_CHANNEL_INBOX_REQUIREMENT"`
	// MaxAttempts is after how many failed attempts a handler gives a message
	// up. Default 5 (contract 7.6).
	MaxAttempts int `yaml:"max_attempts" env:"MAX_ATTEMPTS"`
	// PartitionConcurrency is how many partitions of a channel may have a
	// handler running at once. Default 10.
	PartitionConcurrency int `yaml:"partition_concurrency" env:"PARTITION_CONCURRENCY"`
}

func defaultDeliveryOptions() DeliveryOptions {
	return DeliveryOptions{ConsumeChannelInboxRequirement: RequirementNone, MaxAttempts: 5, PartitionConcurrency: 10}
}

func (o DeliveryOptions) problems() []error {
	var problems []error
	switch o.ConsumeChannelInboxRequirement {
	case RequirementNone, RequirementWarn, RequirementFail:
	default:
		problems = append(problems, fmt.Errorf("option ConsumeChannelInboxRequirement is %q, allowed are none, warn and fail",
			o.ConsumeChannelInboxRequirement))
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"MaxAttempts", o.MaxAttempts}, {"PartitionConcurrency", o.PartitionConcurrency}} {
		if f.value < 1 {
			problems = append(problems, fmt.Errorf("option %s is %d, allowed is 1 or more", f.name, f.value))
		}
	}
	return problems
}

// ConsumeChannelInboxRequirement says whether Kafka channels may do without an
// inbox: RequirementNone, RequirementWarn or RequirementFail, which fails the
// start unless the channel declares AllowConsumeWithoutInbox. Do not set Fail
// to forbid a single channel what its own declaration says. Default
// RequirementNone (contract 7.7).
func ConsumeChannelInboxRequirement(r InboxRequirement) Option {
	return func(c *config) { c.options.Delivery.ConsumeChannelInboxRequirement = r }
}

// MaxAttempts is after how many failed attempts, in place, a handler of an
// Inline or Direct channel gives a message up, so that its record is bad; a handler's own
// MaxRetries replaces it. Do not raise it without looking at the backoff: all
// this time the partition stands, and lag grows. Default 5, which is between a
// quarter and half a minute (contract 7.6).
func MaxAttempts(n int) Option { return func(c *config) { c.options.Delivery.MaxAttempts = n } }

// PartitionConcurrency is how many partitions of an Inline or Direct channel may have
// a handler running at once; while one waits for its next attempt, others have
// its place. Do not set it above what the database pool can serve beside
// Concurrency. Default 10 (contract 7.6).
func PartitionConcurrency(n int) Option {
	return func(c *config) { c.options.Delivery.PartitionConcurrency = n }
}
