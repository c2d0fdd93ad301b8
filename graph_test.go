package inbox_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/fx"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/ops"
)

// settings is an application's configuration.
type settings struct {
	Inbox   inbox.Options
	Brokers []string
}

// audit is a service of the application that middleware and hooks need.
type audit struct {
	mu              sync.Mutex
	calls, accepted []string
}

func (a *audit) middleware(ctx context.Context, call handler.Call, next func(context.Context) error) error {
	a.mu.Lock()
	a.calls = append(a.calls, call.HandlerKey)
	a.mu.Unlock()
	return next(ctx)
}

func (a *audit) onAccepted(_ context.Context, e handler.AcceptedEvent) {
	a.accepted = append(a.accepted, e.MessageID)
}

func migrate(o *inbox.Options) { o.Migrate = true }

func TestEachOptionCanComeFromTheGraph(t *testing.T) {
	cfg := &settings{Inbox: inbox.DefaultOptions(), Brokers: []string{"127.0.0.1:1"}}
	cfg.Inbox.Migrate, cfg.Inbox.TablePrefix, cfg.Inbox.Acceptor.BadRecords = true, "from_graph_", acceptor.BadRecordDeadLetter
	auditing := &audit{}
	laned := make(chan string, 10)
	lane := func(m handler.RawMessage) []byte {
		laned <- m.ID
		return []byte("lane")
	}
	store, err := memstore.New()
	require.NoError(t, err)
	type storeOf struct {
		fx.In
		Store idempotent.Store `name:"markers"`
	}
	db := fxtest.OpenDB(t)
	var kit *fxtest.Kit
	var o *ops.Ops
	fxtest.App(t, namedDB("orders", db), fx.Supply(cfg, auditing, fx.Annotate(store, fx.As(new(idempotent.Store)),
		fx.ResultTags(`name:"markers"`))), fx.Provide(func() func(handler.RawMessage) []byte { return lane }),
		fxtest.Manual(), fxtest.Use(t, "orders", &kit),
		inbox.Module("orders",
			inbox.Configure(func(o *inbox.Options) { o.Processor.BatchSize = 7 }),
			inbox.Inject(func(cfg *settings, a *audit) (inbox.Option, error) {
				return inbox.Configure(func(o *inbox.Options) {
					require.Equal(t, 7, o.Processor.BatchSize, "what was set before")
					*o = cfg.Inbox
					o.Middleware = append(o.Middleware, a.middleware)
					o.Hooks.OnAccepted = a.onAccepted
					o.Ops = func(o *ops.Options) { o.AllowReplay = true }
				}), nil
			}),
			inbox.Inject(func(lane func(handler.RawMessage) []byte) []inbox.Option {
				return []inbox.Option{nil, inbox.Subscribe("c", "u", nothing("ordered", handler.OrderedBy(lane)))}
			}),
			inboxtest.Handlers(nothing("a")),
			inbox.Channel("inline",
				inbox.InjectChannel(func(cfg *settings, from storeOf) []inbox.ChannelOption {
					return []inbox.ChannelOption{inbox.Inline(inbox.InlineStore(from.Store)), inbox.Kafka(kafkaconsumer.Config{
						Brokers: cfg.Brokers, GroupID: "g", Topics: []string{"t1"}, DeadLetterTopic: "letters"})}
				}),
				inbox.On("t", nothing("b", handler.IdempotencyKey(byContent)))),
		), fx.Populate(fx.Annotate(&o, fx.ParamTags(`name:"orders"`))))
	second := inboxtest.Message("2")
	second.Type = "u"
	kit.Accept(inboxtest.Message("1"), second)
	kit.Process()
	require.ElementsMatch(t, []string{"a", "ordered"}, auditing.calls)
	require.ElementsMatch(t, []string{"1", "2"}, auditing.accepted)
	require.True(t, db.Migrator().HasTable("from_graph_messages"))
	require.Equal(t, "2", inboxtest.Receive(t, laned, "the ordering key"))
	require.NoError(t, o.Can(ops.ActionReplay))
}

