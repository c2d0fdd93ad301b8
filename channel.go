package inbox

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// channel is a stream of messages as it was declared: where they come from
// and which handlers take which types.
type channel struct {
	name          string
	subscriptions []subscription
	kafka         []kafkaconsumer.Config // more than one is an error
	delivery      delivery
	modes         []delivery // as declared; more than one is an error
	inline        *inlining  // nil unless it is in Inline mode
	namespaces    []string   // as declared by IDNamespace; more than one is an error
	withoutInbox  bool       // ConsumeChannelInboxRequirement does not apply
}

type subscription struct {
	typ  string
	spec *HandlerSpec
}

// ChannelOption declares one thing about a channel.
type ChannelOption func(*channel)

// Channel declares a channel: its handlers by On, and its transport, if it
// has one. A channel without a transport takes what the application accepts
// by Accept and AcceptTx. A channel needs at least one handler.
//
// Message IDs are unique within the channel: whoever may write to one of its topics
// may take the others' IDs, so give topics of other producers a channel of their
// own. Do not change the name without IDNamespace, which keeps what is stored known.
func Channel(name string, opts ...ChannelOption) Option {
	c := &channel{name: name}
	for _, o := range opts {
		if o != nil {
			o(c)
		}
	}
	return func(cfg *config) { cfg.channels = append(cfg.channels, c) }
}

// On gives the channel's messages of one type to handlers; each gets its own
// status row and fails, retries and completes by itself (contract 4.2).
func On(messageType string, handlers ...*HandlerSpec) ChannelOption {
	return func(c *channel) {
		for _, h := range handlers {
			c.subscriptions = append(c.subscriptions, subscription{messageType, h})
		}
	}
}

// Kafka makes the channel consume Kafka topics: records are persisted before
// their offsets are committed, or with Inline and Direct handled (contract 7).
// Fields of cfg left zero get their defaults. A broker that is down or a topic that is missing does not fail the
// start: it is logged, shown by Health and waited for.
func Kafka(cfg kafkaconsumer.Config) ChannelOption {
	return func(c *channel) { c.kafka = append(c.kafka, cfg) }
}

// IDNamespace has the channel share its message IDs with every channel that names
// the same namespace: a message that came on one of them is a duplicate on the
// others, which adds their handlers, and those run the content that came first.
// Every channel that shares has to say so. By default each channel has IDs of its
// own, and the same ID on two channels is two messages (contract 4.4).
//
// It is also how a channel gets another name: with its old name as the namespace it
// still knows what it has stored, in Inline mode too. Only channels that store their
// messages can share: several of a namespace with an Inline channel among them, and
// Direct, are errors. IDs made of a correlation ID or a Kafka key begin with the
// channel's name, and are never the same on two channels.
//
// Do not share IDs between channels that different parties may write to: who
// writes to one chooses what the other's handlers run, and has the true message
// taken for a duplicate. Nor give a namespace that is a channel's name in another
// program of the inbox: a start sees the channels of its own program alone. Do not
// change a channel's namespace later: what comes again is then new.
func IDNamespace(name string) ChannelOption {
	return func(c *channel) { c.namespaces = append(c.namespaces, name) }
}

// idNamespace is where the channel's message IDs are unique.
func (c *channel) idNamespace() string {
	if len(c.namespaces) > 0 {
		return c.namespaces[0]
	}
	return c.name
}

// sharedNamespaces are those of the channels whose IDs are not their own.
func sharedNamespaces(channels []*channel) map[string]string {
	shared := map[string]string{}
	for _, c := range channels {
		if len(c.namespaces) > 0 {
			shared[c.name] = c.namespaces[0]
		}
	}
	return shared
}

