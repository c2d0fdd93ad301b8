package inbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// inlineChannel declares the channel "events" in Inline mode, with handlers for "t".
func inlineChannel(options []inbox.InlineOption, handlers ...*inbox.HandlerSpec) inbox.Option {
	return inbox.Channel("events", inbox.Inline(options...), inbox.Kafka(unreachableKafka), inbox.On("t", handlers...))
}

func byContent(m inboxtest.Bytes) (string, error) { return string(m.Payload), nil }

// Contract 10.4: New and Module report the same mistakes.
func TestEveryInlineChannelErrorIsReported(t *testing.T) {
	with := func(h *inbox.HandlerSpec) []inbox.Option { return []inbox.Option{inlineChannel(nil, h)} }
	declaring := func(options ...inbox.InlineOption) []inbox.Option {
		return []inbox.Option{inlineChannel(options, nothing("a"))}
	}
	must := inbox.Configure(func(o *inbox.Options) { o.ConsumeChannelInboxRequirement = inbox.RequirementFail })
	batch := func(context.Context, []inboxtest.Bytes) error { return nil }
	tx := func(context.Context, *gorm.DB, inboxtest.Bytes) error { return nil }
	var nilStore *memstore.Store
	memory, err := memstore.New()
	require.NoError(t, err)
	at := `inbox "orders": channel "events", type "t", handler "a": `
	modes := `channel "events" has several delivery modes [`
	for name, tc := range map[string]struct {
		opts []inbox.Option
		want []string
	}{
		"without Kafka": {[]inbox.Option{inbox.Channel("events", inbox.Inline(), inbox.On("t", nothing("a")))}, []string{
			`inbox "orders": channel "events" is in Inline mode and has no transport: declare inbox.Kafka, or leave inbox.Inline out`}},
		"Direct too": {[]inbox.Option{inbox.Channel("events", inbox.Inline(), inbox.Direct(), inbox.Kafka(unreachableKafka),
			inbox.On("t", nothing("a")))}, []string{modes + "Inline Direct]"}},
		"Direct before": {[]inbox.Option{inbox.Channel("events", inbox.Direct(), inbox.Inline(), inbox.Kafka(unreachableKafka),
			inbox.On("t", nothing("a")))}, []string{modes + "Direct Inline]"}},
		"twice": {[]inbox.Option{inbox.Channel("events", inbox.Inline(), inbox.Inline(), inbox.Kafka(unreachableKafka),
			inbox.On("t", nothing("a")))}, []string{modes + "Inline Inline]"}},
		"Batch":   {with(inbox.Batch("a", 10, batch)), []string{at + "a batch handler is not supported in Inline mode"}},
		"Ordered": {with(nothing("a", handler.Ordered())), []string{at + "Ordered is not supported in Inline mode"}},
		"TxGroup": {with(inbox.Tx("a", tx, handler.TxGroup(2))),
			[]string{at + "TxGroup is not supported in Inline mode"}},
		"CircuitBreaker": {with(nothing("a", handler.CircuitBreaker(handler.Breaker{Failures: 1, OpenFor: 1}))),
			[]string{at + "CircuitBreaker is not supported in Inline mode"}},
		"NotBefore": {with(nothing("a", handler.NotBefore(func(handler.RawMessage) time.Time { return time.Time{} }))),
			[]string{at + "NotBefore is not supported in Inline mode"}},
		"a decoder's time": {[]inbox.Option{inbox.Channel("events", inbox.Inline(), inbox.Kafka(timed), inbox.On("t", nothing("a")))}, []string{
			`inbox "orders": channel "events" is in Inline mode, where the partition would wait for a message's time: leave NotBefore and NotBeforeHeader of the Decoder out`}},
		"Concurrency": {with(nothing("a", handler.Concurrency(1))),
			[]string{at + "Concurrency is not supported in Inline mode"}},
		"a rate by key": {with(nothing("a", handler.RateBy(1, 1, func(handler.RawMessage) string { return "" }))),
			[]string{at + "RateBy is not supported in Inline mode"}},
		"limits for all workers": {with(nothing("a", handler.FleetConcurrency(1), handler.Rate(1, 1))),
			[]string{at + "FleetConcurrency is not supported in Inline mode", at + "Rate is not supported in Inline mode"}},
		"unknown key": {declaring(inbox.InlineHandler("b", nil)),
			[]string{`channel "events": inbox.InlineHandler: the channel has no handler "b"`}},
		"key twice": {declaring(inbox.InlineHandler("a", nil), inbox.InlineHandler("a", memory)),
			[]string{`channel "events": inbox.InlineHandler is declared twice for handler "a"`}},
		"bad option": {declaring(inbox.InlineDefaults(idempotent.Configure(func(o *idempotent.Options) { o.Retention = -1 }))),
			[]string{`inbox "orders": channel "events": `, "option Retention = -1ns: must be 0 (the store's) or more"}},
		"handler's option": {declaring(inbox.InlineHandler("a", nil, idempotent.Configure(func(o *idempotent.Options) {
			o.Duplicates = "often"
		}))),
			[]string{`channel "events": idempotent handler "a": option Duplicates = "often"`}},
		"selector of another type": {declaring(inbox.InlineDefaults(idempotent.KeyBy(func(string) (string, error) {
			return "",
				nil
		}))), []string{
			`channel "events": idempotent handler "a": option KeyBy is a func(string) (string, error) or nil: must be a func(handler.Delivery) (string, error)`}},
		"strategy that needs the record": {declaring(inbox.InlineDefaults(idempotent.IDFrom(envelope.Func(func(envelope.IDInput) (string, error) { return "", nil })))), []string{
			`idempotent handler "a"`, "needs a record"}},
		"nil store": {declaring(inbox.InlineStore(nilStore)),
			[]string{`channel "events": `, "the store is a nil *memstore.Store"}},
		"nil store of a handler": {declaring(inbox.InlineHandler("a", nilStore)),
			[]string{`channel "events": idempotent handler "a": the store is a nil *memstore.Store`}},
		"store required": {declaring(inbox.InlineStore(nil),
			inbox.InlineDefaults(idempotent.Configure(func(o *idempotent.Options) {
				o.RequireStore = true
			}))),
			[]string{`channel "events": `, idempotent.ErrNoStore.Error()}},
		"required inbox": {append(declaring(), must), []string{
			`inbox "orders": channel "events" consumes in Inline mode, and option ConsumeChannelInboxRequirement is fail: use the inbox, or declare inbox.AllowConsumeWithoutInbox`}},
		"no store where required": {[]inbox.Option{must, inbox.Channel("events",
			inbox.Inline(inbox.InlineStore(nil), inbox.InlineHandler("b", memory)), inbox.Kafka(unreachableKafka),
			inbox.AllowConsumeWithoutInbox(),
			inbox.On("t", nothing("a"), nothing("b")))},
			[]string{`channel "events" is in Inline mode without a store for handlers ["a"], and option ConsumeChannelInboxRequirement is fail`}},
		"idempotency key in Inbox mode": {[]inbox.Option{inbox.Channel("events",
			inbox.On("t", nothing("a", handler.IdempotencyKey(byContent))))},
			[]string{at + "IdempotencyKey is not supported in Inbox mode"}},
		"idempotency key in Direct mode": {[]inbox.Option{directChannel(inbox.On("t",
			nothing("a", handler.IdempotencyKey(byContent))))}, []string{at + "IdempotencyKey is not supported in Direct mode"}},
		"idempotency key of another type": {with(nothing("a",
			handler.IdempotencyKey(func(handler.Message[string]) (string, error) { return "", nil }))), []string{
			at + "its IdempotencyKey is a func(handler.Message[string]) (string, error)"}},
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

func TestInlineChannelAcceptsSupportedOptions(t *testing.T) {
	memory, err := memstore.New()
	require.NoError(t, err)
	h := nothing("a", handler.LegacyKeys("b"), handler.Timeout(time.Minute), handler.MaxRetries(3),
		handler.Retention(time.Hour), handler.IdempotencyKey(byContent))
	tx := inbox.Tx("c", func(context.Context, *gorm.DB, inboxtest.Bytes) error { return nil }, handler.TxGroup(1))
	options := []inbox.InlineOption{nil, inbox.InlineDefaults(idempotent.Configure(func(o *idempotent.Options) {
		o.Retention = time.Minute
	}),
		idempotent.CompositeID("")), inbox.InlineHandler("c", memory, idempotent.Configure(func(o *idempotent.Options) {
		o.AllowMissingID = true
	}))}
	for _, r := range []inbox.InboxRequirement{inbox.RequirementNone, inbox.RequirementWarn} {
		_, err := inbox.New("orders", fxtest.OpenDB(t), inbox.Configure(func(o *inbox.Options) {
			o.ConsumeChannelInboxRequirement = r
		}), inlineChannel(options, h, tx),
			inbox.Channel("direct", inbox.Direct(), inbox.Kafka(otherGroup), inbox.On("t", nothing("d"))))
		require.NoError(t, err)
	}
	for _, store := range []inbox.InlineOption{nil, inbox.InlineStore(memory)} {
		_, err := inbox.New("orders", fxtest.OpenDB(t), inbox.Configure(func(o *inbox.Options) {
			o.ConsumeChannelInboxRequirement = inbox.RequirementFail
		}),
			inbox.Channel("events", inbox.Inline(store), inbox.Kafka(unreachableKafka), inbox.AllowConsumeWithoutInbox(),
				inbox.On("t", h)))
		require.NoError(t, err)
	}
}