func TestStartReportsAllErrorsInInjectedValues(t *testing.T) {
	broken := errors.New("no such secret")
	err := startError(namedDB("orders", fxtest.OpenDB(t)), fx.Supply(&settings{}),
		inbox.Module("orders",
			inbox.Inject(func(*settings) inbox.Option {
				return inbox.Configure(func(o *inbox.Options) { o.Processor.BatchSize, o.UnnamedDB = 0, true })
			}),
			inbox.Inject(func() (inbox.Option, error) { return nil, broken }),
			inbox.Inject(func() inbox.Option { return inbox.Inject(func() inbox.Option { return nil }) }),
			inbox.Inject(func() inbox.Option { return inbox.Channel("empty") }),
			inbox.Inject(func() inbox.Option { return inbox.Subscribe("nowhere", "t", nothing("lost")) }),
			inbox.Channel("c", inbox.On("t", nothing("a")), inbox.InjectChannel(
				func() inbox.ChannelOption {
					return inbox.On("u", nothing("a"), inbox.From[*graphHandler]("graph"))
				})),
		))
	require.ErrorIs(t, err, broken)
	lines := strings.Split(err.Error(), "\n")
	for _, want := range []string{
		`option BatchSize = 0: must be 1 or more`,
		`option UnnamedDB is set within inbox.Inject: set it in code`,
		`inbox.Inject: no such secret`,
		`inbox.Inject within another one: take all values of the graph in the outer function`,
		`channel "empty" has no handlers: declare them with inbox.On`,
		`channel "nowhere": inbox.Subscribe adds a handler, but no inbox.Channel in code declares it`,
		`handler key "a" is registered twice: as key of inbox "orders", channel "c", type "t", and as key of inbox "orders", channel "c", type "u"`,
		`channel "c", type "u", handler "graph": inbox.From within inbox.Inject: take the *inbox_test.graphHandler as a parameter, and use inbox.Func or inbox.Tx`,
	} {
		require.Contains(t, lines, `inbox "orders": `+want)
	}
}

func TestInjectedValuesAreCheckedAcrossModules(t *testing.T) {
	group := func(channel, key string) inbox.Option {
		return inbox.Channel(channel, inbox.On("t", nothing(key)), inbox.InjectChannel(func(cfg *settings) inbox.ChannelOption {
			return inbox.Kafka(kafkaconsumer.Config{Brokers: cfg.Brokers, GroupID: "g", Topics: []string{"t1"}})
		}))
	}
	err := startError(namedDB("orders", fxtest.OpenDB(t)), namedDB("billing", fxtest.OpenDB(t)),
		fx.Supply(&settings{Brokers: []string{"127.0.0.1:1"}}),
		inbox.Module("orders", inbox.Configure(migrate), group("one", "a")),
		inbox.Module("billing", inbox.Configure(migrate), group("two", "b"),
			inbox.Inject(func() inbox.Option { return inbox.Subscribe("two", "u", nothing("a")) })))
	require.ErrorContains(t, err, `handler key "a" is registered twice: as key of inbox "billing", channel "two", type "u", and as key of inbox "orders", channel "one", type "t"`)
	require.ErrorContains(t, err, `channel "two" of inbox "billing" and channel "one" of inbox "orders" have the same GroupID "g"`)
}