// namespaceProblems lists what is wrong with IDNamespace. That a channel shares
// IDs is never another's declaration alone.
func (c *channel) namespaceProblems(channels []*channel) []error {
	var problems []error
	if len(c.namespaces) > 1 {
		problems = append(problems, fmt.Errorf("channel %q has inbox.IDNamespace twice", c.name))
	}
	for _, name := range c.namespaces {
		if !isName(name) {
			problems = append(problems, fmt.Errorf("channel %q: inbox.IDNamespace %q is not %s", c.name, name, nameRule))
		}
		if c.delivery == direct {
			problems = append(problems,
				fmt.Errorf("channel %q is in %s mode, where inbox.IDNamespace has nothing to share: leave it out", c.name, direct))
			continue
		}
		for _, other := range channels {
			switch {
			case other == c:
			case other.name == name && len(other.namespaces) == 0:
				problems = append(problems,
					fmt.Errorf("channel %q shares the IDs of channel %q, which does not say so: give both inbox.IDNamespace(%q)",
						c.name, name, name))
			case other.name == name && other.idNamespace() != name:
				problems = append(problems,
					fmt.Errorf("channel %q: inbox.IDNamespace is the name of channel %q, whose IDs are in namespace %q: give another",
						c.name, name, other.idNamespace()))
			case other.idNamespace() == name && c.delivery == inlined:
				problems = append(problems,
					fmt.Errorf("channel %q is in %s mode and names the namespace %q, as channel %q does: it shares nothing with another channel, give it a namespace of its own",
						c.name, inlined, name, other.name))
			}
		}
	}
	return problems
}

// nameRule is what isName holds a name to: it is stored with every message.
const nameRule = "1 to 200 characters of valid UTF-8 without NUL"

func isName(name string) bool { return name != "" && store.CheckText(name, columns.MaxChannel) == nil }

// HandlerSpec declares one handler: made by Func, Tx, Batch or TxBatch, or for
// a value of the Fx graph by From, FromTx, FromBatch or FromTxBatch.
type HandlerSpec struct {
	key string
	// handler is what was declared. With graph it has options and kind only: its
	// function comes with the value.
	handler *handler.Handler
	graph   *fromGraph // nil unless the value comes from the Fx graph
}

// Func declares a plain handler: a function or a method value, safe for
// concurrent use. Its effects happen at least once; use Tx for writes to the
// inbox's own database. The key stays the same for ever, or becomes a legacy
// key: stored statuses belong to it.
func Func[T any](
	key string, fn func(ctx context.Context, m handler.Message[T]) error, opts ...handler.Option,
) *HandlerSpec {
	return &HandlerSpec{key: key, handler: handler.New(key, fn, opts...)}
}

// Tx declares a transactional handler: what it writes through tx happens
// exactly once. Do not use it for calls to other services: the transaction
// lasts as long as they do (contract 5.11).
func Tx[T any](
	key string, fn func(ctx context.Context, tx *gorm.DB, m handler.Message[T]) error, opts ...handler.Option,
) *HandlerSpec {
	return &HandlerSpec{key: key, handler: handler.NewTx(key, fn, opts...)}
}

// From declares a plain handler whose value of type H comes from the Fx
// graph. Without Fx use Func with a method value.
func From[H interface {
	Handle(context.Context, handler.Message[T]) error
}, T any](key string, opts ...handler.Option) *HandlerSpec {
	return graphSpec(func(h H) *handler.Handler { return handler.New(key, h.Handle, opts...) },
		handler.New(key, func(context.Context, handler.Message[T]) error { return nil }, opts...))
}

// FromTx declares a transactional handler whose value of type H comes from
// the Fx graph. Without Fx use Tx with a method value.
func FromTx[H interface {
	Handle(context.Context, *gorm.DB, handler.Message[T]) error
}, T any](key string, opts ...handler.Option) *HandlerSpec {
	return graphSpec(func(h H) *handler.Handler { return handler.NewTx(key, h.Handle, opts...) },
		handler.NewTx(key, func(context.Context, *gorm.DB, handler.Message[T]) error { return nil }, opts...))
}

// Batch declares a plain handler that takes up to size messages in one call,
// see handler.NewBatch. Do not use it where messages have nothing to share: it
// only makes failures wider.
func Batch[T any](
	key string, size int, fn func(ctx context.Context, batch []handler.Message[T]) error, opts ...handler.Option,
) *HandlerSpec {
	return &HandlerSpec{key: key, handler: handler.NewBatch(key, size, fn, opts...)}
}

// TxBatch declares a transactional handler that takes up to size messages in
// one call, see handler.NewTxBatch. Do not use it for calls to other services.
func TxBatch[T any](key string, size int, fn func(ctx context.Context, tx *gorm.DB, batch []handler.Message[T]) error,
	opts ...handler.Option,
) *HandlerSpec {
	return &HandlerSpec{key: key, handler: handler.NewTxBatch(key, size, fn, opts...)}
}

