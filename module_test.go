package inbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/fx"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// namedDB supplies a database to the graph under a name.
func namedDB(name string, db *gorm.DB) fx.Option {
	return fx.Supply(fx.Annotate(db, fx.ResultTags(`name:"`+name+`"`)))
}

// startError returns the error that an application fails to start with.
func startError(opts ...fx.Option) error {
	app := fx.New(append(opts, fx.NopLogger)...)
	if err := app.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), inboxtest.Patience)
	defer cancel()
	err := app.Start(ctx)
	if err == nil {
		err = app.Stop(ctx)
	}
	return err
}

func TestStartReportsModuleErrors(t *testing.T) {
	db := fxtest.OpenDB(t)
	fine := inboxtest.Handlers(nothing("a"))
	for name, tc := range map[string]struct {
		opts []fx.Option
		want string
	}{
		"database that cannot be opened": {[]fx.Option{fx.Provide(fx.Annotate(func() (*gorm.DB, error) {
			return nil, context.DeadlineExceeded
		}, fx.ResultTags(`name:"orders"`))),
			inbox.Module("orders", fine)}, context.DeadlineExceeded.Error()},
		"bad option": {[]fx.Option{namedDB("orders", db), inbox.Module("orders", inbox.Configure(func(o *inbox.Options) {
			o.Processor.BatchSize = 0
		}), fine)},
			`inbox "orders": option BatchSize = 0: must be 1 or more`},
		"duplicate module": {[]fx.Option{namedDB("orders", db), inbox.Module("orders", fine),
			inbox.Module("orders", inboxtest.Handlers(nothing("b")))},
			`orders`},
		"duplicate key across modules": {[]fx.Option{namedDB("orders", db), namedDB("billing", fxtest.OpenDB(t)),
			inbox.Module("orders", inbox.Configure(func(o *inbox.Options) { o.Migrate = true }), fine),
			inbox.Module("billing", inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
				inboxtest.Handlers(nothing("b", handler.LegacyKeys("a"))))},
			`cannot provide inbox.handlerKey[name="a"] from [0].Field0: already provided by`},
		"one consumer group in two modules": {[]fx.Option{namedDB("orders", db), namedDB("billing", fxtest.OpenDB(t)),
			inbox.Module("orders", inbox.Configure(func(o *inbox.Options) { o.Migrate = true }), kafkaChannel("events", "")),
			inbox.Module("billing", inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
				inbox.Channel("bills", inbox.Kafka(unreachableKafka),
					inbox.On("t", nothing("b"))))},
			`cannot provide inbox.consumerGroup[name="g@127.0.0.1:1"] from [0].Field0: already provided by`},
		"missing tables": {[]fx.Option{namedDB("orders", db), inbox.Module("orders", fine)},
			"inbox \"orders\": inbox tables are missing (table prefix \"inbox_\"): set option Migrate, call Inbox.Migrate or models.Migrate, run inboxctl migrate up --inbox NAME, or run the SQL of models.SQL"},
	} {
		t.Run(name, func(t *testing.T) { require.ErrorContains(t, startError(tc.opts...), tc.want) })
	}
}

func TestTwoModulesCoexist(t *testing.T) {
	orders, billing := fxtest.OpenDB(t), fxtest.OpenDB(t)
	ran := make(chan string, 10)
	note := func(inboxName string) inbox.Option {
		return inboxtest.Handlers(inboxtest.Do(inboxName+"-h", func(_ context.Context, m inboxtest.Bytes) error {
			ran <- inboxName + " " + m.ID
			return nil
		}))
	}
	var one, two *fxtest.Kit
	fxtest.App(t, namedDB("orders", orders), namedDB("billing", billing),
		inbox.Module("orders", inboxtest.Brisk(), note("orders")),
		inbox.Module("billing", inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.TablePrefix = "b_"
		}), note("billing")),
		fxtest.Use(t, "orders", &one), fxtest.Use(t, "billing", &two))
	require.Equal(t, "orders", one.Inbox.Name())
	one.Accept(inboxtest.Message("1"))
	require.Equal(t, "orders 1", inboxtest.Receive(t, ran, "the message of orders"))
	two.Accept(inboxtest.Message("1"), inboxtest.Message("2"))
	require.ElementsMatch(t, []string{"billing 1", "billing 2"},
		[]string{inboxtest.Receive(t, ran, "a message"), inboxtest.Receive(t, ran, "a message")})
	require.Equal(t, 1, inboxtest.CountMessages(t, one.Inbox))
	require.Equal(t, 2, inboxtest.CountMessages(t, two.Inbox))
	require.EqualValues(t, 1, one.Inbox.Counters().Accepted)
	for db, table := range map[*gorm.DB]string{orders: "b_messages", billing: "inbox_messages"} {
		require.False(t, db.Migrator().HasTable(table))
	}
}

func TestTwoPrefixesShareADatabaseWithoutSeeingEachOther(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := make(chan string, 10)
		build := func(name string) *inbox.Inbox {
			ib, err := inbox.New(name, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
				o.TablePrefix = name + "_"
			}), inboxtest.Handlers(
				inboxtest.Do("h-"+name, func(_ context.Context, m inboxtest.Bytes) error { ran <- name; return nil })))
			require.NoError(t, err)
			inboxtest.Start(t, ib)
			return ib
		}
		one, two := build("one"), build("two")
		require.NoError(t, inbox.Validate(one, two))
		inboxtest.Accept(t, one, "1")
		require.Equal(t, "one", inboxtest.Receive(t, ran, "the message"))
		require.Zero(t, inboxtest.CountMessages(t, two))
		require.Equal(t, handler.OutcomeAccepted, inboxtest.Accept(t, two, "1")[0].Outcome,
			"the same ID is another message there")
		require.Equal(t, "two", inboxtest.Receive(t, ran, "the message"))
		require.NoError(t, one.Pause(context.Background(), "h-one"))
		var paused int64
		require.NoError(t, d.DB.Table("two_handlers").Count(&paused).Error)
		require.Zero(t, paused)
	})
}

