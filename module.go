package inbox

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/fx"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/ops"
)

// Module wires an inbox into an Fx application (contract 10.2). The inbox called "orders" uses the *gorm.DB named
// "orders" and is provided as *Inbox named "orders", and what operators use as *ops.Ops of that name. With the name "",
// or with UnnamedDB, the database is the unnamed one, and with the name "" so is the inbox. Several modules can live
// side by side, each with its own database, processor, options and leases. The inbox starts and stops with the
// application.
//
// A handler, or what Inject takes, may need the inbox itself, which Fx refuses as a cycle. It takes the func() *Inbox
// or func() *ops.Ops of the inbox's name instead, and calls it when it runs: before the inbox is built it panics.
//
// Logger, MeterProvider, TracerProvider and Propagator are the graph's unnamed ones where no option sets them. Other
// options come from the graph by Inject. Other packages add channels and handlers by Extend.
//
// A wrong declaration fails the start, and fx.ValidateApp, with an error that joins all mistakes, each with inbox,
// channel, option and handler key. What only the graph shows fails the start in the same way, such as a missing
// database or handler. If a constructor of the application fails, or lacks a dependency, the error is Fx's own. Fx also
// refuses two modules of one name, and a handler key or consumer group that two modules declare, and names both calls
// of Module (contract 10.4).
func Module(name string, opts ...Option) fx.Option {
	cfg := (&config{name: name, declared: opts, withFx: true}).apply(nil)
	if err := cfg.validate(); err != nil {
		return fx.Error(err)
	}
	at := caller()
	label := "inbox"
	if name != "" {
		label += "." + name
	}
	// Results are named after the module. If those of all modules had one type and no name, Fx would see a cycle between
	// the modules.
	result, whole, later := nameTag("inbox.result."+name), nameTag("inbox.resolved."+name), nameTag("inbox.later."+name)
	provided := func(constructor any, param string) fx.Option {
		return fx.Provide(withLocation(at, fx.Annotate(constructor, fx.ParamTags(param), fx.ResultTags(nameTag(name)))))
	}
	private := func(constructor any, result string, params ...string) fx.Option {
		return fx.Provide(withLocation(at, fx.Annotate(constructor, fx.ParamTags(params...), fx.ResultTags(result))),
			fx.Private)
	}
	parts := []fx.Option{
		// The inbox comes first, because Fx reports only the first constructor that it refuses.
		provided(newModuleInbox, result),
		provided(newModuleOps, result),
		provided(newLaterInbox, later),
		provided(newLaterOps, later),
		cfg.claim(at),
		fx.Provide(fx.Annotate(cfg.newLater, fx.ResultTags(later))),
		fx.Provide(fx.Annotate(cfg.resolve, fx.ParamTags(groupTag("inbox.injected."+name), groupTag("inbox.features."+name)),
			fx.ResultTags(whole))),
		fx.Provide(fx.Annotate(newModuleResolved, fx.ParamTags(whole), fx.ResultTags(groupTag("inbox.modules")))),
		private(newModuleDB, "", nameTag(cfg.dbName())),
		private(newModuleParts, "", whole, groupTag("inbox.handlers."+name), later),
		fx.Provide(withLocation(at, fx.Annotate(newModuleResult, fx.ResultTags(result))), fx.Private),
	}
	parts = append(parts, cfg.provideValues()...)
	parts = append(parts, fx.Invoke(fx.Annotate(checkModule, fx.ParamTags(whole, groupTag("inbox.modules"))),
		requireGraph[moduleDB]))
	parts = append(parts, cfg.requireDeclared()...)
	parts = append(parts, cfg.requireHandlers()...)
	return fx.Module(label, append(parts, fx.Invoke(fx.Annotate(startModule, fx.ParamTags(result))))...)
}

// Override changes every inbox of an Fx application, for test kits that supply it to the graph. Do not supply it in
// production.
type Override struct {
	// Manual starts nothing in the background: no processor, no cleanup, no consumers. The test calls ProcessPending
	// and Cleanup.
	Manual bool
	// Clock, if not nil, replaces the inbox's clock.
	Clock Clock
}

// moduleDB is the module's database, whatever its name in the graph.
type moduleDB struct{ db *gorm.DB }

func newModuleDB(db *gorm.DB) moduleDB { return moduleDB{db} }

// requireGraph makes Fx build a T, and so report itself what is wrong with the constructor of T or its dependencies.
func requireGraph[T any](T) {}

