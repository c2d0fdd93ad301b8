package inbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/stretchr/testify/require"
	"go.uber.org/fx"
	"gopkg.in/yaml.v3"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// unreachableKafka is a transport without a broker, which only a start would need.
var unreachableKafka = kafkaconsumer.Config{Brokers: []string{"127.0.0.1:1"}, Topics: []string{"events"}, GroupID: "g"}

type batchOfGraph struct{}

func (*batchOfGraph) HandleBatch(context.Context, []inboxtest.Bytes) error { return nil }

// otherGroup is unreachableKafka with another consumer group.
var otherGroup = kafkaconsumer.Config{Brokers: []string{"127.0.0.1:1"}, Topics: []string{"events"}, GroupID: "h"}

// timed is unreachableKafka whose records may have a time.
var timed = func() kafkaconsumer.Config {
	cfg := unreachableKafka
	cfg.Decoder.NotBeforeHeader = "not-before"
	return cfg
}()

// directChannel declares the channel "events" in Direct mode.
func directChannel(opts ...inbox.ChannelOption) inbox.Option {
	return inbox.Channel("events", append([]inbox.ChannelOption{inbox.Direct(), inbox.Kafka(unreachableKafka)}, opts...)...)
}

// Contract 10.4: New and Module report the same mistakes.
func TestEveryDirectChannelErrorIsReported(t *testing.T) {
	with := func(h *inbox.HandlerSpec) []inbox.Option { return []inbox.Option{directChannel(inbox.On("t", h))} }
	batch := func(context.Context, []inboxtest.Bytes) error { return nil }
	txBatch := func(context.Context, *gorm.DB, []inboxtest.Bytes) error { return nil }
	tx := func(context.Context, *gorm.DB, inboxtest.Bytes) error { return nil }
	at := `inbox "orders": channel "events", type "t", handler "a": `
	noTopics, noGroup := unreachableKafka, unreachableKafka
	noTopics.Topics, noGroup.GroupID = nil, ""
	for name, tc := range map[string]struct {
		opts []inbox.Option
		want []string
	}{
		"without Kafka": {[]inbox.Option{inbox.Channel("events", inbox.Direct(), inbox.On("t", nothing("a")))}, []string{
			`inbox "orders": channel "events" is in Direct mode and has no transport: declare inbox.Kafka, or leave inbox.Direct out`}},
		"without handlers": {[]inbox.Option{directChannel()},
			[]string{`inbox "orders": channel "events" has no handlers: declare them with inbox.On`}},
		"without topics": {[]inbox.Option{inbox.Channel("events", inbox.Direct(), inbox.Kafka(noTopics),
			inbox.On("t", nothing("a")))}, []string{
			`inbox "orders": channel "events": option Topics is empty: must have at least one topic`}},
		"without a group": {[]inbox.Option{inbox.Channel("events", inbox.Direct(), inbox.Kafka(noGroup),
			inbox.On("t", nothing("a")))}, []string{`inbox "orders": channel "events"`, `GroupID = ""`}},
		"Kafka twice": {[]inbox.Option{directChannel(inbox.Kafka(unreachableKafka), inbox.On("t", nothing("a")))},
			[]string{`inbox "orders": channel "events" has inbox.Kafka twice`}},
		"twice": {[]inbox.Option{directChannel(inbox.On("t", nothing("a"))), inbox.Channel("events", inbox.On("t", nothing("b")))},
			[]string{
				`inbox "orders": channel "events" is declared twice`}},
		"key of another channel": {[]inbox.Option{directChannel(inbox.On("t", nothing("a"))), inboxtest.Handlers(nothing("a"))},
			[]string{
				`handler key "a" is registered twice: as key of inbox "orders", channel "events", type "t", and as key of inbox "orders", channel "c", type "t"`}},
		"handler without key": {with(nothing("")), []string{`channel "events", type "t", handler "": handler key is empty`}},
		"Batch": {with(inbox.Batch("a", 10, batch)),
			[]string{at + "a batch handler is not supported in Direct mode"}},
		"Batch of one": {with(inbox.Batch("a", 1, batch)),
			[]string{at + "a batch handler is not supported in Direct mode"}},
		"TxBatch": {with(inbox.TxBatch("a", 10, txBatch)),
			[]string{at + "a batch handler is not supported in Direct mode"}},
		"Ordered": {with(nothing("a", handler.Ordered())), []string{at + "Ordered is not supported in Direct mode"}},
		"OrderedBy": {with(nothing("a", handler.OrderedBy(func(handler.RawMessage) []byte { return nil }))),
			[]string{at + "Ordered is not supported in Direct mode"}},
		"TxGroup": {with(inbox.Tx("a", tx, handler.TxGroup(2))),
			[]string{at + "TxGroup is not supported in Direct mode"}},
		"CircuitBreaker": {with(nothing("a", handler.CircuitBreaker(handler.Breaker{Failures: 1, OpenFor: 1}))),
			[]string{at + "CircuitBreaker is not supported in Direct mode"}},
		"NotBefore": {with(nothing("a", handler.NotBefore(func(handler.RawMessage) time.Time { return time.Time{} }))),
			[]string{at + "NotBefore is not supported in Direct mode"}},
		"a decoder's time": {[]inbox.Option{inbox.Channel("events", inbox.Direct(), inbox.Kafka(timed), inbox.On("t", nothing("a")))}, []string{
			`inbox "orders": channel "events" is in Direct mode, where the partition would wait for a message's time: leave NotBefore and NotBeforeHeader of the Decoder out`}},
		"Concurrency": {with(nothing("a", handler.Concurrency(1))),
			[]string{at + "Concurrency is not supported in Direct mode"}},
		"Retention": {with(nothing("a", handler.Retention(1))),
			[]string{at + "Retention is not supported in Direct mode"}},
		"several at once": {with(nothing("a", handler.Ordered(), handler.Concurrency(1))),
			[]string{at + "Ordered is not", "Concurrency is not"}},
		"one, with the others": {[]inbox.Option{directChannel(inbox.On("t", nothing("a", handler.Ordered()))),
			inbox.Channel("empty")}, []string{"Ordered is not supported", `channel "empty" has no handlers`}},
		"required inbox": {[]inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.ConsumeChannelInboxRequirement = inbox.RequirementFail
		}),
			directChannel(inbox.On("t", nothing("a")))}, []string{
			`inbox "orders": channel "events" consumes in Direct mode, and option ConsumeChannelInboxRequirement is fail: use the inbox, or declare inbox.AllowConsumeWithoutInbox`}},
		"the opt-out of another channel": {[]inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.ConsumeChannelInboxRequirement = inbox.RequirementFail
		}),
			directChannel(inbox.On("t", nothing("a"))),
			inbox.Channel("other", inbox.Direct(), inbox.Kafka(otherGroup), inbox.AllowConsumeWithoutInbox(),
				inbox.On("t", nothing("b")))}, []string{`channel "events" consumes in Direct mode`}},
		"what the opt-out does not cover": {[]inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.ConsumeChannelInboxRequirement = inbox.RequirementFail
		}),
			directChannel(inbox.AllowConsumeWithoutInbox(), inbox.On("t", nothing("a", handler.Ordered())))}, []string{
			at + "Ordered is not supported in Direct mode"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := inbox.New("orders", fxtest.OpenDB(t), tc.opts...)
			byModule := startError(namedDB("orders", fxtest.OpenDB(t)),
				inbox.Module("orders", append(tc.opts, inbox.Configure(func(o *inbox.Options) { o.Migrate = true }))...))
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
				require.ErrorContains(t, byModule, want)
			}
		})
	}
}

