package inbox

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"strings"

	"go.uber.org/fx"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/registry"
)

// Module wires an inbox into an Fx application (contract 10.2). The inbox called "orders" uses the *gorm.DB named
// "orders" and is provided as *Inbox named "orders". With the name "", or with UnnamedDB, the database is the unnamed
// one, and with the name "" so is the inbox. Several modules can live side by side, each with its own database,
// processor, options and leases. The inbox starts and stops with the application.
//
// A wrong declaration fails the start, and fx.ValidateApp, with an error that joins all mistakes, each with inbox,
// channel, option and handler key. What only the graph shows fails the start in the same way: a missing database or
// handler, and handler keys or consumer groups that two modules share. If a constructor of the application fails, or
// lacks a dependency, the error is Fx's own. Fx also refuses two modules of one name, and names the inbox and both
// calls of Module.
func Module(name string, opts ...Option) fx.Option {
	cfg := newConfig(name, opts)
	cfg.withFx = true
	if err := cfg.validate(); err != nil {
		return fx.Error(err)
	}
	caller := callerOfModule()
	label := "inbox"
	if name != "" {
		label += "." + name
	}
	// The result is named after the module. If the results of all modules had one type and no name, Fx would see a
	// cycle between the modules.
	result := nameTag("inbox.result." + name)
	parts := []fx.Option{
		// The inbox comes first, because Fx reports only the first constructor that it refuses.
		fx.Provide(withLocation(caller, fx.Annotate(newModuleInbox, fx.ParamTags(result), fx.ResultTags(nameTag(name))))),
		fx.Provide(fx.Annotated{Group: "inbox.modules", Target: func() *config { return cfg }}),
		fx.Supply(cfg, fx.Private),
		fx.Provide(withLocation(caller, fx.Annotate(newModuleDB, fx.ParamTags(nameTag(cfg.dbName())))),
			withLocation(caller, fx.Annotate(newModuleResult, fx.ResultTags(result))), fx.Private),
		fx.Invoke(checkModule, requireGraph[moduleDB]),
	}
	required := map[reflect.Type]bool{}
	for _, c := range cfg.channels {
		for _, s := range c.subscriptions {
			if s.spec.graph == nil {
				continue
			}
			parts = append(parts, s.spec.graph.provide)
			if !required[s.spec.graph.typ] {
				required[s.spec.graph.typ] = true
				parts = append(parts, s.spec.graph.require)
			}
		}
	}
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

type checkParams struct {
	fx.In

	Config  *config
	Modules []*config `group:"inbox.modules"`
	Graph   fx.DotGraph
}

// checkModule reports missing constructors, and what modules share. Fx would report the former too, but not for which
// channel and handler.
func checkModule(p checkParams) error {
	cfg := p.Config
	var all []error
	if !provides(p.Graph, reflect.TypeFor[*gorm.DB](), cfg.dbName()) {
		all = append(all, cfg.missingDB())
	}
	for _, c := range cfg.channels {
		for _, s := range c.subscriptions {
			if s.spec.graph != nil && !provides(p.Graph, s.spec.graph.typ, "") {
				all = append(all, fmt.Errorf("channel %q, type %q, handler %q: no %s in the Fx graph: fx.Provide its constructor",
					c.name, s.typ, s.spec.key, s.spec.graph.typ))
			}
		}
	}
	var keys []registry.Registration
	var members []membership
	for _, m := range p.Modules {
		keys = append(keys, registrations(m.name, m.channels)...)
		members = append(members, memberships(m.name, m.channels)...)
	}
	return cfg.named(errors.Join(append(all, checkKeys(keys), checkGroups(members))...))
}

// provides reports whether the graph has a constructor of a type. An optional parameter would not tell, because Fx
// leaves it zero as well where a dependency of its constructor is missing.
func provides(graph fx.DotGraph, typ reflect.Type, name string) bool {
	node := typ.String()
	if name != "" {
		node += "[name=" + name + "]"
	}
	return strings.Contains(string(graph), "\t"+strconv.Quote(node)+" [label=")
}

// moduleParams holds what an inbox takes from the Fx graph.
type moduleParams struct {
	fx.In

	Config     *config
	DB         moduleDB
	Logger     *zap.Logger    `optional:"true"`
	Override   *Override      `optional:"true"`
	Handlers   []graphHandler `group:"inbox.handlers"`
	Graph      fx.DotGraph
	Lifecycle  fx.Lifecycle
	Shutdowner fx.Shutdowner
}

// moduleResult is an inbox, or what is wrong with it. The error is a value: were it returned by this constructor, Fx
// would prefix it with the names of all constructors on the way. startModule returns it unaltered.
type moduleResult struct {
	inbox *Inbox
	err   error
}

// newModuleResult assembles the inbox and ties it to the application's start and stop.
func newModuleResult(p moduleParams) moduleResult {
	cfg := *p.Config // the same Module may be built into several applications
	cfg.shutdown = func(exitCode int) error { return p.Shutdowner.Shutdown(fx.ExitCode(exitCode)) }
	if cfg.options.Logger == nil {
		cfg.options.Logger = p.Logger
	}
	if p.Override != nil {
		cfg.manual = p.Override.Manual
		if p.Override.Clock != nil {
			cfg.clock = p.Override.Clock
		}
	}
	var err error
	if cfg.options.Logger == nil && provides(p.Graph, reflect.TypeFor[*zap.Logger](), "") {
		err = errors.New("the *zap.Logger of the Fx graph is nil, or something that its constructor needs is missing")
	}
	handlers, handlersErr := cfg.graphHandlers(p.Handlers)
	if err = errors.Join(err, handlersErr); err != nil {
		return moduleResult{err: cfg.named(err)}
	}
	ib, err := assemble(&cfg, p.DB.db, handlers)
	if err == nil {
		p.Lifecycle.Append(fx.Hook{OnStart: ib.Start, OnStop: ib.Stop})
	}
	return moduleResult{inbox: ib, err: err}
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

// newModuleInbox is the constructor of the *Inbox that users take.
func newModuleInbox(r moduleResult) (*Inbox, error) { return r.inbox, r.err }

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

// nameTag returns the Fx tag of a name, "" for no name.
func nameTag(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf("name:%q", name)
}

// fromGraph is a handler whose value the Fx graph provides.
type fromGraph struct {
	typ reflect.Type
	// require makes Fx build the value, once for all handlers of its type. provide makes the handler from it.
	require, provide fx.Option
}

// graphHandler carries a handler from the graph to its inbox.
type graphHandler struct {
	spec    *HandlerSpec
	handler *handler.Handler // nil if its value is nil
}

func newFromGraph[H any](spec *HandlerSpec, build func(H) *handler.Handler) *fromGraph {
	fetch := func(value H) graphHandler {
		if isNil(value) {
			return graphHandler{spec: spec}
		}
		return graphHandler{spec, build(value)}
	}
	return &fromGraph{
		typ:     reflect.TypeFor[H](),
		require: fx.Invoke(requireGraph[H]),
		provide: fx.Provide(fx.Annotated{Group: "inbox.handlers", Target: fetch}, fx.Private),
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

// callerOfModule returns where the caller of Module called it.
func callerOfModule() uintptr {
	var caller [1]uintptr
	if runtime.Callers(3, caller[:]) == 0 {
		return 0
	}
	return caller[0] - 1 // a return address is one past the call
}

// withLocation makes Fx report pc as the place of an annotated constructor. Otherwise Fx reports reflect.makeFuncStub,
// by which fx.Annotate builds functions. Fx has a field for the place but no option. Without that field Fx reports the
// stub again.
func withLocation(pc uintptr, annotated any) any {
	located := reflect.New(reflect.TypeOf(annotated)).Elem()
	located.Set(reflect.ValueOf(annotated))
	if located.Kind() != reflect.Struct {
		return annotated
	}
	if field := located.FieldByName("FuncPtr"); field.IsValid() && field.CanSet() && field.Kind() == reflect.Uintptr {
		field.SetUint(uint64(pc))
	}
	return located.Interface()
}
