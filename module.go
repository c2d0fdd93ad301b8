package inbox

import (
	"errors"
	"fmt"
	"reflect"

	"go.uber.org/fx"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
)

// Module wires an inbox into an Fx application (contract 10.2). The inbox
// called "orders" uses the *gorm.DB named "orders" and is itself provided as
// *Inbox named "orders"; with the name "", or with UnnamedDB, the database is
// the unnamed one, and with the name "" so is the inbox. Several modules live
// side by side, each with its own database, processor, options and leases.
//
// Two modules of one name are refused by Fx itself, which names the inbox.
// Everything else wrong with the declaration fails the application's start, naming
// inbox, channel, option and handler key. The inbox starts and stops with the
// application.
func Module(name string, opts ...Option) fx.Option {
	cfg, err := newConfig(name, opts)
	if err != nil {
		return fx.Error(err)
	}
	label := "inbox"
	if name != "" {
		label += "." + name
	}
	parts := []fx.Option{
		fx.Supply(fx.Annotate(registrations(name, cfg.channels), fx.ResultTags(`group:"inbox.registrations,flatten"`))),
		fx.Supply(fx.Annotate(memberships(name, cfg.channels), fx.ResultTags(`group:"inbox.memberships,flatten"`))),
		fx.Provide(fx.Annotate(cfg.provide, fx.ParamTags(cfg.dbTag(), `optional:"true"`, `optional:"true"`, cfg.handlersTag(),
			`group:"inbox.registrations"`, `group:"inbox.memberships"`, ""), fx.ResultTags(tag(name, "")))),
		fx.Invoke(fx.Annotate(func(lc fx.Lifecycle, ib *Inbox) {
			lc.Append(fx.Hook{OnStart: ib.Start, OnStop: ib.Stop})
		}, fx.ParamTags("", tag(name, "")))),
	}
	for _, c := range cfg.channels {
		for _, s := range c.subscriptions {
			if s.spec != nil && s.spec.graph != nil {
				parts = append(parts, s.spec.graph.provide(cfg.handlersGroup()))
			}
		}
	}
	return fx.Module(label, parts...)
}

// Override changes every inbox of an Fx application, for test kits: supply it
// to the graph. Do not supply it in production.
type Override struct {
	// Manual starts nothing in the background: no processor, no cleanup, no
	// consumers. ProcessPending and Cleanup work by hand.
	Manual bool
	// Clock, if not nil, replaces the inbox's clock.
	Clock Clock
}

// provide is the Fx constructor of the inbox.
func (cfg *config) provide(db *gorm.DB, log *zap.Logger, override *Override, found []graphHandlerValue, all []handler.Registration,
	members []membership, shutdowner fx.Shutdowner,
) (*Inbox, error) {
	if db == nil {
		return nil, fmt.Errorf("inbox %q: %w", cfg.name, cfg.missingDB())
	}
	// Its own first: Fx gives those of all modules in an order of chance.
	err := handler.CheckKeys(registrations(cfg.name, cfg.channels))
	if err == nil {
		err = checkKeys(append([]handler.Registration(nil), all...))
	}
	if err == nil {
		err = checkGroups(members)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox %q: %w", cfg.name, err)
	}
	own := *cfg // the same Module may be built into several applications
	own.shutdown = func(exitCode int) error { return shutdowner.Shutdown(fx.ExitCode(exitCode)) }
	if own.logger == nil {
		own.logger = log
	}
	if override != nil {
		own.manual = override.Manual
		if override.Clock != nil {
			own.clock = override.Clock
		}
	}
	resolved := map[*HandlerSpec]*handler.Handler{}
	for _, f := range found {
		if f.handler != nil {
			resolved[f.spec] = f.handler
		}
	}
	return assemble(&own, db, resolved)
}

func (cfg *config) dbName() string {
	if cfg.unnamedDB {
		return ""
	}
	return cfg.name
}

func (cfg *config) dbTag() string { return tag(cfg.dbName(), `optional:"true"`) }

func (cfg *config) missingDB() error {
	if cfg.dbName() == "" {
		return errors.New("no unnamed *gorm.DB in the Fx graph, or something it needs is missing")
	}
	return fmt.Errorf("no *gorm.DB named %q in the Fx graph, or something it needs is missing: provide it with fx.ResultTags(`name:\"%s\"`), or use inbox.UnnamedDB()", cfg.name, cfg.name)
}

func (cfg *config) handlersGroup() string { return "inbox.handlers." + cfg.name }

func (cfg *config) handlersTag() string { return fmt.Sprintf("group:%q", cfg.handlersGroup()) }

// tag makes an Fx tag of a name, or none for the unnamed, and further parts.
func tag(name, more string) string {
	if name == "" {
		return more
	}
	if more == "" {
		return fmt.Sprintf("name:%q", name)
	}
	return fmt.Sprintf("name:%q %s", name, more)
}

// fromGraph is a handler whose value the Fx graph provides.
type fromGraph struct {
	keys     []string
	typeName string
	provide  func(group string) fx.Option
}

func (g *fromGraph) missing(withFx bool) error {
	if !withFx {
		return fmt.Errorf("it comes from the Fx graph (%s); without Fx use inbox.Func or inbox.Tx", g.typeName)
	}
	return fmt.Errorf("no %s in the Fx graph, or something it needs is missing: fx.Provide its constructor", g.typeName)
}

// graphHandlerValue carries a handler from the graph to its inbox.
type graphHandlerValue struct {
	spec    *HandlerSpec
	handler *handler.Handler // nil if the graph has no value for it
}

// provideHandler fetches an H from the graph. Where nil can mean "missing" it
// is optional, so that the error names inbox, channel and key instead of a
// function nobody has heard of.
func provideHandler[H any](spec *HandlerSpec, build func(H) *handler.Handler) func(group string) fx.Option {
	return func(group string) fx.Option {
		param := ""
		nilable := false
		switch reflect.TypeFor[H]().Kind() {
		case reflect.Pointer, reflect.Interface, reflect.Func, reflect.Map:
			param, nilable = `optional:"true"`, true
		}
		fetch := func(h H) graphHandlerValue {
			if v := reflect.ValueOf(&h).Elem(); nilable && v.IsNil() {
				return graphHandlerValue{spec: spec}
			}
			return graphHandlerValue{spec: spec, handler: build(h)}
		}
		return fx.Provide(fx.Annotate(fetch, fx.ParamTags(param), fx.ResultTags(fmt.Sprintf("group:%q", group))))
	}
}
