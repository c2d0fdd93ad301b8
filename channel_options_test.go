package inbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func having(set func(o *inbox.ChannelOptions)) inbox.ChannelOption {
	return inbox.ConfigureChannel(set)
}

// TestEveryChannelOptionErrorIsReported proves contract 9.
func TestEveryChannelOptionErrorIsReported(t *testing.T) {
	kafka, on := inbox.Kafka(unreachableKafka), inbox.On("t", nothing("a"))
	for name, tc := range map[string]struct {
		opts []inbox.ChannelOption
		want []string
	}{
		"values": {[]inbox.ChannelOption{kafka, inbox.Direct(), having(func(o *inbox.ChannelOptions) {
			o.Acceptor.BadRecords, o.Acceptor.HaltAtBadRecords, o.Acceptor.OnGap = "drop", -1, "skip"
			o.Acceptor.Unrouted, o.MaxRetries, o.PartitionConcurrency = "drop", -1, 0
		})}, []string{`option BadRecords = "drop": must be`, "option HaltAtBadRecords = -1: must be",
			`option OnGap = "skip": must be`, `option Unrouted = "drop": must be`, "option MaxRetries = -1: must be 0 or more",
			"option PartitionConcurrency = 0: must be 1 or more"}},
		"without a transport": {[]inbox.ChannelOption{having(func(o *inbox.ChannelOptions) {
			o.Acceptor.BadRecords, o.Acceptor.HaltAtBadRecords = acceptor.BadRecordHalt, 5
			o.Acceptor.OnGap = acceptor.GapContinue
		})}, []string{"option BadRecords of inbox.ConfigureChannel needs inbox.Kafka: leave it out",
			"option HaltAtBadRecords of inbox.ConfigureChannel needs inbox.Kafka",
			"option OnGap of inbox.ConfigureChannel needs inbox.Kafka"}},
		"Inbox mode": {[]inbox.ChannelOption{kafka, having(func(o *inbox.ChannelOptions) { o.PartitionConcurrency = 2 })},
			[]string{"option PartitionConcurrency of inbox.ConfigureChannel needs inbox.Inline or inbox.Direct"}},
		"Direct mode": {[]inbox.ChannelOption{kafka, inbox.Direct(), having(func(o *inbox.ChannelOptions) {
			o.Acceptor.DifferingContent = acceptor.DifferingContentReject
		})}, []string{"option DifferingContent of inbox.ConfigureChannel needs Inbox mode"}},
		"dead letters without a topic": {[]inbox.ChannelOption{kafka, having(func(o *inbox.ChannelOptions) {
			o.Acceptor.BadRecords = acceptor.BadRecordDeadLetter
		})}, []string{"option DeadLetterTopic is empty: must be a topic with BadRecords dead_letter_topic"}},
		"shared IDs": {[]inbox.ChannelOption{inbox.IDNamespace("shop"), having(func(o *inbox.ChannelOptions) {
			o.Acceptor.DifferingContent = acceptor.DifferingContentReject
		})}, []string{`option DifferingContent = "reject": must be that of channel "another" ("log"), with which it shares its IDs`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := inbox.New("orders", fxtest.OpenDB(t), inbox.Channel("events", append(tc.opts, on)...),
				inbox.Channel("another", inbox.IDNamespace("shop"), inbox.On("t", nothing("b"))))
			for _, want := range tc.want {
				require.ErrorContains(t, err, `inbox "orders": channel "events": `+want)
			}
		})
	}
}

func TestChannelInheritsInboxOptions(t *testing.T) {
	var seen []inbox.ChannelOptions
	channel := inbox.Channel("events", inbox.On("t", nothing("a")), having(nil), having(func(o *inbox.ChannelOptions) {
		seen = append(seen, *o)
		o.MaxRetries++
	}), having(func(o *inbox.ChannelOptions) { seen = append(seen, *o) }))
	for retries := range 2 { // one Option, two inboxes
		_, err := inbox.New("orders", fxtest.OpenDB(t), channel, inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries, o.PartitionConcurrency, o.Acceptor.HaltAtBadRecords = 10*retries, 7, 9
		}))
		require.NoError(t, err)
		policies := acceptor.DefaultOptions()
		policies.HaltAtBadRecords = 9
		require.Equal(t, []inbox.ChannelOptions{
			{Acceptor: policies, MaxRetries: 10 * retries, PartitionConcurrency: 7},
			{Acceptor: policies, MaxRetries: 10*retries + 1, PartitionConcurrency: 7},
		}, seen)
		seen = nil
	}
}

// TestChannelPoliciesAreIndependent proves contract 9: what one channel declares changes nothing for
// another, in one accept of both.
func TestChannelPoliciesAreIndependent(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		fail := func(context.Context, inboxtest.Bytes) error { return errors.New("no") }
		ib := inboxtest.New(t, d.DB,
			inbox.Channel("lax", inbox.On("t", inboxtest.Do("lax", fail))),
			inbox.Channel("strict", inbox.On("t", inboxtest.Do("strict", fail),
				inboxtest.Do("own", fail, handler.MaxRetries(3))), having(func(o *inbox.ChannelOptions) {
				o.Acceptor.Unrouted, o.Acceptor.DifferingContent = acceptor.UnroutedReject, acceptor.DifferingContentReject
				o.MaxRetries = 1
			})))
		message := func(channel, typ, content string) handler.RawMessage {
			m := inboxtest.Message("1")
			m.Channel, m.Type, m.Content = channel, typ, []byte(content)
			return m
		}
		_, err := ib.Accept(t.Context(), message("lax", "t", "a"), message("strict", "t", "a"))
		require.NoError(t, err)
		results, err := ib.Accept(t.Context(), message("lax", "u", "a"), message("strict", "u", "a"),
			message("lax", "t", "b"), message("strict", "t", "b"))
		require.Error(t, err)
		var outcomes []handler.AcceptOutcome
		for _, r := range results {
			outcomes = append(outcomes, r.Outcome)
		}
		require.Equal(t, []handler.AcceptOutcome{handler.OutcomeUnrouted, handler.OutcomeInvalid, handler.OutcomeDuplicate,
			handler.OutcomeInvalid}, outcomes)
		require.ErrorContains(t, results[3].Err, "content_differs")

		inboxtest.Process(t, ib)
		poisoned := map[string]bool{}
		for _, s := range inboxtest.Statuses(t, ib) {
			poisoned[s.HandlerKey] = s.IsPoisoned
		}
		require.Equal(t, map[string]bool{"lax": false, "strict": true, "own": false}, poisoned)
	})
}

// Contract 4.4.
func TestSharedNamespaceRefusesAmbiguousIDs(t *testing.T) {
	declare := func(second string, id envelope.IDStrategy) error {
		channel := func(name, group string) inbox.Option {
			return inbox.Channel(name, inbox.IDNamespace("shop"), inbox.On("t", nothing(group)),
				inbox.Kafka(kafkaconsumer.Config{Brokers: []string{"b:1"}, Topics: []string{"t"}, GroupID: group,
					Decoder: envelope.DecoderConfig{ID: id}}))
		}
		_, err := inbox.New("orders", fxtest.OpenDB(t), channel("a", "g"), channel(second, "h"))
		return err
	}
	for _, id := range []envelope.IDStrategy{envelope.KafkaKey(), envelope.CorrelationID("")} {
		require.ErrorContains(t, declare("a:b", id), `"a:b:1" could be an ID of both`)
		require.NoError(t, declare("ab", id))
	}
	require.NoError(t, declare("a:b", envelope.HeaderID("id")))
}
