package inbox

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"go.uber.org/fx"

	"github.com/gorm-inbox/inbox/internal/registry"
)

// Inject declares options that are made from values of the Fx graph. As for fx.Invoke, the parameters of fn come from
// the graph; for names, groups and optional values use an fx.In struct. It returns an Option or []Option, and an error
// if it likes:
//
//	inbox.Inject(func(cfg *Config, m *Metrics) inbox.Option {
//		return inbox.Configure(func(o *inbox.Options) {
//			o.Processor = cfg.Inbox
//			o.Middleware = append(o.Middleware, m.Time)
//		})
//	})
//
// Module calls fn once, when Fx builds the inbox, and applies the returned options in its place among the others. A
// mistake in these options fails the start, and so does the error of fn, which errors.Is finds. A missing parameter
// also fails fx.ValidateApp.
//
// Do not use it for options that are known in code: a mistake there fails sooner. It cannot set UnnamedDB. Handlers
// that it declares take their values from its parameters, by Func or Tx with a method value: From does not work in it.
// Without Fx, declare the options directly (contract 10.2).
func Inject(fn any) Option {
	in := newInjection("inbox.Inject", fn, reflect.TypeFor[Option]())
	return func(c *config) {
		c.injects = true
		c.injections = append(c.injections, in)
		defer func(before bool) { c.injecting = before }(c.injecting)
		c.injecting = true
		applyAll(resultsOf[Option](in, c.values, &c.problems), c)
	}
}

// InjectChannel is Inject for one channel: fn returns a ChannelOption or []ChannelOption, such as Kafka with brokers
// and TLS from the application's configuration, or Inline with a store.
func InjectChannel(fn any) ChannelOption {
	in := newInjection("inbox.InjectChannel", fn, reflect.TypeFor[ChannelOption]())
	return func(c *channel) {
		c.injections = append(c.injections, in)
		defer func(before bool) { c.injecting = before }(c.injecting)
		c.injecting = true
		applyAll(resultsOf[ChannelOption](in, c.values, &c.problems), c)
	}
}

// Extend adds channels and handlers to the inbox of a Module elsewhere in the application, so that a feature's package
// can declare its own: by Channel, which no one else may declare, by Subscribe, and by Inject. Handlers' values, and
// what Inject takes, may be private to the feature's fx.Module. Options of the inbox are its Module's alone: Configure
// is an error here.
//
// A mistake fails as one in Module does. Without a Module of that name the start and fx.ValidateApp fail; so they do if
// a channel, a handler key or a consumer group is declared twice, by whomever (contract 10.2, 10.4).
func Extend(name string, opts ...Option) fx.Option {
	cfg := (&config{name: name, declared: opts, withFx: true, feature: true}).apply(nil)
	if err := cfg.validate(); err != nil {
		return fx.Error(err)
	}
	return fx.Module(cfg.label(), cfg.claim(), cfg.provideValues(), cfg.requireDeclared(),
		fx.Provide(fx.Annotated{Group: cfg.label(), Target: func() *config { return cfg }}))
}

// Extended says that channels of this inbox, or handlers of its channels, are declared by Extend in other packages. A
// module without channels, and a channel without handlers, is then an error at start only. Do not use it for an inbox
// that is complete without features: forgetting a handler would fail later (contract 10.2).
func Extended() Option { return func(c *config) { c.extended = true } }

// Subscribe adds handlers to a channel that is declared elsewhere: by Channel in the inbox's Module or in the Extend of
// another feature. It is On for that channel. The channel must be declared in code, not by what Inject returns
// (contract 10.2).
func Subscribe(channel, messageType string, handlers ...*HandlerSpec) Option {
	return func(c *config) {
		if messageType == registry.AnyType {
			c.problems = append(c.problems, noWildcard(channel, "Subscribe"))
		}
		for _, h := range handlers {
			c.added = append(c.added, addition{channel, subscription{messageType, h, c.injecting}})
		}
	}
}

// addition is a handler of a channel that is declared elsewhere.
type addition struct {
	channel string
	subscription
}

// subscribe moves the added handlers to their channels, as far as these are known.
func (cfg *config) subscribe() {
	cfg.added = slices.DeleteFunc(cfg.added, func(a addition) bool {
		for _, c := range cfg.channels {
			if c.name == a.channel {
				c.subscriptions = append(c.subscriptions, a.subscription)
				return true
			}
		}
		return false
	})
}

// all returns the channels, and for each added handler without its channel one that has only this handler.
func (cfg *config) all() []*channel {
	channels := slices.Clone(cfg.channels)
	for _, a := range cfg.added {
		channels = append(channels, &channel{name: a.channel, subscriptions: []subscription{a.subscription}})
	}
	return channels
}

