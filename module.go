package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

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
	"github.com/gorm-inbox/inbox/outgoing"
)

// Module wires an inbox into an Fx application (contract 10.2). The inbox called "orders" uses the *gorm.DB named
// "orders" and is provided as *Inbox named "orders", and its operators' API as *ops.Ops of that name. With the name "",
// or with UnnamedDB, the database is the unnamed one, and with the name "" so is the inbox. Several modules can live
// side by side, each with its own database, processor, options and leases. The inbox starts and stops with the
// application.
//
// A handler, or the function of Inject, may need the inbox itself, which Fx refuses as a cycle. Take the func() *Inbox
// or func() *ops.Ops of the inbox's name instead, and call it when the handler runs: before the inbox is built it
// panics.
//
// Logger, MeterProvider, TracerProvider and Propagator are the graph's unnamed ones where no option sets them. The
// logger is its *zap.Logger, or else its *slog.Logger. Other options come from the graph by Inject. Other packages add
// channels and handlers by Extend.
//
// A wrong declaration fails the start, and fx.ValidateApp, with an error that joins all mistakes, each with inbox,
// channel, option and handler key. A value that the graph lacks fails both with an error of Fx, which names the inbox,
// the channel, the handler key and the missing type. Fx also refuses two modules of one name, and a handler key or
// consumer group that two modules declare. A constructor of an optional value, such as the logger's, that lacks a
// dependency counts as missing, as everywhere in Fx: use Inject for values that the inbox must not be without (contract
// 10.4).
func Module(name string, opts ...Option) fx.Option {
	cfg := (&config{name: name, declared: opts, withFx: true}).apply(nil)
	if err := cfg.validate(); err != nil {
		return fx.Error(err)
	}
	named, group := nameTag(name), groupTag(cfg.label())
	return fx.Module(cfg.label(),
		fx.Provide(
			// The name comes first, because Fx reports only the first constructor that it refuses.
			fx.Annotated{Name: name, Target: giveEachModuleItsOwnName},
			fx.Annotate(newModuleInbox, fx.ParamTags(named), fx.ResultTags(named)),
			fx.Annotate(newModuleOps, fx.ParamTags(named), fx.ResultTags(named)),
			fx.Annotate(newLaterInbox, fx.ParamTags(named), fx.ResultTags(named)),
			fx.Annotate(newLaterOps, fx.ParamTags(named), fx.ResultTags(named)),
			fx.Annotate(cfg.newDeclaredInbox, fx.ResultTags(named)),
			fx.Annotate(cfg.resolve, fx.ParamTags(group, group), fx.ResultTags(named)),
			fx.Annotate(newModuleResolved, fx.ParamTags(named), fx.ResultTags(groupTag(allModules))),
			fx.Annotate(newModuleDB, fx.ParamTags(nameTag(cfg.dbName())), fx.ResultTags(nameTag(cfg.dbLabel()))),
			fx.Annotate(newModuleResult, fx.ParamTags(named, group, named, nameTag(cfg.dbLabel())), fx.ResultTags(named)),
		),
		fx.Provide(newApplication, fx.Private), cfg.claim(), cfg.provideValues(), cfg.requireDeclared(),
		fx.Invoke(fx.Annotate(requireGraph[moduleDB], fx.ParamTags(nameTag(cfg.dbLabel()))),
			fx.Annotate(checkModule, fx.ParamTags(named, groupTag(allModules))),
			fx.Annotate(startModule, fx.ParamTags(named))))
}

// allModules is the group of the declarations of all modules.
const allModules = "inbox.modules"

// Override changes every inbox of an Fx application, for test kits that supply it to the graph. Do not supply it in
// production.
type Override struct {
	// Manual starts nothing in the background: no processor, no cleanup, no consumers. The test calls ProcessPending
	// and Cleanup.
	Manual bool
	// Clock, if not nil, replaces the inbox's clock.
	Clock Clock
	// Published, if not nil, is called with each message that an outgoing channel of an inbox has published. Channels
	// with ToKafka then publish to nothing else. It may be called concurrently.
	Published func(inbox string, m outgoing.Message)
}

// moduleName marks a module's name as taken.
type moduleName struct{}

// giveEachModuleItsOwnName makes the mark. Fx's error for two modules of one name begins with this function's name, so
// the name says what to do.
func giveEachModuleItsOwnName() moduleName { return moduleName{} }

// moduleDB is the module's database. Its name in the graph says how to provide it.
type moduleDB struct{ db *gorm.DB }

