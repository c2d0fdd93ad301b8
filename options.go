package inbox

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/processor"
	"github.com/gorm-inbox/inbox/redact"
)

// Options are an inbox's settings that can come from a file or from the
// environment (contract 9). Start from DefaultOptions, unmarshal YAML over it
// (keys in snake_case, durations like "30s") or parse the environment over it
// with a library that reads `env` tags, and pass the result to WithOptions.
type Options struct {
	Processor processor.Options `yaml:",inline"`
	Acceptor  acceptor.Options  `yaml:",inline"`
	Cleanup   cleanup.Options   `yaml:",inline"`
	Delivery  DeliveryOptions   `yaml:",inline"`
	Health    HealthOptions     `yaml:",inline"`

	// ShutdownOnHalt ends the Fx application when a partition halts. Default
	// off: it stays alive, and Health().Degraded() says so (contract 7.4).
	ShutdownOnHalt bool `yaml:"shutdown_on_halt" env:"SHUTDOWN_ON_HALT"`
	// Migrate creates or updates the tables at start. Default off: Start
	// then fails if they are missing or old.
	Migrate bool `yaml:"migrate" env:"MIGRATE"`
	// Schema is the PostgreSQL schema of the tables. Default: the
	// connection's search path.
	Schema string `yaml:"schema" env:"SCHEMA"`
	// TablePrefix begins every table's name. Default "inbox_".
	TablePrefix string `yaml:"table_prefix" env:"TABLE_PREFIX"`
}

// DefaultOptions returns the defaults of contract 9.
func DefaultOptions() Options {
	return Options{
		Processor: processor.DefaultOptions(), Acceptor: acceptor.DefaultOptions(), Cleanup: cleanup.DefaultOptions(),
		Delivery:    defaultDeliveryOptions(),
		Health:      defaultHealthOptions(),
		TablePrefix: models.DefaultPrefix,
	}
}

// resolve fills in what depends on other options.
func (o Options) resolve() Options {
	o.Acceptor.StatementTimeout = o.Processor.StatementTimeout
	o.Acceptor.Retention = o.Cleanup.Retention
	return o
}

// Validate reports every option that is out of range, joined, each by name
// with its value and what is allowed.
func (o Options) Validate() error {
	if o == (Options{}) {
		return errors.New("options are zero: start from inbox.DefaultOptions()")
	}
	all := append(o.Processor.Validate(), o.Cleanup.Validate()...)
	all = append(all, o.Delivery.problems()...)
	all = append(all, o.Health.problems()...)
	all = append(all, o.Acceptor.Validate())
	for _, n := range []struct {
		option string
		naming models.Naming
	}{{"Schema", models.Naming{Schema: o.Schema}}, {"TablePrefix", models.Naming{Prefix: o.TablePrefix}}} {
		if err := n.naming.Validate(); err != nil {
			all = append(all, fmt.Errorf("option %s: %w", n.option, err))
		}
	}
	return errors.Join(all...)
}

// Option adjusts an inbox. Options are applied in order.
type Option func(*config)

// config is everything a user declares about one inbox.
type config struct {
	name      string
	unnamedDB bool
	options   Options
	channels  []*channel
	logger    *zap.Logger
	clock     Clock
	hooks     handler.Hooks
	archive   cleanup.Archive
	// middleware and backoff are the inbox's own, handlers may have more.
	middleware []handler.Middleware
	backoff    func(errorCount int) time.Duration
	redactor   redaction.Redactor
	manual     bool
	// Of OpenTelemetry; nil is the global one.
	meterProvider  metric.MeterProvider
	tracerProvider trace.TracerProvider
	propagator     propagation.TextMapPropagator
	withFx         bool // it is declared by Module
	// shutdown ends the Fx application; nil without Fx.
	shutdown func(exitCode int) error
}

// Clock tells the time that due times, backoff and thresholds are judged by.
type Clock = clock.Clock

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

func newConfig(name string, opts []Option) *config {
	c := &config{name: name, options: DefaultOptions(), clock: clock.System{}}
	for _, o := range opts {
		if o != nil {
			o(c)
		}
	}
	return c
}