func noChannel(name string) error {
	return fmt.Errorf("channel %q: inbox.Subscribe adds a handler, but no inbox.Channel in code declares it", name)
}

var errFeatureOptions = errors.New("inbox.Extend has inbox.Configure: set the inbox's options in its inbox.Module")

// injection is a function of Inject or InjectChannel.
type injection struct {
	what string // for errors
	fn   reflect.Value
	err  error // in the function's type
}

// injected is what the function returned. The error is a value, so that Fx does not prefix it.
type injected struct {
	from  *injection
	value reflect.Value // an option or a slice of options
	err   error
}

func newInjection(what string, fn any, option reflect.Type) *injection {
	in := &injection{what: what, fn: reflect.ValueOf(fn)}
	t := reflect.TypeOf(fn)
	ok := t != nil && t.Kind() == reflect.Func && !in.fn.IsNil() && !t.IsVariadic() &&
		(t.NumOut() == 1 || t.NumOut() == 2 && t.Out(1) == reflect.TypeFor[error]()) &&
		(t.Out(0) == option || t.Out(0) == reflect.SliceOf(option))
	if !ok {
		in.err = fmt.Errorf("%s(%T): must be a function, not nil and not variadic, that returns %s or []%[3]s, and an error if it likes",
			what, fn, option)
	}
	return in
}

// constructor returns the function, so that its result is an injected value.
func (in *injection) constructor() any {
	t := in.fn.Type()
	params := make([]reflect.Type, t.NumIn())
	for i := range params {
		params[i] = t.In(i)
	}
	return reflect.MakeFunc(reflect.FuncOf(params, []reflect.Type{reflect.TypeFor[injected]()}, false),
		func(args []reflect.Value) []reflect.Value {
			out := in.fn.Call(args)
			result := injected{from: in, value: out[0]}
			if len(out) == 2 {
				result.err, _ = out[1].Interface().(error)
			}
			return []reflect.Value{reflect.ValueOf(result)}
		}).Interface()
}

// resultsOf returns the options that the function returned, none while the graph is not known.
func resultsOf[O any](in *injection, values map[*injection]injected, problems *[]error) []O {
	if values == nil {
		return nil
	}
	result, called := values[in]
	switch {
	case !called:
		*problems = append(*problems, fmt.Errorf("%s within another one: take all values of the graph in the outer function",
			in.what))
	case result.err != nil:
		*problems = append(*problems, fmt.Errorf("%s: %w", in.what, result.err))
	default:
		if options, many := result.value.Interface().([]O); many {
			return options
		}
		return []O{result.value.Interface().(O)}
	}
	return nil
}

// validateInjections returns what is wrong with the functions of Inject and InjectChannel.
func (cfg *config) validateInjections() error {
	var problems []error
	for _, in := range cfg.injections {
		switch {
		case in.err != nil:
			problems = append(problems, in.err)
		case !cfg.withFx:
			problems = append(problems,
				fmt.Errorf("%s takes values of the Fx graph: without Fx declare what it returns directly", in.what))
		}
	}
	return errors.Join(problems...)
}

// provideValues makes Fx call the injections and give the values of handlers to the inbox.
func (cfg *config) provideValues() fx.Option {
	var parts []fx.Option
	for i, in := range cfg.injections {
		var place string
		for _, c := range cfg.channels {
			if slices.Contains(c.injections, in) {
				place = ", channel " + c.name
			}
		}
		function := runtime.FuncForPC(in.fn.Pointer()).Name()
		parts = append(parts, provideValue[injected](cfg, fmt.Sprintf("%s, %s %d: %s", place, in.what, i+1, function),
			in.constructor()))
	}
	for _, c := range cfg.all() {
		for _, s := range c.subscriptions {
			if s.spec.graph != nil {
				parts = append(parts, provideValue[graphHandler](cfg,
					fmt.Sprintf(", channel %s, type %s, handler %s", c.name, s.typ, s.spec.key), s.spec.graph.fetch))
			}
		}
	}
	return fx.Options(parts...)
}

// provideValue gives the inbox what the constructor makes. Fx prints the place in its error if the constructor fails or
// lacks a dependency. The named value is private, so that two features may have one of the same place.
func provideValue[T any](cfg *config, place string, constructor any) fx.Option {
	name := nameTag(cfg.label() + place)
	return fx.Options(
		fx.Provide(fx.Annotate(constructor, fx.ResultTags(name)), fx.Private),
		fx.Provide(fx.Annotate(func(value T) T { return value }, fx.ParamTags(name), fx.ResultTags(groupTag(cfg.label())))),
		fx.Invoke(fx.Annotate(requireGraph[T], fx.ParamTags(name))))
}