func newModuleDB(db *gorm.DB) moduleDB { return moduleDB{db} }

// checkModule returns the errors in the graph's values, and in values that modules share.
func checkModule(r *resolved, modules []*resolved) error {
	all := []error{r.err}
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

type moduleParams struct {
	fx.In

	Logger         *zap.Logger                   `optional:"true"`
	Slog           *slog.Logger                  `optional:"true"`
	MeterProvider  metric.MeterProvider          `optional:"true"`
	TracerProvider trace.TracerProvider          `optional:"true"`
	Propagator     propagation.TextMapPropagator `optional:"true"`
	Override       *Override                     `optional:"true"`
	Lifecycle      fx.Lifecycle
	Shutdowner     fx.Shutdowner
}

// application has the values that every inbox takes from the Fx graph. fx.ParamTags does not work beside an fx.In
// struct.
type application struct{ params moduleParams }

func newApplication(p moduleParams) application { return application{p} }

func newModuleResolved(r *resolved) *resolved { return r }

// moduleResult is an inbox, or its error. The error is a value: were it returned by its constructor, Fx would prefix it
// with the names of all constructors on the way. startModule returns it unaltered.
type moduleResult struct {
	inbox *Inbox
	err   error
}

// newModuleInbox and newModuleOps are the constructors of the values that users take.
func newModuleInbox(r moduleResult) (*Inbox, error) { return r.inbox, r.err }
func newModuleOps(ib *Inbox) *ops.Ops               { return ib.engine.Ops() }

// declaredInbox is the place of the inbox until it is built. It depends on nothing, so handlers can depend on it.
type declaredInbox struct {
	name  string
	inbox *Inbox
}

func (cfg *config) newDeclaredInbox() *declaredInbox { return &declaredInbox{name: cfg.name} }

// newLaterInbox and newLaterOps are the constructors of the functions that handlers of the inbox take.
func newLaterInbox(d *declaredInbox) func() *Inbox { return func() *Inbox { return d.built() } }
func newLaterOps(d *declaredInbox) func() *ops.Ops {
	return func() *ops.Ops { return d.built().engine.Ops() }
}

func (d *declaredInbox) built() *Inbox {
	if d.inbox == nil {
		panic(fmt.Sprintf("inbox %q is not built yet: call this function when a handler runs, not in a constructor", d.name))
	}
	return d.inbox
}

// newModuleResult assembles the inbox and ties it to the application's start and stop.
func newModuleResult(r *resolved, values []graphHandler, d *declaredInbox, db moduleDB, app application) moduleResult {
	p := app.params
	ib, err := p.assemble(r, values, db)
	if err != nil {
		return moduleResult{err: err}
	}
	p.Lifecycle.Append(fx.Hook{OnStart: ib.Start, OnStop: ib.Stop})
	d.inbox = ib
	return moduleResult{inbox: ib}
}

func (p moduleParams) assemble(r *resolved, values []graphHandler, db moduleDB) (*Inbox, error) {
	if r.err != nil {
		return nil, r.err
	}
	cfg := *r.config // the same Module may be built into several applications
	cfg.shutdown = func(exitCode int) error { return p.Shutdowner.Shutdown(fx.ExitCode(exitCode)) }
	if p.Override != nil {
		cfg.manual, cfg.published = p.Override.Manual, p.Override.Published
		if p.Override.Clock != nil {
			cfg.clock = p.Override.Clock
		}
	}
	o := &cfg.options
	o.Logger = cmp.Or(o.Logger, p.Logger, Slog(p.Slog))
	o.MeterProvider = cmp.Or(o.MeterProvider, p.MeterProvider)
	o.TracerProvider = cmp.Or(o.TracerProvider, p.TracerProvider)
	if o.Propagator == nil && p.Propagator != nil {
		o.Propagator = withoutBaggage{p.Propagator}
	}
	handlers, err := cfg.graphHandlers(values)
	if err != nil {
		return nil, cfg.named(err)
	}
	return assemble(&cfg, db.db, handlers)
}

// withoutBaggage is the graph's propagator without baggage: a producer's baggage must not reach handlers unless the
// application asks for it.
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

// dbLabel returns the name of the module's database for the Fx graph's errors.
func (cfg *config) dbLabel() string {
	if cfg.dbName() == "" {
		return cfg.label() + ": fx.Provide an unnamed *gorm.DB"
	}
	return fmt.Sprintf("%s: provide a *gorm.DB with fx.ResultTags of name %s, or set option UnnamedDB", cfg.label(), cfg.name)
}
