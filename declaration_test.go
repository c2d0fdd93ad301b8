package inbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func nothing(key string, opts ...handler.Option) *inbox.HandlerSpec {
	return inboxtest.Do(key, inboxtest.Nothing, opts...)
}

type graphHandler struct{ handled []string }

func (h *graphHandler) Handle(_ context.Context, m inboxtest.Bytes) error {
	h.handled = append(h.handled, m.ID)
	return nil
}

func TestEveryDeclarationErrorIsReported(t *testing.T) {
	long := strings.Repeat("x", 201)
	for name, tc := range map[string]struct {
		inbox string
		opts  []inbox.Option
		want  []string
	}{
		"no channels": {"orders", nil, []string{`inbox "orders": it has no channels`}},
		"bad inbox name": {"a b", []inbox.Option{inboxtest.Handlers(nothing("h"))},
			[]string{`inbox "a b": the name is not 1 to 100 letters`}},
		"inbox name too long": {long, []inbox.Option{inboxtest.Handlers(nothing("h"))},
			[]string{"the name is not 1 to 100 letters"}},
		"channel without a name": {"orders", []inbox.Option{inbox.Channel("", inbox.On("t", nothing("h")))},
			[]string{`channel "": the name is not 1 to 200 characters`}},
		"channel name too long": {"orders", []inbox.Option{inbox.Channel(long, inbox.On("t", nothing("h")))},
			[]string{"the name is not 1 to 200 characters"}},
		"channel without handlers": {"orders", []inbox.Option{inbox.Channel("events")}, []string{
			`inbox "orders": channel "events" has no handlers: declare them with inbox.On`}},
		"duplicate channel": {"orders", []inbox.Option{inbox.Channel("events", inbox.On("t", nothing("a"))),
			inbox.Channel("events", inbox.On("t", nothing("b")))}, []string{
			`channel "events" is declared twice`}},
		"empty message type": {"orders", []inbox.Option{inbox.Channel("events", inbox.On("", nothing("a")))},
			[]string{`channel "events", type "", handler "a": the message type is empty`}},
		"nil handler": {"orders", []inbox.Option{inboxtest.Handlers(nil)},
			[]string{`channel "c", type "t": a handler is nil`}},
		"nil function": {"orders", []inbox.Option{inboxtest.Handlers(inboxtest.Do("a", nil))},
			[]string{`handler "a": its function is nil`}},
		"handler without key": {"orders", []inbox.Option{inboxtest.Handlers(nothing(""))},
			[]string{`channel "c", type "t", handler "": handler key is empty`}},
		"handler key too long": {"orders", []inbox.Option{inboxtest.Handlers(nothing(long))},
			[]string{"handler key of 201 characters: must be 1 to 200"}},
		"handler key with NUL": {"orders", []inbox.Option{inboxtest.Handlers(nothing("a\x00"))},
			[]string{`handler key "a\x00" is not valid UTF-8 without NUL`}},
		"empty legacy key": {"orders", []inbox.Option{inboxtest.Handlers(nothing("a", handler.LegacyKeys("")))},
			[]string{`handler "a": handler key is empty`}},
		"duplicate key": {"orders", []inbox.Option{inbox.Channel("one", inbox.On("t", nothing("a"))),
			inbox.Channel("two", inbox.On("u", nothing("a")))}, []string{
			`handler key "a" is registered twice: as key of inbox "orders", channel "one", type "t", and as key of inbox "orders", channel "two", type "u"`}},
		"duplicate key, legacy": {"orders", []inbox.Option{inboxtest.Handlers(nothing("a"),
			nothing("b", handler.LegacyKeys("a")))}, []string{
			`handler key "a" is registered twice: as key of inbox "orders", channel "c", type "t", and as legacy key of inbox "orders", channel "c", type "t"`}},
		"From without Fx": {"orders", []inbox.Option{inboxtest.Handlers(inbox.From[*graphHandler]("a"))}, []string{
			`handler "a": it comes from the Fx graph (*inbox_test.graphHandler); without Fx use inbox.Func or inbox.Tx`}},
		"codec of another type": {"orders", []inbox.Option{inboxtest.Handlers(nothing("a",
			handler.WithCodec(handler.JSON[int]{})))}, []string{`its codec handler.JSON[int] does not decode into []uint8`}},
		"negative timeout": {"orders", []inbox.Option{inboxtest.Handlers(nothing("a", handler.Timeout(-1)))},
			[]string{`handler "a": option Timeout = -1ns: must be 0 or more`}},
		"Kafka twice": {"orders", []inbox.Option{inbox.Channel("events", inbox.On("t", nothing("a")),
			inbox.Kafka(kafkaconsumer.Config{}), inbox.Kafka(kafkaconsumer.Config{}))}, []string{
			`channel "events" has inbox.Kafka twice`}},
		"Kafka without topics": {"orders", []inbox.Option{inbox.Channel("events", inbox.On("t", nothing("a")),
			inbox.Kafka(kafkaconsumer.Config{Brokers: []string{"127.0.0.1:1"}, GroupID: "g"}))}, []string{
			`inbox "orders"`, `"events"`, "Topics"}},
		"two channels in one group": {"orders", []inbox.Option{kafkaChannel("events", ""),
			inbox.Channel("others", inbox.On("t", nothing("b")), inbox.Kafka(unreachableKafka))}, []string{
			`channel "events" of inbox "orders" and channel "others" of inbox "orders" have the same GroupID "g": each must have its own`}},
		"BadRecordDeadLetter without a topic": {"orders", []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Acceptor.BadRecords = acceptor.BadRecordDeadLetter
		}),
			kafkaChannel("events", ""), inbox.Channel("fed", inbox.On("t", nothing("b")))},
			[]string{`inbox "orders": channel "events": option DeadLetterTopic is empty: must be a topic with BadRecords dead_letter_topic`}},
		"a dead-letter topic that nothing goes to": {"orders", []inbox.Option{kafkaChannel("events", "letters")},
			[]string{`channel "events": option DeadLetterTopic = "letters": must be empty while BadRecords is store`}},
		"a dead-letter topic that is consumed": {"orders",
			[]inbox.Option{inbox.Configure(func(o *inbox.Options) {
				o.Acceptor.BadRecords = acceptor.BadRecordDeadLetter
			}), kafkaChannel("events", "t1")},
			[]string{`"events"`, `option DeadLetterTopic = "t1": must be a topic that is not one of Topics`}},
		"ShutdownOnHalt without Fx": {"orders", []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.ShutdownOnHalt = true
		}), inboxtest.Handlers(nothing("a"))},
			[]string{`inbox "orders": option ShutdownOnHalt requires Fx`}},
		"all at once": {"orders", []inbox.Option{inbox.Channel("empty"), inbox.Channel("events",
			inbox.On("t", nothing("a"), nil))}, []string{`channel "empty" has no handlers`, `a handler is nil`}},
	} {
		t.Run(name, func(t *testing.T) {
			ib, err := inbox.New(tc.inbox, fxtest.OpenDB(t), tc.opts...)
			require.Nil(t, ib)
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

// kafkaChannel declares a Kafka channel with a dead-letter topic, "" for none.
func kafkaChannel(channel, letters string) inbox.Option {
	return inbox.Channel(channel, inbox.On("t", nothing("a")), inbox.Kafka(kafkaconsumer.Config{
		Brokers: []string{"127.0.0.1:1"}, GroupID: "g", Topics: []string{"t1"}, DeadLetterTopic: letters,
	}))
}

func TestOptionErrorsStateTheAllowedRange(t *testing.T) {
	const positive = ": must be more than 0"
	for want, set := range map[string]func(o *inbox.Options){
		"option MaxRetries = -1: must be 0 or more": func(o *inbox.Options) { o.Processor.MaxRetries = -1 },
		"option MaxRetryDelay = 0s" +
			positive: func(o *inbox.Options) { o.Processor.MaxRetryDelay = 0 },
		"option PollingInterval = -1ns" +
			positive: func(o *inbox.Options) { o.Processor.PollingInterval = -1 },
		"option BatchSize = 0: must be 1 or more": func(o *inbox.Options) {
			o.Processor.BatchSize = 0
		},
		"option Concurrency = 0: must be 1 or more": func(o *inbox.Options) {
			o.Processor.Concurrency = 0
		},
		"option Prefetch = -1: must be 0 or more": func(o *inbox.Options) {
			o.Processor.Prefetch = -1
		},
		"option HandlerTimeout = -1ns: must be 0 (no limit) or more": func(o *inbox.Options) {
			o.Processor.HandlerTimeout = -1
		},
		"option StuckHandlerGrace = 0s" +
			positive: func(o *inbox.Options) { o.Processor.StuckHandlerGrace = 0 },
		"option StuckMessageThreshold = 0s" +
			positive: func(o *inbox.Options) { o.Processor.StuckMessageThreshold = 0 },
		"option StuckMessageThreshold = 1m0s: must be more than HandlerTimeout (1m0s)": func(o *inbox.Options) {
			o.Processor.StuckMessageThreshold = time.Minute
			o.Processor.HandlerTimeout = time.Minute
		},
		"option HeartbeatInterval = 0s" +
			positive: func(o *inbox.Options) { o.Processor.HeartbeatInterval = 0 },
		"option SweepInterval = 0s" +
			positive: func(o *inbox.Options) { o.Processor.SweepInterval = 0 },
		"option WorkerTimeout = 14.999999999s: must be at least three HeartbeatIntervals (15s)": func(o *inbox.Options) {
			o.Processor.WorkerTimeout = 15*time.Second - 1
		},
		"option MaxAbandoned = 0: must be 1 or more": func(o *inbox.Options) {
			o.Processor.MaxAbandoned = 0
		},
		"option UnknownKeyGrace = -1ns: must be 0 or more": func(o *inbox.Options) {
			o.Processor.UnknownKeyGrace = -1
		},
		"option StatementTimeout = 0s" +
			positive: func(o *inbox.Options) { o.Processor.StatementTimeout = 0 },
		"option StopBudget = 0s" +
			positive: func(o *inbox.Options) { o.Processor.StopBudget = 0 },
		`option Mode = "shared": must be "competing", "exclusive", or "" for the database's default`: func(o *inbox.Options) {
			o.Processor.Mode = "shared"
		},
		"option Retention = -1ns: must be 0 (forever) or more": func(o *inbox.Options) {
			o.Cleanup.Retention = -1
		},
		"option CleanupInterval = 0s" +
			positive: func(o *inbox.Options) { o.Cleanup.CleanupInterval = 0 },
		"option AuditRetention = -1ns: must be 0 (forever) or more": func(o *inbox.Options) {
			o.Cleanup.AuditRetention = -1
		},
		"option RejectedRetention = -1ns: must be 0 (forever) or more": func(o *inbox.Options) {
			o.Cleanup.RejectedRetention = -1
		},
		"option ArchiveTimeout = 0s" +
			positive: func(o *inbox.Options) { o.Cleanup.ArchiveTimeout = 0 },
		"option CleanupBatchSize = 0: must be 1 or more": func(o *inbox.Options) {
			o.Cleanup.CleanupBatchSize = 0
		},
		`option Unrouted = "keep": must be ignore, reject or halt`: func(o *inbox.Options) {
			o.Acceptor.Unrouted = "keep"
		},
		`option OnGap = "skip": must be halt or continue`: func(o *inbox.Options) {
			o.Acceptor.OnGap = "skip"
		},
		`option BadRecords = "": must be store, dead_letter_topic or halt`: func(o *inbox.Options) {
			o.Acceptor.BadRecords = ""
		},
		`option HaltAtBadRecords = -1: must be 0 (never) or more`: func(o *inbox.Options) {
			o.Acceptor.HaltAtBadRecords = -1
		},
		`option Schema = "a b": must be letters`: func(o *inbox.Options) { o.Schema = "a b" },
		`option TablePrefix = "a-b": must be letters`: func(o *inbox.Options) {
			o.TablePrefix = "a-b"
		},
		"options are zero: start from inbox.DefaultOptions()": func(o *inbox.Options) {
			*o = inbox.Options{}
		},
		"option BatchSize = 0: must be 1 or more\ninbox \"orders\": option Concurrency = -5: must be 1 or more": func(o *inbox.Options) {
			o.Processor.BatchSize = 0
			o.Processor.Concurrency = -5
		},
		"option MaxRetries = -1: must be 0 or more\ninbox \"orders\": option CleanupInterval = 0s: must be more than 0": func(o *inbox.Options) {
			o.Processor.MaxRetries = -1
			o.Cleanup.CleanupInterval = 0
		},
		`option CleanupBatchSize = -1: must be 1 or more` + "\n" +
			`inbox "orders": option Unrouted = "x": must be ignore, re`: func(o *inbox.Options) {
			o.Cleanup.CleanupBatchSize = -1
			o.Acceptor.Unrouted = "x"
		},
	} {
		t.Run(want, func(t *testing.T) {
			_, err := inbox.New("orders", fxtest.OpenDB(t), inbox.Configure(set), inboxtest.Handlers(nothing("h")))
			require.ErrorContains(t, err, `inbox "orders": `)
			require.ErrorContains(t, err, want)
		})
	}
	limits := inbox.Configure(func(o *inbox.Options) {
		o.Processor.MaxRetries = 0
		o.Processor.Prefetch = 0
		o.Processor.HandlerTimeout = 0
		o.Processor.UnknownKeyGrace = 0
		o.Cleanup.Retention = 0
		o.Processor.BatchSize = 1
		o.Processor.Concurrency = 1
		o.Processor.MaxAbandoned = 1
		o.Cleanup.CleanupBatchSize = 1
		o.Processor.WorkerTimeout = 15 * time.Second
		o.Processor.MaxRetryDelay = 1
	})
	_, err := inbox.New("orders", fxtest.OpenDB(t), limits, nil, inboxtest.Handlers(nothing("h")))
	require.NoError(t, err, "what is just within its range")
}

// unsupportedDialect is a GORM dialect that the inbox does not support.
type unsupportedDialect struct{ gorm.Dialector }

func (unsupportedDialect) Name() string { return "oracle" }

func TestUnusableDatabaseIsAnError(t *testing.T) {
	_, err := inbox.New("orders", nil, inboxtest.Handlers(nothing("h")))
	require.EqualError(t, err, `inbox "orders": the *gorm.DB is nil`)

	db, err := gorm.Open(unsupportedDialect{sqlite.Dialector{DriverName: "sqlite", DSN: "file:" + t.TempDir() + "/x.db"}},
		&gorm.Config{Logger: logger.Discard})
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	_, err = inbox.New("orders", db, inboxtest.Handlers(nothing("h")))
	require.ErrorContains(t, err, `inbox "orders"`)
	require.ErrorContains(t, err, `dialect "oracle" is not supported`)

	sqliteDB := fxtest.OpenDB(t)
	_, err = inbox.New("orders", sqliteDB, inbox.Configure(func(o *inbox.Options) { o.Schema = "shop" }),
		inboxtest.Handlers(nothing("h")))
	require.ErrorContains(t, err, "SQLite has no schemas")

	require.NoError(t, sqliteDB.Transaction(func(tx *gorm.DB) error {
		_, err = inbox.New("orders", tx, inboxtest.Handlers(nothing("h")))
		require.ErrorContains(t, err, "inside a transaction")
		return nil
	}))
}

func TestValidateFindsConflictsBetweenInboxes(t *testing.T) {
	shared, own := fxtest.OpenDB(t), fxtest.OpenDB(t)
	build := func(name string, db *gorm.DB, opts ...inbox.Option) *inbox.Inbox {
		ib, err := inbox.New(name, db, opts...)
		require.NoError(t, err)
		return ib
	}
	orders := build("orders", shared, inboxtest.Handlers(nothing("a")))
	require.NoError(t, inbox.Validate(orders, build("billing", own, inboxtest.Handlers(nothing("b")))))
	require.NoError(t, inbox.Validate(orders, build("billing", shared, inbox.Configure(func(o *inbox.Options) {
		o.TablePrefix = "billing_"
	}),
		inboxtest.Handlers(nothing("b")))))
	require.EqualError(t, inbox.Validate(orders, build("billing", own,
		inboxtest.Handlers(nothing("b", handler.LegacyKeys("a"))))),
		`handler key "a" is registered twice: as legacy key of inbox "billing", channel "c", type "t", and as key of inbox "orders", channel "c", type "t"`)
	require.ErrorContains(t, inbox.Validate(build("orders", shared, kafkaChannel("events", "")),
		build("billing", own, inbox.Channel("bills", inbox.Kafka(unreachableKafka), inbox.On("t", nothing("b"))))),
		`channel "bills" of inbox "billing" and channel "events" of inbox "orders" have the same GroupID "g"`)
	require.EqualError(t, inbox.Validate(orders, build("orders", own, inboxtest.Handlers(nothing("b")))),
		`two inboxes are called "orders"`)
	require.EqualError(t, inbox.Validate(orders, build("billing", shared, inboxtest.Handlers(nothing("b")))),
		`inboxes "orders" and "billing" use the same database with the same table prefix "inbox_"`)
}