// A handler of the Fx graph is checked when the graph has built it.
func TestDirectChannelRefusesBatchHandlerFromGraph(t *testing.T) {
	err := startError(namedDB("orders", fxtest.OpenDB(t)), fx.Supply(&batchOfGraph{}),
		inbox.Module("orders", inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
			directChannel(inbox.On("t", inbox.FromBatch[*batchOfGraph]("a", 10)))))
	require.ErrorContains(t, err,
		`inbox "orders": channel "events", type "t", handler "a": a batch handler is not supported in Direct mode`)
}

func TestDirectChannelAcceptsSupportedOptions(t *testing.T) {
	h := nothing("a", handler.LegacyKeys("b"), handler.Timeout(time.Minute), handler.MaxRetries(3),
		handler.Backoff(func(int) time.Duration { return 0 }),
		handler.Use(func(ctx context.Context, _ handler.Call, next func(context.Context) error) error { return next(ctx) }))
	tx := inbox.Tx("c", func(context.Context, *gorm.DB, inboxtest.Bytes) error { return nil }, handler.TxGroup(1))
	for _, r := range []inbox.InboxRequirement{inbox.RequirementNone, inbox.RequirementWarn} {
		_, err := inbox.New("orders", fxtest.OpenDB(t), inbox.Configure(func(o *inbox.Options) {
			o.ConsumeChannelInboxRequirement = r
		}),
			directChannel(inbox.On("t", h, tx)), inbox.Channel("stored", inbox.On("t", nothing("d", handler.Ordered()))))
		require.NoError(t, err)
	}
	_, err := inbox.New("orders", fxtest.OpenDB(t), inbox.Configure(func(o *inbox.Options) {
		o.ConsumeChannelInboxRequirement = inbox.RequirementFail
	}),
		directChannel(inbox.On("t", h), inbox.AllowConsumeWithoutInbox()),
		inbox.Channel("stored", inbox.Kafka(otherGroup), inbox.On("t", nothing("d"))))
	require.NoError(t, err)
}

func TestOptionsOfChannelsAreCheckedAndLoaded(t *testing.T) {
	figures := func(o inbox.Options) []any { return []any{o.ConsumeChannelInboxRequirement, o.PartitionConcurrency} }
	require.Equal(t, []any{inbox.RequirementNone, 10}, figures(inbox.DefaultOptions()))
	for want, set := range map[string]func(o *inbox.Options){
		`option ConsumeChannelInboxRequirement = "maybe": must be none, warn or fail`: func(o *inbox.Options) {
			o.ConsumeChannelInboxRequirement = "maybe"
		},
		"option PartitionConcurrency = -1: must be 1 or more": func(o *inbox.Options) { o.PartitionConcurrency = -1 },
	} {
		_, err := inbox.New("orders", fxtest.OpenDB(t), inbox.Configure(set), directChannel(inbox.On("t", nothing("a"))))
		require.ErrorContains(t, err, `inbox "orders": `+want)
	}
	loaded := inbox.DefaultOptions()
	require.NoError(t,
		yaml.Unmarshal([]byte("consume_channel_inbox_requirement: fail\npartition_concurrency: 4\n"), &loaded))
	require.Equal(t, []any{inbox.RequirementFail, 4}, figures(loaded))
	t.Setenv("ORDERS_CONSUME_CHANNEL_INBOX_REQUIREMENT", "warn")
	require.NoError(t, env.ParseWithOptions(&loaded, env.Options{Prefix: "ORDERS_"}))
	require.Equal(t, []any{inbox.RequirementWarn, 4}, figures(loaded))
}