// resolved is an inbox's whole declaration, with the additions of features and the values of the graph.
type resolved struct {
	*config
	err error // why it is wrong; nil if it is not
}

// resolve adds the declarations of features and the values of the graph.
func (cfg *config) resolve(values []injected, features []*config) *resolved {
	if len(values)+len(features)+len(cfg.added) == 0 && !cfg.extended {
		return &resolved{config: cfg} // which has been validated
	}
	byFunction := map[*injection]injected{}
	for _, v := range values {
		byFunction[v.from] = v
	}
	full := cfg.apply(byFunction)
	if full.options.UnnamedDB != cfg.options.UnnamedDB {
		full.problems = append(full.problems, errors.New("option UnnamedDB is set within inbox.Inject: set it in code"))
	}
	var channels []*channel
	var added []addition
	for _, feature := range features {
		f := feature.apply(byFunction)
		for _, c := range f.channels {
			c.setOptions(full.options) // a feature declares no options
		}
		channels, added = append(channels, f.channels...), append(added, f.added...)
		full.problems = append(full.problems, f.problems...)
		full.injections = append(full.injections, f.injections...)
	}
	// Fx gives the features in random order.
	slices.SortFunc(channels, func(a, b *channel) int { return strings.Compare(a.name, b.name) })
	slices.SortStableFunc(added, func(a, b addition) int {
		return cmp.Or(strings.Compare(a.channel, b.channel), strings.Compare(a.typ, b.typ), strings.Compare(a.key(), b.key()))
	})
	slices.SortFunc(full.problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	full.channels, full.added = append(full.channels, channels...), append(full.added, added...)
	full.subscribe()
	return &resolved{full, full.validate()}
}

func (s subscription) key() string {
	if s.spec == nil {
		return ""
	}
	return s.spec.key
}

// These types mark what an application declares once. Each is in the graph under its name. So Fx, and fx.ValidateApp,
// refuses a second one and finds that one is missing.
type (
	declaredChannel struct{} // named after inbox and channel
	handlerKey      struct{} // the key, legacy keys too
	consumerGroup   struct{} // group@broker
	declaredBy      struct{} // named after what is declared and where
)

// claim puts the declarations in code into the graph. checkModule checks the results of Inject.
func (cfg *config) claim() fx.Option {
	var parts []fx.Option
	groups := map[string]bool{}
	for _, c := range cfg.channels {
		parts = append(parts, provideClaim[declaredChannel](cfg, cfg.channelName(c.name), c.name))
		for _, k := range c.kafka {
			for _, broker := range k.Brokers {
				if group := k.GroupID + "@" + broker; !groups[group] { // a broker may be listed twice
					groups[group] = true
					parts = append(parts, provideClaim[consumerGroup](cfg, group, c.name))
				}
			}
		}
	}
	for _, r := range registrations(cfg.name, cfg.all()) {
		parts = append(parts, provideClaim[handlerKey](cfg, r.Key, r.Channel))
	}
	return fx.Options(parts...)
}

// provideClaim provides a T of the name. If there is another one, Fx prints the names of both results in its error.
func provideClaim[T any](cfg *config, name, channel string) fx.Option {
	by := fmt.Sprintf("%T %s: give each its own. Declared by %s", *new(T), name, cfg.channelName(channel))
	return fx.Provide(fx.Annotate(func() (claim T, by declaredBy) { return }, fx.ResultTags(nameTag(name), nameTag(by))))
}

// requireDeclared makes Fx fail if the inbox, or a channel that handlers are added to, is not declared.
func (cfg *config) requireDeclared() fx.Option {
	var parts []fx.Option
	if cfg.feature {
		parts = append(parts, fx.Invoke(fx.Annotate(requireGraph[*declaredInbox], fx.ParamTags(nameTag(cfg.name)))))
	}
	for _, a := range cfg.added {
		name := nameTag(cfg.channelName(a.channel))
		parts = append(parts, fx.Invoke(fx.Annotate(requireGraph[declaredChannel], fx.ParamTags(name))))
	}
	return fx.Options(parts...)
}

// requireGraph makes Fx build a T, so that its error is about T alone and not about all that T is part of.
func requireGraph[T any](T) {}

// label returns the inbox's name for the Fx graph's errors.
func (cfg *config) label() string { return strings.TrimSpace("inbox " + cfg.name) }

// channelName returns a channel's name for the Fx graph's errors.
func (cfg *config) channelName(channel string) string { return cfg.label() + ", channel " + channel }

func groupTag(group string) string { return fmt.Sprintf("group:%q", group) }

// nameTag returns the Fx tag of a name, "" for no name.
func nameTag(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf("name:%q", name)
}