// FromBatch declares a plain batch handler whose value of type H comes from
// the Fx graph. Without Fx use Batch with a method value.
func FromBatch[H interface {
	HandleBatch(context.Context, []handler.Message[T]) error
}, T any](key string, size int, opts ...handler.Option) *HandlerSpec {
	return graphSpec(func(h H) *handler.Handler { return handler.NewBatch(key, size, h.HandleBatch, opts...) },
		handler.NewBatch(key, size, func(context.Context, []handler.Message[T]) error { return nil }, opts...))
}

// FromTxBatch declares a transactional batch handler whose value of type H
// comes from the Fx graph. Without Fx use TxBatch with a method value.
func FromTxBatch[H interface {
	HandleBatch(context.Context, *gorm.DB, []handler.Message[T]) error
}, T any](key string, size int, opts ...handler.Option) *HandlerSpec {
	return graphSpec(func(h H) *handler.Handler { return handler.NewTxBatch(key, size, h.HandleBatch, opts...) },
		handler.NewTxBatch(key, size, func(context.Context, *gorm.DB, []handler.Message[T]) error { return nil }, opts...))
}

// graphSpec declares a handler whose value the graph provides; declared is it
// without that value.
func graphSpec[H any](build func(H) *handler.Handler, declared *handler.Handler) *HandlerSpec {
	spec := &HandlerSpec{key: declared.Key(), handler: declared}
	spec.graph = newFromGraph(spec, build)
	return spec
}

// validateChannels reports what is wrong with the channels themselves. What
// handlers and transports are given is for others to check.
func (cfg *config) validateChannels() error {
	if len(cfg.channels) == 0 {
		return errors.New("it has no channels: declare them with inbox.Channel")
	}
	var problems []error
	seen := map[string]bool{}
	for _, c := range cfg.channels {
		problems = append(problems, c.namespaceProblems(cfg.channels)...)
		if !isName(c.name) {
			problems = append(problems, fmt.Errorf("channel %q: the name is not %s", c.name, nameRule))
		}
		if seen[c.name] {
			problems = append(problems, fmt.Errorf("channel %q is declared twice", c.name))
		}
		seen[c.name] = true
		if len(c.kafka) > 1 {
			problems = append(problems, fmt.Errorf("channel %q has inbox.Kafka twice: list all topics in one", c.name))
		}
		if len(c.subscriptions) == 0 {
			problems = append(problems, fmt.Errorf("channel %q has no handlers: declare them with inbox.On", c.name))
		}
		for _, s := range c.subscriptions {
			switch {
			case s.spec == nil:
				problems = append(problems, fmt.Errorf("channel %q, type %q: a handler is nil", c.name, s.typ))
			case s.spec.graph != nil && !cfg.withFx:
				problems = append(problems,
					fmt.Errorf("channel %q, type %q, handler %q: it comes from the Fx graph (%s); without Fx use inbox.Func or inbox.Tx",
						c.name, s.typ, s.spec.key, s.spec.graph.typ))
			}
		}
	}
	return errors.Join(problems...)
}

// subscriptionsOf turns declarations into subscriptions. Handlers that come
// from the Fx graph are those of resolved, or as declared if it has none.
func subscriptionsOf(channels []*channel, resolved map[*HandlerSpec]*handler.Handler) []registry.Subscription {
	var subs []registry.Subscription
	for _, c := range channels {
		for _, s := range c.subscriptions {
			if s.spec == nil {
				continue
			}
			h := s.spec.handler
			if r := resolved[s.spec]; r != nil {
				h = r
			}
			subs = append(subs, registry.Subscription{Channel: c.name, Type: s.typ, Handler: h})
		}
	}
	return subs
}

// registrations lists the handler keys of an inbox for registry.CheckKeys.
func registrations(inbox string, channels []*channel) []registry.Registration {
	var all []registry.Registration
	for _, c := range channels {
		for _, s := range c.subscriptions {
			if s.spec == nil {
				continue
			}
			for i, key := range s.spec.handler.Keys() {
				all = append(all, registry.Registration{Inbox: inbox, Channel: c.name, Type: s.typ, Key: key, Legacy: i > 0})
			}
		}
	}
	return all
}