func TestInjectedFunctionsAreCheckedBeforeTheGraphIsKnown(t *testing.T) {
	var none func() inbox.Option
	for want, declared := range map[string]inbox.Option{
		"inbox.Inject(<nil>): must be a function":                        inbox.Inject(nil),
		"inbox.Inject(int): must be a function":                          inbox.Inject(1),
		"inbox.Inject(func() inbox.Option): must be a function, not nil": inbox.Inject(none),
		"inbox.Inject(func()): must be a function, not nil and not variadic, that returns inbox.Option or []inbox.Option, and an error if it likes": inbox.Inject(func() {}),
		"inbox.Inject(func(...int) inbox.Option): must be":  inbox.Inject(func(...int) inbox.Option { return nil }),
		"inbox.Inject(func() (inbox.Option, int)): must be": inbox.Inject(func() (inbox.Option, int) { return nil, 0 }),
		"inbox.Inject(func() inbox.ChannelOption): must be": inbox.Inject(func() inbox.ChannelOption { return nil }),
		"inbox.InjectChannel(func() inbox.Option): must be": inbox.Channel("e", inbox.On("t", nothing("b")), inbox.InjectChannel(func() inbox.Option { return nil })),
	} {
		t.Run(want, func(t *testing.T) {
			err := fx.ValidateApp(namedDB("orders", nil), inbox.Module("orders", inboxtest.Handlers(nothing("a")), declared))
			require.ErrorContains(t, err, `inbox "orders": `+want)
		})
	}
	_, err := inbox.New("orders", fxtest.OpenDB(t), inboxtest.Handlers(nothing("a")),
		inbox.Inject(func() inbox.Option { return nil }))
	require.EqualError(t, err,
		`inbox "orders": inbox.Inject takes values of the Fx graph: without Fx declare what it returns directly`)
}

// What is known in code is checked although the graph may add to it.
func TestValidateAppFindsErrorsDespiteInjectedOptions(t *testing.T) {
	injects := inbox.Inject(func(*settings) inbox.Option { return nil })
	database := namedDB("orders", nil)
	for want, app := range map[string]fx.Option{
		"missing type: *inbox_test.settings": inbox.Module("orders", injects, inboxtest.Handlers(nothing("a"))),
		`failed to build inbox.injected[name="inbox orders, inbox.Inject 1: github.com/gorm-inbox/inbox_test.TestValidateAppFindsErrorsDespiteInjectedOptions.func1"]`: inbox.Module("orders",
			injects, inboxtest.Handlers(nothing("a"))),
		`failed to build inbox.injected[name="inbox orders, channel c, inbox.InjectChannel 1: `: inbox.Module("orders",
			inbox.Channel("c", inbox.On("t", nothing("a")), inbox.InjectChannel(func(*settings) inbox.ChannelOption { return nil }))),
		`inbox "orders": handler key "a" is registered twice`: inbox.Module("orders", injects,
			inboxtest.Handlers(nothing("a"), nothing("a"))),
		`missing type: inbox.declaredChannel[name="inbox orders, channel nowhere"]`: inbox.Module("orders",
			inboxtest.Handlers(nothing("a")), inbox.Subscribe("nowhere", "t", nothing("b"))),
	} {
		require.ErrorContains(t, fx.ValidateApp(app, database, fx.NopLogger), want)
	}
	require.NoError(t, fx.ValidateApp(inbox.Module("orders", injects), fx.Supply(&settings{}), database, fx.NopLogger))
}

// stamps is a feature's handler; its constructor is the feature's own.
type stamps struct{ put chan string }

func (s *stamps) Handle(_ context.Context, m inboxtest.Bytes) error {
	s.put <- m.ID
	return nil
}