func TestHandlersComeFromTheGraph(t *testing.T) {
	h := &graphHandler{}
	var kit *fxtest.Kit
	fxtest.App(t, namedDB("orders", fxtest.OpenDB(t)), fx.Provide(func() *graphHandler { return h }), fxtest.Manual(),
		fxtest.Use(t, "orders", &kit),
		inbox.Module("orders", inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
			inboxtest.Handlers(inbox.From[*graphHandler]("a", handler.LegacyKeys("b")))))
	kit.Accept(inboxtest.Message("1"))
	kit.Process()
	require.Equal(t, []string{"1"}, h.handled)
}

type (
	graphTx      struct{ handled []string }
	graphBatch   struct{ handled []string }
	graphTxBatch struct{ handled []string }
)

func (h *graphTx) Handle(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
	h.handled = append(h.handled, m.ID)
	return tx.Exec("SELECT 1").Error
}

func (h *graphBatch) HandleBatch(_ context.Context, batch []inboxtest.Bytes) error {
	for _, m := range batch {
		h.handled = append(h.handled, m.ID)
	}
	return nil
}

func (h *graphTxBatch) HandleBatch(_ context.Context, tx *gorm.DB, batch []inboxtest.Bytes) error {
	for _, m := range batch {
		h.handled = append(h.handled, m.ID)
	}
	return tx.Exec("SELECT 1").Error
}

func TestHandlersOfEachKindComeFromTheGraph(t *testing.T) {
	tx, batch, txBatch := &graphTx{}, &graphBatch{}, &graphTxBatch{}
	var kit *fxtest.Kit
	fxtest.App(t, namedDB("orders", fxtest.OpenDB(t)), fx.Supply(tx, batch, txBatch), fxtest.Manual(),
		fxtest.Use(t, "orders", &kit),
		inbox.Module("orders", inbox.Configure(func(o *inbox.Options) { o.Migrate = true }), inboxtest.Handlers(
			inbox.FromTx[*graphTx]("tx", handler.TxGroup(3)),
			inbox.FromBatch[*graphBatch]("batch", 10),
			inbox.FromTxBatch[*graphTxBatch]("tx batch", 10, handler.Ordered()))))
	kit.Accept(inboxtest.Message("1"), inboxtest.Message("2"))
	kit.Process()
	for _, handled := range [][]string{tx.handled, batch.handled, txBatch.handled} {
		require.ElementsMatch(t, []string{"1", "2"}, handled)
	}
}

func TestModuleMayBeBuiltIntoSeveralApplications(t *testing.T) {
	module := inbox.Module("orders", inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
		inboxtest.Handlers(inbox.From[*graphHandler]("a")))
	for range 2 {
		h := &graphHandler{}
		var kit *fxtest.Kit
		fxtest.App(t, namedDB("orders", fxtest.OpenDB(t)), fx.Supply(h), module, fxtest.Manual(), fxtest.Use(t, "orders", &kit))
		kit.Accept(inboxtest.Message("1"))
		kit.Process()
		require.Equal(t, []string{"1"}, h.handled)
	}
}

func TestModuleLogsWithTheGraphsLogger(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	db := fxtest.OpenDB(t)
	pool, err := db.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(2)
	fxtest.App(t, fx.Supply(zap.New(core), db), inbox.Module("orders", inbox.Configure(func(o *inbox.Options) {
		o.UnnamedDB = true
		o.Migrate = true
	}),
		inboxtest.Handlers(nothing("a"))), fxtest.Manual())
	found := logs.FilterMessageSnippet("pool is smaller than Concurrency").All()
	require.Len(t, found, 1)
	require.Equal(t, map[string]any{"inbox": "orders", "max_open_connections": int64(2), "wanted": int64(14)},
		found[0].ContextMap())
}

func TestFxDeadlineIsNeverExceeded(t *testing.T) {
	testenv.Long(t)
	running, release := make(chan string, 1), make(chan struct{})
	defer close(release)
	closed := false
	db := fxtest.OpenDB(t)
	var kit *fxtest.Kit
	app := fx.New(fx.NopLogger, fx.StopTimeout(8*time.Second), namedDB("orders", db),
		// this hook starts before the inbox, so it stops after it
		fx.Invoke(func(lc fx.Lifecycle) { lc.Append(fx.StopHook(func() { closed = true })) }),
		inbox.Module("orders", inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.StopBudget = time.Minute
		}), inboxtest.Handlers(
			inboxtest.Do("deaf", func(_ context.Context, m inboxtest.Bytes) error { running <- m.ID; <-release; return nil }))),
		fxtest.Use(t, "orders", &kit))
	ctx := context.Background()
	require.NoError(t, app.Start(ctx))
	kit.Accept(inboxtest.Message("1"))
	inboxtest.Receive(t, running, "the handler")
	stop, cancel := context.WithTimeout(ctx, app.StopTimeout())
	defer cancel()
	err := app.Stop(stop)
	require.ErrorContains(t, err, "1 handlers still run")
	require.NoError(t, stop.Err(), "there was time left")
	require.True(t, closed, "the hooks after the inbox ran")
}