// requireHandlers makes Fx build the values of handlers, once for all handlers of a type.
func (cfg *config) requireHandlers() []fx.Option {
	var parts []fx.Option
	required := map[reflect.Type]bool{}
	for _, c := range cfg.all() {
		for _, s := range c.subscriptions {
			if s.spec.graph != nil && !required[s.spec.graph.typ] {
				required[s.spec.graph.typ] = true
				parts = append(parts, s.spec.graph.require)
			}
		}
	}
	return parts
}

// checkModule reports missing constructors, what is wrong with what the graph gives, and what modules share. Fx would
// report missing constructors too, but not for which channel and handler.
func checkModule(r *resolved, modules []*resolved, graph fx.DotGraph) error {
	all := []error{r.err}
	if !provides(graph, reflect.TypeFor[*gorm.DB](), r.dbName()) {
		all = append(all, r.named(r.missingDB()))
	}
	for _, c := range r.channels {
		for _, s := range c.subscriptions {
			if s.spec != nil && s.spec.graph != nil && !provides(graph, s.spec.graph.typ, "") {
				all = append(all, r.named(fmt.Errorf("channel %q, type %q, handler %q: no %s in the Fx graph: fx.Provide its constructor",
					c.name, s.typ, s.spec.key, s.spec.graph.typ)))
			}
		}
	}
	var keys []registry.Registration
	var members []membership
	for _, m := range modules {
		if m.err != nil && m.name != r.name {
			continue // its own check reports that
		}
		keys = append(keys, registrations(m.name, m.channels)...)
		members = append(members, memberships(m.name, m.channels)...)
	}
	if r.err == nil { // otherwise it may report them itself
		all = append(all, r.named(errors.Join(checkKeys(keys), checkGroups(members))))
	}
	return errors.Join(all...)
}

// moduleParams holds what an inbox takes from the Fx graph.
type moduleParams struct {
	fx.In

	Parts          moduleParts
	DB             moduleDB
	Logger         *zap.Logger                   `optional:"true"`
	MeterProvider  metric.MeterProvider          `optional:"true"`
	TracerProvider trace.TracerProvider          `optional:"true"`
	Propagator     propagation.TextMapPropagator `optional:"true"`
	Override       *Override                     `optional:"true"`
	Graph          fx.DotGraph
	Lifecycle      fx.Lifecycle
	Shutdowner     fx.Shutdowner
}

// moduleParts are the module's own values, whatever their names in the graph.
type moduleParts struct {
	declared *resolved
	handlers []graphHandler
	later    *moduleResult
}

func newModuleParts(declared *resolved, handlers []graphHandler, later *moduleResult) moduleParts {
	return moduleParts{declared, handlers, later}
}

func newModuleResolved(r *resolved) *resolved { return r }

// moduleResult is an inbox, or what is wrong with it. The error is a value: were it returned by its constructor, Fx
// would prefix it with the names of all constructors on the way. startModule returns it unaltered.
type moduleResult struct {
	name  string
	inbox *Inbox
	ops   *ops.Ops
	err   error
}

// newModuleInbox and newModuleOps are the constructors of what users take.
func newModuleInbox(r moduleResult) (*Inbox, error) { return r.inbox, r.err }
func newModuleOps(r moduleResult) (*ops.Ops, error) { return r.ops, r.err }

// newLater returns the place of the result until it is there. It depends on nothing, so handlers can depend on it.
func (cfg *config) newLater() *moduleResult { return &moduleResult{name: cfg.name} }

// newLaterInbox and newLaterOps are the constructors of what handlers of the inbox take.
func newLaterInbox(r *moduleResult) func() *Inbox { return func() *Inbox { return r.built().inbox } }
func newLaterOps(r *moduleResult) func() *ops.Ops { return func() *ops.Ops { return r.built().ops } }

func (r *moduleResult) built() *moduleResult {
	if r.inbox == nil {
		panic(fmt.Sprintf("inbox %q is not built yet: call this function when a handler runs, not in a constructor", r.name))
	}
	return r
}

// newModuleResult assembles the inbox and ties it to the application's start and stop.
func newModuleResult(p moduleParams) moduleResult {
	ib, err := p.assemble()
	if err != nil {
		return moduleResult{err: err}
	}
	o, err := ib.Ops()
	if err != nil {
		return moduleResult{err: err}
	}
	p.Lifecycle.Append(fx.Hook{OnStart: ib.Start, OnStop: ib.Stop})
	p.Parts.later.inbox, p.Parts.later.ops = ib, o
	return *p.Parts.later
}