// validate reports all that can be said of a declaration without its database
// and the values of its Fx graph, joined, each part naming the inbox. It is the
// one place that does: what comes after it may rely on it (contract 9, 10.4).
func (cfg *config) validate() error {
	var all []error
	if cfg.name != "" && !validName.MatchString(cfg.name) {
		all = append(all,
			errors.New("the name is not 1 to 100 letters, digits, dots, dashes or underscores, beginning with a letter or digit"))
	}
	if slices.ContainsFunc(cfg.middleware, func(m handler.Middleware) bool { return m == nil }) {
		all = append(all, errors.New("option Use: a middleware is nil"))
	}
	all = append(all, cfg.options.Validate())
	if cfg.options.ShutdownOnHalt && !cfg.withFx {
		all = append(all, errNoShutdown)
	}
	subs := subscriptionsOf(cfg.channels, nil)
	_, err := handler.NewRegistry(subs)
	all = append(all, cfg.validateChannels(), handler.CheckKeys(registrations(cfg.name, cfg.channels)), err,
		cfg.validateDelivery(subs), cfg.validateKafka(), checkGroups(memberships(cfg.name, cfg.channels)))
	return cfg.named(errors.Join(all...))
}

// named puts the inbox's name before each part of err.
func (cfg *config) named(err error) error {
	return problems.Prefix(fmt.Sprintf("inbox %q: ", cfg.name), err)
}

// WithOptions replaces all settings by o, for example loaded from a file;
// options after it still apply. Do not pass a struct that did not start from
// DefaultOptions: zero values are values.
func WithOptions(o Options) Option { return func(c *config) { c.options = o } }

// WithLogger sets the zap logger; without it, New logs nothing and Module
// uses the Fx graph's *zap.Logger if there is one.
func WithLogger(log *zap.Logger) Option { return func(c *config) { c.logger = log } }

// WithClock replaces the system clock, for tests. Do not use it to shift time
// in production: workers of one inbox must agree on it (contract 3.5).
func WithClock(clock Clock) Option { return func(c *config) { c.clock = clock } }

// WithHooks calls the application on events. Do not use hooks for effects
// that must happen: a crash can lose the call (contract 10.6).
func WithHooks(h handler.Hooks) Option { return func(c *config) { c.hooks = h } }

// Use runs middleware around the calls of every handler of the inbox, the
// first outermost, outside the handlers' own (handler.Use). Do not use it for
// what must happen exactly once: it runs with every attempt (contract 5.13).
func Use(middleware ...handler.Middleware) Option {
	return func(c *config) { c.middleware = append(c.middleware, middleware...) }
}

// Redact has hook replace each value that may hold a secret before anybody sees it: the
// texts of errors before they are stored, logged, traced and published in dead
// letters, in every delivery mode, and payloads, keys, headers and attributes before
// Inbox.Ops, and so the dashboard, shows or searches them. Given several times, each
// hook gets what the one before has left. redact.Common hides card numbers and
// credentials. Default none: passwords of URLs and DSNs in errors are masked in any
// case, nothing else is.
//
// If the hook panics, a note is stored and shown in the value's place, and what was done
// is done. Rows keep payloads, keys and headers as they came, and so do dead letters:
// handlers, Replay and AcceptRejected need them. The application's own functions (Hooks,
// OnHalt, OnDeadLetter) and the errors that Health holds are not redacted. Message IDs,
// types, sources, handler keys and topics never are: do not use it in place of keeping
// secrets out of them (contract 11.6).
func Redact(hook redact.Hook) Option {
	return func(c *config) { c.redactor = c.redactor.Then(hook) }
}

// Backoff replaces the exponential backoff of all handlers without one of
// their own (handler.Backoff): delay tells the wait after a failure, given the
// error count with it. MaxRetryDelay does not cap it. It is called
// concurrently; a panic falls back to the exponential one. Do not return a
// constant: messages that failed together would come back together
// (contract 5.6).
func Backoff(delay func(errorCount int) time.Duration) Option {
	return func(c *config) { c.backoff = delay }
}

// UnnamedDB makes Module take the graph's unnamed *gorm.DB although the inbox
// has a name. Do not use it where several databases are in the graph: name
// them (contract 10.2). New ignores it.
func UnnamedDB() Option { return func(c *config) { c.unnamedDB = true } }

// Migrate creates or updates the tables at start. It is safe with any number
// of replicas. Do not use it where the application's database user may not
// change the schema: have the SQL of models.SQL run instead.
func Migrate() Option { return func(c *config) { c.options.Migrate = true } }

// Schema puts the tables into this PostgreSQL schema. Do not set it on SQLite.
func Schema(name string) Option { return func(c *config) { c.options.Schema = name } }

// TablePrefix begins every table's name, so that two inboxes can share a
// database. Do not change it for an inbox that has messages: they stay under
// the old names. Default "inbox_".
func TablePrefix(prefix string) Option { return func(c *config) { c.options.TablePrefix = prefix } }
