package inbox

import (
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/internal/engine"
	"github.com/gorm-inbox/inbox/internal/problems"
)

// ChannelOptions are the options of an inbox that each of its channels may have for itself.
type ChannelOptions struct {
	// Acceptor says how to treat the channel's records that are no message for a handler. All channels that share IDs
	// must have the same DifferingContent; it has no effect on Inline and Direct channels. BadRecords, HaltAtBadRecords
	// and OnGap have none without a transport.
	Acceptor acceptor.Options `yaml:",inline"`
	// MaxRetries is processor.Options.MaxRetries for the channel's handlers without a handler.MaxRetries. Do not set it
	// for a single handler.
	MaxRetries int `yaml:"max_retries" env:"MAX_RETRIES"`
	// PartitionConcurrency is how many partitions of this Inline or Direct channel may run a handler at once. Do not set
	// it on an Inbox channel: there handler.Concurrency limits each handler (contract 7.6).
	PartitionConcurrency int `yaml:"partition_concurrency" env:"PARTITION_CONCURRENCY"`
}

// ConfigureChannel sets options for this channel alone. set gets the inbox's options, in any order of declaration. A
// bad value fails the start with an error that names channel and option, and so does an option that has no effect on
// the channel. A nil set does nothing. Do not use it for a single handler: handler.MaxRetries and its siblings do
// (contract 9).
func ConfigureChannel(set func(o *ChannelOptions)) ChannelOption {
	return func(c *channel) {
		if set != nil {
			c.configure = append(c.configure, set)
		}
	}
}

// ofChannels returns the options that a channel has unless it changes them.
func (o Options) ofChannels() ChannelOptions {
	return ChannelOptions{Acceptor: o.Acceptor, MaxRetries: o.Processor.MaxRetries,
		PartitionConcurrency: o.PartitionConcurrency}
}

// setOptions gives the channel the inbox's options, and lets it change them.
func (c *channel) setOptions(inbox Options) {
	c.options = inbox.ofChannels()
	for _, set := range c.configure {
		set(&c.options)
	}
}

// optionProblems returns the errors in the channel's own options. Options.Validate checks the values that equal the
// inbox's.
func (c *channel) optionProblems(cfg *config) error {
	theirs, own := cfg.options.ofChannels(), c.options
	var found []error
	refuse := func(format string, args ...any) { found = append(found, fmt.Errorf(format, args...)) }
	if own.Acceptor != theirs.Acceptor {
		found = append(found, own.Acceptor.Validate())
	}
	if own.MaxRetries < 0 && own.MaxRetries != theirs.MaxRetries {
		refuse("option MaxRetries = %d: must be 0 or more", own.MaxRetries)
	}
	if own.PartitionConcurrency < 1 && own.PartitionConcurrency != theirs.PartitionConcurrency {
		refuse("option PartitionConcurrency = %d: must be 1 or more", own.PartitionConcurrency)
	}
	stores, consumes := c.mode == engine.Inbox, len(c.kafka) > 0
	for _, option := range []struct {
		name            string
		changed, useful bool
		need            string
	}{
		{"PartitionConcurrency", own.PartitionConcurrency != theirs.PartitionConcurrency, !stores, "inbox.Inline or inbox.Direct"},
		{"DifferingContent", own.Acceptor.DifferingContent != theirs.Acceptor.DifferingContent, stores, "Inbox mode"},
		{"BadRecords", own.Acceptor.BadRecords != theirs.Acceptor.BadRecords, consumes, "inbox.Kafka"},
		{"HaltAtBadRecords", own.Acceptor.HaltAtBadRecords != theirs.Acceptor.HaltAtBadRecords, consumes, "inbox.Kafka"},
		{"OnGap", own.Acceptor.OnGap != theirs.Acceptor.OnGap, consumes, "inbox.Kafka"},
	} {
		if option.changed && !option.useful && !cfg.channelOpen(c) {
			refuse("option %s of inbox.ConfigureChannel needs %s: leave it out", option.name, option.need)
		}
	}
	for _, other := range cfg.channels {
		if other.name < c.name && other.idNamespace() == c.idNamespace() && !cfg.channelOpen(c) && !cfg.channelOpen(other) &&
			other.options.Acceptor.DifferingContent != own.Acceptor.DifferingContent {
			refuse("option DifferingContent = %q: must be that of channel %q (%q), with which it shares its IDs",
				own.Acceptor.DifferingContent, other.name, other.options.Acceptor.DifferingContent)
		}
	}
	return problems.Prefix(fmt.Sprintf("channel %q: ", c.name), errors.Join(found...))
}