func (p moduleParams) assemble() (*Inbox, error) {
	if p.Parts.declared.err != nil {
		return nil, p.Parts.declared.err
	}
	cfg := *p.Parts.declared.config // the same Module may be built into several applications
	cfg.shutdown = func(exitCode int) error { return p.Shutdowner.Shutdown(fx.ExitCode(exitCode)) }
	if p.Override != nil {
		cfg.manual = p.Override.Manual
		if p.Override.Clock != nil {
			cfg.clock = p.Override.Clock
		}
	}
	err := errors.Join(
		useGraph(p.Graph, &cfg.options.Logger, p.Logger),
		useGraph(p.Graph, &cfg.options.MeterProvider, p.MeterProvider),
		useGraph(p.Graph, &cfg.options.TracerProvider, p.TracerProvider),
	)
	if cfg.options.Propagator == nil {
		err = errors.Join(err, useGraph(p.Graph, &cfg.options.Propagator, p.Propagator))
		if cfg.options.Propagator != nil {
			cfg.options.Propagator = withoutBaggage{cfg.options.Propagator}
		}
	}
	handlers, handlersErr := cfg.graphHandlers(p.Parts.handlers)
	if err = errors.Join(err, handlersErr); err != nil {
		return nil, cfg.named(err)
	}
	return assemble(&cfg, p.DB.db, handlers)
}

// useGraph sets an option that is not set to the graph's value. Fx leaves an optional value zero also where something
// that its constructor needs is missing; that is an error.
func useGraph[T comparable](graph fx.DotGraph, option *T, value T) error {
	var none T
	if *option != none {
		return nil
	}
	*option = value
	if typ := reflect.TypeFor[T](); value == none && provides(graph, typ, "") {
		return fmt.Errorf("the %s of the Fx graph is nil, or something that its constructor needs is missing", typ)
	}
	return nil
}

// withoutBaggage is the graph's propagator. What a producer puts into its baggage must not reach handlers unasked.
type withoutBaggage struct{ propagation.TextMapPropagator }

func (p withoutBaggage) Extract(ctx context.Context, carrier propagation.TextMapCarrier) context.Context {
	return baggage.ContextWithBaggage(p.TextMapPropagator.Extract(ctx, carrier), baggage.FromContext(ctx))
}

// graphHandlers returns the handlers that come from the Fx graph.
func (cfg *config) graphHandlers(all []graphHandler) (map[*HandlerSpec]*handler.Handler, error) {
	handlers := map[*HandlerSpec]*handler.Handler{}
	for _, h := range all {
		handlers[h.spec] = h.handler
	}
	var problems []error
	for _, c := range cfg.channels {
		for _, s := range c.subscriptions {
			if s.spec.graph != nil && handlers[s.spec] == nil {
				problems = append(problems, fmt.Errorf("channel %q, type %q, handler %q: the %s of the Fx graph is nil", c.name,
					s.typ, s.spec.key, s.spec.graph.typ))
			}
		}
	}
	return handlers, errors.Join(problems...)
}

// startModule makes Fx build the inbox even if no other constructor takes it.
func startModule(r moduleResult) error { return r.err }

func (cfg *config) dbName() string {
	if cfg.options.UnnamedDB {
		return ""
	}
	return cfg.name
}

func (cfg *config) missingDB() error {
	if cfg.dbName() == "" {
		return errors.New("no unnamed *gorm.DB in the Fx graph: fx.Provide its constructor")
	}
	return fmt.Errorf("no *gorm.DB named %q in the Fx graph: provide it with fx.ResultTags(`name:%[1]q`), or set option UnnamedDB", cfg.name)
}

// fromGraph is a handler whose value the Fx graph provides.
type fromGraph struct {
	typ     reflect.Type
	require fx.Option // makes Fx build the value, and so report itself what is wrong with its constructor
	fetch   any       // a constructor that makes the graphHandler from the value
}

// graphHandler carries a handler from the graph to its inbox.
type graphHandler struct {
	spec    *HandlerSpec
	handler *handler.Handler // nil if its value is nil
}

func newFromGraph[H any](spec *HandlerSpec, build func(H) *handler.Handler) *fromGraph {
	return &fromGraph{
		typ:     reflect.TypeFor[H](),
		require: fx.Invoke(requireGraph[H]),
		fetch: func(value H) graphHandler {
			if isNil(value) {
				return graphHandler{spec: spec}
			}
			return graphHandler{spec, build(value)}
		},
	}
}

func isNil(v any) bool {
	switch value := reflect.ValueOf(v); value.Kind() {
	case reflect.Invalid: // a nil interface
		return true
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Slice, reflect.Chan:
		return value.IsNil()
	}
	return false
}