func TestFeaturesAddChannelsAndHandlersToAnInbox(t *testing.T) {
	put := make(chan string, 10)
	feature := fx.Module("stamping",
		fx.Provide(func() *stamps { return &stamps{put} }, func() *settings { return &settings{} }, fx.Private),
		inbox.Extend("orders",
			inbox.Subscribe("c", "t", inbox.From[*stamps]("stamp")),
			inbox.Channel("stamps", inbox.On("t", nothing("stamped"))),
			inbox.Inject(func(*settings) inbox.Option { return inbox.Subscribe("stamps", "u", nothing("late")) })))
	another := inbox.Extend("orders", inbox.Subscribe("stamps", "t", nothing("another")),
		inbox.Subscribe("c", "t", nothing("first")))
	for name, order := range map[string][]fx.Option{
		"before the module": {feature, another, inbox.Module("orders", inbox.Configure(migrate), inboxtest.Handlers(nothing("own")))},
		"after the module":  {inbox.Module("orders", inbox.Configure(migrate), inboxtest.Handlers(nothing("own"))), another, feature},
	} {
		t.Run(name, func(t *testing.T) {
			var kit *fxtest.Kit
			require.NoError(t, fx.ValidateApp(append(order, namedDB("orders", nil), fx.NopLogger)...))
			fxtest.App(t, append(order, namedDB("orders", fxtest.OpenDB(t)), fxtest.Manual(), fxtest.Use(t, "orders", &kit))...)
			stamped := inboxtest.Message("2")
			stamped.Channel = "stamps"
			late := inboxtest.Message("3")
			late.Channel, late.Type = "stamps", "u"
			kit.Accept(inboxtest.Message("1"), stamped, late)
			kit.Process()
			require.Equal(t, "1", inboxtest.Receive(t, put, "the message"))
			for id, keys := range map[string][]string{"1": {"own", "first", "stamp"}, "2": {"stamped", "another"}, "3": {"late"}} {
				for _, key := range keys {
					kit.RequireCompleted(id, key)
				}
			}
		})
	}
}

func TestFeatureErrorsAreReported(t *testing.T) {
	module := fx.Options(namedDB("orders", fxtest.OpenDB(t)), inbox.Module("orders", inboxtest.Handlers(nothing("a"))))
	known := inbox.Subscribe("c", "t", nothing("b"))
	for name, tc := range map[string]struct {
		app         fx.Option
		start, both string
	}{
		"no such inbox": {inbox.Extend("billing", known), `missing type: *inbox.declaredInbox[name="billing"]`, ""},
		"no such channel": {inbox.Extend("orders", inbox.Subscribe("nowhere", "t", nothing("b"))),
			`inbox "orders": channel "nowhere": inbox.Subscribe adds a handler, but no inbox.Channel in code declares it`,
			`missing type: inbox.declaredChannel[name="inbox orders, channel nowhere"]`},
		"no constructor": {inbox.Extend("orders", inbox.Subscribe("c", "t", inbox.From[*shipper]("ship"))),
			shipperIsMissing, ""},
		"options": {inbox.Extend("orders", known, inbox.Configure(migrate)),
			`inbox "orders": inbox.Extend has inbox.Configure: set the inbox's options in its inbox.Module`, ""},
		"injected options": {inbox.Extend("orders", known, inbox.Inject(func() inbox.Option { return inbox.Configure(migrate) })),
			`inbox "orders": inbox.Extend has inbox.Configure: set the inbox's options in its inbox.Module`, "only at start"},
		"nothing":     {inbox.Extend("orders"), `inbox "orders": inbox.Extend has no channels and no handlers`, ""},
		"no handlers": {inbox.Extend("orders", inbox.Channel("d")), `inbox "orders": channel "d" has no handlers`, ""},
		"nil handler": {inbox.Extend("orders", inbox.Subscribe("c", "t", nil)), `inbox "orders": channel "c", type "t": a handler is nil`, ""},
		"no key":      {inbox.Extend("orders", inbox.Subscribe("c", "t", nothing(""))), `handler key is empty`, ""},
		"twice": {inbox.Extend("orders", known, inbox.Channel("d", inbox.On("t", nothing("b")))),
			`inbox "orders": handler key "b" is registered twice`, ""},
		"unsupported by the channel": {fx.Options(namedDB("billing", fxtest.OpenDB(t)), inbox.Module("billing", inbox.Channel("direct", inbox.Direct(),
			inbox.Kafka(unreachableKafka), inbox.On("t", nothing("c")))), inbox.Extend("billing", inbox.Subscribe("direct", "t",
			nothing("d", handler.Ordered())))), `inbox "billing": channel "direct", type "t", handler "d": Ordered is not supported in Direct mode`,
			"only at start"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.both == "" {
				tc.both = tc.start
			}
			err := fx.ValidateApp(module, tc.app, fx.NopLogger)
			if tc.both == "only at start" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.both)
			}
			require.ErrorContains(t, startError(module, tc.app), tc.start)
		})
	}
}

// Contract 10.4: with Extended no one can know before the start whether a feature adds what is missing.
func TestFeaturesMayDeclareAllChannelsAndHandlers(t *testing.T) {
	database := namedDB("orders", fxtest.OpenDB(t))
	extended := inbox.Module("orders", inbox.Configure(migrate), inbox.Extended(), inbox.Channel("events"))
	feature := inbox.Extend("orders", inbox.Subscribe("events", "t", nothing("a")))
	require.NoError(t, startError(database, extended, feature))
	require.NoError(t, startError(database, feature, inbox.Extend("orders", inbox.Channel("events", inbox.On("t", nothing("b")))),
		inbox.Module("orders", inbox.Configure(migrate), inbox.Extended())))

	require.ErrorContains(t, fx.ValidateApp(database, feature, inbox.Module("orders", inbox.Channel("events")), fx.NopLogger),
		`inbox "orders": channel "events" has no handlers`)
	require.NoError(t, fx.ValidateApp(database, extended, fx.NopLogger))
	require.ErrorContains(t, startError(database, extended), `inbox "orders": channel "events" has no handlers`)
	require.ErrorContains(t, startError(database, inbox.Module("orders", inbox.Extended())), `inbox "orders": it has no channels`)
}

// meters and tracers note who asks them.
type (
	meters struct {
		metricnoop.MeterProvider
		asked int
	}
	tracers struct {
		tracenoop.TracerProvider
		asked int
	}
)

func (m *meters) Meter(name string, opts ...metric.MeterOption) metric.Meter {
	m.asked++
	return m.MeterProvider.Meter(name, opts...)
}

func (p *tracers) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	p.asked++
	return p.TracerProvider.Tracer(name, opts...)
}

func TestTelemetryOfTheGraphIsUsedUnlessAnOptionSetsIt(t *testing.T) {
	graphMeters, graphTracers, ownMeters, ownTracers := &meters{}, &tracers{}, &meters{}, &tracers{}
	propagator := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	graph := fx.Supply(fx.Annotate(graphMeters, fx.As(new(metric.MeterProvider))),
		fx.Annotate(graphTracers, fx.As(new(trace.TracerProvider))),
		fx.Annotate(propagator, fx.As(new(propagation.TextMapPropagator))))
	handled := func(opts ...inbox.Option) (sent string, role string) {
		var kit *fxtest.Kit
		app := append(opts, inbox.Configure(migrate), inboxtest.Handlers(inboxtest.Do("a", func(ctx context.Context, _ inboxtest.Bytes) error {
			sent, role = trace.SpanContextFromContext(ctx).TraceID().String(), baggage.FromContext(ctx).Member("role").Value()
			return nil
		})))
		fxtest.App(t, graph, namedDB("orders", fxtest.OpenDB(t)), fxtest.Manual(), inbox.Module("orders", app...),
			fxtest.Use(t, "orders", &kit))
		m := inboxtest.Message("1")
		m.Properties.Headers = []handler.Header{{Key: "traceparent", Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")},
			{Key: "baggage", Value: []byte("role=admin")}}
		kit.Accept(m)
		kit.Process()
		return sent, role
	}
	sent, role := handled()
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", sent)
	require.Empty(t, role, "a producer decides what is in its baggage")
	require.NotZero(t, graphMeters.asked)
	require.NotZero(t, graphTracers.asked)

	graphMeters.asked, graphTracers.asked = 0, 0
	_, role = handled(inbox.Configure(func(o *inbox.Options) {
		o.MeterProvider, o.TracerProvider, o.Propagator = ownMeters, ownTracers, propagator
	}))
	require.Equal(t, "admin", role)
	require.Zero(t, graphMeters.asked+graphTracers.asked)
	require.NotZero(t, ownMeters.asked)
	require.NotZero(t, ownTracers.asked)
}

func TestModuleProvidesOpsByTheInboxesName(t *testing.T) {
	var named, unnamed *ops.Ops
	fxtest.App(t, fxtest.Manual(), namedDB("orders", fxtest.OpenDB(t)), fx.Supply(fxtest.OpenDB(t)),
		inbox.Module("orders", inboxtest.Handlers(nothing("a")), inbox.Configure(func(o *inbox.Options) {
			o.Migrate = true
			o.Ops = func(o *ops.Options) { o.AllowReplay = true }
		})),
		inbox.Module("", inbox.Configure(migrate), inboxtest.Handlers(nothing("b"))),
		fx.Populate(&unnamed, fx.Annotate(&named, fx.ParamTags(`name:"orders"`))))
	require.NoError(t, named.Can(ops.ActionReplay))
	require.ErrorIs(t, unnamed.Can(ops.ActionReplay), ops.ErrReplayOff)
	overview, err := named.Overview(t.Context())
	require.NoError(t, err)
	require.Equal(t, "orders", overview.Inbox)

	bad := inbox.Configure(func(o *inbox.Options) { o.Ops = func(o *ops.Options) { o.Connections = -1 } })
	require.ErrorContains(t, startError(fx.Supply(fxtest.OpenDB(t)), inbox.Module("", bad, inboxtest.Handlers(nothing("a")))),
		`inbox "": ops: option Connections = -1`)
}

// reorder is a handler that accepts into its own inbox.
type reorder struct {
	inbox func() *inbox.Inbox
	ops   func() *ops.Ops
}

func newReorder(ib func() *inbox.Inbox, o func() *ops.Ops) *reorder { return &reorder{ib, o} }

func (r *reorder) Handle(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
	next := inboxtest.Message(m.ID + "+")
	next.Type = "u"
	if _, err := r.ops().Overview(ctx); err != nil {
		return err
	}
	_, err := r.inbox().AcceptTx(ctx, tx, next)
	return err
}

func TestHandlerReceivesItsInboxThroughAFunction(t *testing.T) {
	names := fx.ParamTags(`name:"orders"`, `name:"orders"`)
	module := inbox.Module("orders", inbox.Configure(migrate),
		inbox.Channel("c", inbox.On("t", inbox.FromTx[*reorder]("again")), inbox.On("u", nothing("last"))))
	for range 2 { // a module may be built into several applications
		var kit *fxtest.Kit
		fxtest.App(t, namedDB("orders", fxtest.OpenDB(t)), fx.Provide(fx.Annotate(newReorder, names)), module, fxtest.Manual(),
			fxtest.Use(t, "orders", &kit))
		kit.Accept(inboxtest.Message("1"))
		kit.Process()
		kit.RequireCompleted("1", "again")
		kit.Process()
		kit.RequireCompleted("1+", "last")
	}
	require.PanicsWithValue(t, `inbox "orders" is not built yet: call this function when a handler runs, not in a constructor`, func() {
		_ = startError(namedDB("orders", fxtest.OpenDB(t)), module, fx.Provide(fx.Annotate(func(ib func() *inbox.Inbox, o func() *ops.Ops) *reorder {
			ib()
			return newReorder(ib, o)
		}, names)))
	})
}

// neighbour is a handler that knows the other inbox.
type neighbour struct{ other func() *inbox.Inbox }

func (n *neighbour) Handle(ctx context.Context, m inboxtest.Bytes) error {
	_, err := n.other().Accept(ctx, inboxtest.Message(m.ID+"+"))
	return err
}

func TestTwoInboxesMayNeedEachOther(t *testing.T) {
	var unnamed, billing *fxtest.Kit
	type graph struct {
		fx.In
		Billing *inbox.Inbox `name:"billing"`
	}
	fxtest.App(t, fx.Supply(fxtest.OpenDB(t)), namedDB("billing", fxtest.OpenDB(t)), fxtest.Manual(),
		fx.Provide(fx.Annotate(func(other func() *inbox.Inbox) *neighbour { return &neighbour{other} },
			fx.ParamTags(`name:"billing"`))),
		fxtest.Use(t, "", &unnamed), fxtest.Use(t, "billing", &billing),
		inbox.Module("", inbox.Configure(migrate), inbox.Extended(), inbox.Channel("c"),
			inbox.Inject(func(g graph) inbox.Option {
				return inbox.Channel("injected", inbox.On("t", nothing("of "+g.Billing.Name())))
			})),
		inbox.Extend("", inbox.Subscribe("c", "t", inbox.From[*neighbour]("ask"))),
		inbox.Module("billing", inbox.Configure(migrate), inbox.Inject(func(other func() *inbox.Inbox) inbox.Option {
			return inbox.Channel("c", inbox.On("t", inbox.Func("answer", (&neighbour{other}).Handle)))
		})))
	unnamed.Accept(inboxtest.Message("1"))
	unnamed.Process()
	billing.Process()
	unnamed.RequireCompleted("1", "ask")
	billing.RequireCompleted("1+", "answer")
	unnamed.RequireAccepted("1++")
}

// Contract 9: a channel's options begin with those of the inbox, also where a feature declares the channel.
func TestFeatureChannelsInheritInboxOptions(t *testing.T) {
	var ib *inbox.Inbox
	app := fx.New(fx.NopLogger, namedDB("orders", testenv.SQLite(t)), fx.Supply(settings{Brokers: []string{"localhost:9092"}}),
		fx.Invoke(fx.Annotate(func(its *inbox.Inbox) { ib = its }, fx.ParamTags(`name:"orders"`))),
		inbox.Module("orders", inbox.Configure(func(o *inbox.Options) {
			inboxtest.Defaults(o)
			o.Acceptor.Unrouted, o.Acceptor.BadRecords = acceptor.UnroutedReject, acceptor.BadRecordHalt
			o.PartitionConcurrency = 20
		}), inboxtest.Handlers(nothing("a"))),
		inbox.Extend("orders",
			inbox.Channel("plain", inbox.On("t", nothing("b"))),
			inbox.Channel("own", inbox.On("t", nothing("c")),
				inbox.ConfigureChannel(func(o *inbox.ChannelOptions) { o.MaxRetries = 3 })),
			inbox.Channel("injected", inbox.On("t", nothing("d")),
				inbox.InjectChannel(func(s settings) inbox.ChannelOption {
					return inbox.Kafka(kafkaconsumer.Config{Brokers: s.Brokers, Topics: []string{"x"}, GroupID: "g"})
				}),
				inbox.ConfigureChannel(func(o *inbox.ChannelOptions) { o.Acceptor.BadRecords = acceptor.BadRecordStore }))))
	require.NoError(t, app.Err())
	require.NoError(t, ib.Migrate(t.Context()))
	_, err := ib.Accept(t.Context(), handler.RawMessage{Channel: "own", Type: "unknown", ID: "1"})
	require.ErrorContains(t, err, "unrouted", "as the inbox's policy says")
}

// A package may declare features in a function.
func TestTwoFeaturesMayInjectTheSameFunction(t *testing.T) {
	feature := func(channel string) fx.Option {
		inject := func(*settings) inbox.Option { return nil }
		return inbox.Extend("orders", inbox.Inject(inject), inbox.Inject(inject),
			inbox.Channel(channel, inbox.On("t", nothing("of "+channel))))
	}
	var kit *fxtest.Kit
	fxtest.App(t, namedDB("orders", fxtest.OpenDB(t)), fx.Supply(&settings{}), feature("d"), feature("e"), fxtest.Manual(),
		inbox.Module("orders", inbox.Configure(migrate), inboxtest.Handlers(nothing("a"))), fxtest.Use(t, "orders", &kit))
	m := inboxtest.Message("1")
	m.Channel = "e"
	kit.Accept(m)
	kit.Process()
	kit.RequireCompleted("1", "of e")
}
