package inbox

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/logging"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/settings"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/outgoing"
	"github.com/gorm-inbox/inbox/processor"
	"github.com/gorm-inbox/inbox/redact"
)

// Options are an inbox's settings. Configure sets them in code. Those with a key can also come from a file or the
// environment: start from DefaultOptions, unmarshal YAML over it (keys in snake_case, all on one level; durations like
// "30s") or parse the environment over it with a library that reads `env` tags, and assign the result in Configure
// (contract 9). Have the library refuse unknown keys, as docs/options.md shows. A zero Options is an error at start.
type Options struct {
	// Processor holds how handlers run.
	Processor processor.Options `yaml:",inline"`
	// Acceptor says how to treat records that are no message for a handler.
	Acceptor acceptor.Options `yaml:",inline"`
	// Cleanup says which rows are kept, and for how long.
	Cleanup cleanup.Options `yaml:",inline"`

	// Migrate creates or updates the tables at start; without it Start fails if they are missing or old. Any number of
	// replicas may migrate at once. Do not use it where the application's database user may not change the schema: run
	// the SQL of models.SQL instead. Default off.
	Migrate bool `yaml:"migrate" env:"MIGRATE"`
	// Schema puts the tables into this schema, or on MySQL and MariaDB into this database. Do not set it on SQLite.
	// Default: the connection's search path or database.
	Schema string `yaml:"schema" env:"SCHEMA"`
	// TablePrefix begins every table's name, so that two inboxes can share a database. Do not change it for an inbox
	// that has messages: they stay under the old names. Default "inbox_".
	TablePrefix string `yaml:"table_prefix" env:"TABLE_PREFIX"`
	// PortableSQL makes the store on PostgreSQL send only statements that engines with its protocol understand, too. A
	// start and inboxctl choose so by themselves where the server says that it is not PostgreSQL. Do not use it on
	// PostgreSQL itself: claims take longer, no notifications pass, and the locks of a lost host stay until the server
	// ends its session. Elsewhere it does nothing. Default off (contract 3.4).
	PortableSQL bool `yaml:"portable_sql" env:"PORTABLE_SQL"`
	// UnnamedDB makes Module take the graph's unnamed *gorm.DB although the inbox has a name. New ignores it. Do not
	// use it where the graph has several databases: name them. Default off (contract 10.2).
	UnnamedDB bool `yaml:"-" env:"-"`

	// ShutdownOnHalt ends the Fx application with exit code 1 when a partition halts, for any reason: a bad record
	// under acceptor.BadRecordHalt, an offset out of range, or records that cannot be read. Without it the application
	// stays alive, the other partitions continue, and Health().Degraded() names the halted one. Do not use it where a
	// supervisor only restarts the application: it would halt again at the same record, and nothing else would run
	// either. It requires Fx; without Fx use OnHalt of kafkaconsumer.Config. Default off (contract 7.4).
	ShutdownOnHalt bool `yaml:"shutdown_on_halt" env:"SHUTDOWN_ON_HALT"`
	// ConsumeChannelInboxRequirement says whether Kafka channels may do without an inbox: RequirementNone,
	// RequirementWarn, which logs each at start, or RequirementFail, which fails the start unless the channel declares
	// AllowConsumeWithoutInbox. Do not set Fail to forbid a single channel what its own declaration says. Default
	// RequirementNone (contract 7.7).
	ConsumeChannelInboxRequirement InboxRequirement `yaml:"consume_channel_inbox_requirement" env:"CONSUME_CHANNEL_INBOX_REQUIREMENT"`
	// PartitionConcurrency is how many partitions of an Inline or Direct channel may run a handler at once. A partition
	// that waits for its next attempt needs no slot. Do not set it above what the database pool can serve beside
	// Concurrency. Default 10 (contract 7.6).
	PartitionConcurrency int `yaml:"partition_concurrency" env:"PARTITION_CONCURRENCY"`

	// SampleInterval is the time between queries for what is due, processing and poisoned, for Health and the gauges.
	// Each process queries, and counts at most ten thousand rows per handler. Do not shorten it to see more: lengthen
	// it where hundreds of processes share an inbox. Default 15 s (contract 11.5, 12).
	SampleInterval time.Duration `yaml:"sample_interval" env:"SAMPLE_INTERVAL"`
	// HealthDegradedAfter is how long no attempt may end in this process while work is due before it is degraded. Do
	// not set it below what the slowest handlers take: while they fill all slots, no attempt ends. Default 2 m
	// (contract 11.5).
	HealthDegradedAfter time.Duration `yaml:"health_degraded_after" env:"HEALTH_DEGRADED_AFTER"`
	// HealthUnhealthyAfter is how long no attempt may end in this process while work is due before it is unhealthy.
	// Such a process is not ready, and if it runs nothing at all it is not live either. Do not set it below
	// HealthDegradedAfter. Default 5 m (contract 11.5).
	HealthUnhealthyAfter time.Duration `yaml:"health_unhealthy_after" env:"HEALTH_UNHEALTHY_AFTER"`
	// HealthMaxDueAge is how long a status may be due, while this process runs, before health degrades; 0 is no limit.
	// It never makes a process unready: others would get its work. Do not set it for inboxes that are filled in bulk
	// and worked off over hours. Default 15 m (contract 11.5).
	HealthMaxDueAge time.Duration `yaml:"health_max_due_age" env:"HEALTH_MAX_DUE_AGE"`
	// HealthMaxPoisonRate is the fraction of poisoned statuses, among those that ended in this process within five
	// minutes, above which health degrades, if at least ten are poisoned; 1 is never. Single bad messages are normal and
	// get poisoned, so do not lower it to learn of each: alert on inbox.backlog.poisoned. Default 0.1 (contract 11.5).
	HealthMaxPoisonRate float64 `yaml:"health_max_poison_rate" env:"HEALTH_MAX_POISON_RATE"`
	// LongRunning is how long a call of a handler may run, in any delivery mode, before health degrades and the log
	// names it; 0 is no limit. A handler with a longer timeout gets that time. The call itself goes on: HandlerTimeout
	// ends it. Do not raise it for a handler that is slow by nature: give that one a handler.Timeout. Default 5 m
	// (contract 5.4, 11.5).
	LongRunning time.Duration `yaml:"long_running" env:"LONG_RUNNING"`

	// Backoff replaces the exponential backoff of all handlers without handler.Backoff: it returns the wait after a
	// failure, given the error count with it. MaxRetryDelay does not cap it. It is called concurrently. After a panic
	// the exponential backoff applies. Do not return a constant: messages that failed together would come back
	// together. Default nil (contract 5.6).
	Backoff func(errorCount int) time.Duration `yaml:"-" env:"-"`
	// Middleware runs around the calls of every handler of the inbox, the first outermost, outside the handlers' own
	// (handler.Use). Do not use it for effects that must happen exactly once: it runs with every attempt. Default none
	// (contract 5.13).
	Middleware []handler.Middleware `yaml:"-" env:"-"`
	// Hooks are called on events. Do not use them for effects that must happen: a crash can lose the call. Default none
	// (contract 10.6).
	Hooks handler.Hooks `yaml:"-" env:"-"`
	// Archive is called by cleanup with messages and their statuses before it deletes them; its error keeps them. See
	// cleanup.Archive for the rules that it must follow. Do not use it for effects that each message must have: rows
	// come late, and more than once. Default nil (contract 6.3).
	Archive cleanup.Archive `yaml:"-" env:"-"`
	// Redact replaces each value that may hold a secret before anyone sees it: the texts of errors before they are
	// stored, logged, traced and published in dead letters, in every delivery mode, and payloads, keys, headers and
	// attributes before Inbox.Ops, and so the dashboard, shows or searches them. redact.Common hides card numbers and
	// credentials. Default nil: passwords of URLs and DSNs in errors are masked in any case, nothing else is.
	//
	// If the hook panics, a note is stored and shown in the value's place, and the operation succeeds all the same.
	// Rows and dead letters keep payloads, keys and headers unaltered, because handlers, Replay and AcceptRejected need
	// them. The application's own functions (Hooks, OnHalt, OnDeadLetter) and the errors in Health are not redacted.
	// Message IDs, types, sources, handler keys and topics never are: do not use it in place of keeping secrets out of
	// them (contract 11.6).
	Redact redact.Hook `yaml:"-" env:"-"`

	// Sealer changes how contents are stored: encrypted, compressed, or elsewhere with a claim check. It seals each
	// message's content before it is stored, and opens it before a handler gets it; and the values of rejected records.
	// Its methods see the channel, so it may seal those of some alone; for contents of Inline and Direct channels, which
	// are not stored, it does nothing. Set it in all processes of the inbox before messages are sealed: without it sealed
	// ones wait, and programs of before v0.2 take them for plain ones. Do not use it to hide keys, headers, attributes,
	// types or error texts: these stay as they are. Default nil, contents are stored plain (contract 15).
	Sealer handler.Sealer `yaml:"-" env:"-"`

	// Ops changes the options of the *ops.Ops that Inbox.Ops returns and Module provides. Do not use it for a single
	// dashboard: that call of Inbox.Ops can. Default nil (contract 10.2, 11.1).
	Ops func(o *ops.Options) `yaml:"-" env:"-"`

	// Logger is the zap logger; Slog makes one of a *slog.Logger. Do not set zap.NewNop() outside of tests: an inbox that
	// is broken then says nothing. Default nil: Module uses the Fx graph's *zap.Logger or *slog.Logger if there is one,
	// and otherwise warnings and errors go to the standard error (contract 12).
	Logger *zap.Logger `yaml:"-" env:"-"`
	// Clock replaces the system clock, for tests. Do not use it to shift time in production: workers of one inbox must
	// agree on it. A start warns of one that is more than a minute from the system's. Default nil, the system's (contract
	// 3.5).
	Clock Clock `yaml:"-" env:"-"`
	// MeterProvider receives the inbox's metrics. Do not set it where the Fx graph has a metric.MeterProvider, which
	// Module uses, or where the application sets OpenTelemetry's global one (otel.SetMeterProvider): that is used
	// otherwise, and does nothing until it is set, before or after the inbox is made.
	//
	// Counters are exported from New on, gauges between Start and Stop. Each process samples the database's gauges
	// every SampleInterval, and all show the same: take their maximum, not their sum (contract 12).
	MeterProvider metric.MeterProvider `yaml:"-" env:"-"`
	// TracerProvider receives the inbox's spans: one of each accept, of one message or of a batch, and one of each
	// attempt, linked to it. Do not set it where the Fx graph has a trace.TracerProvider, which Module uses, or where
	// the application sets OpenTelemetry's global one (otel.SetTracerProvider), which is used otherwise. The provider
	// decides what is sampled. With full sampling, each
	// attempt makes a span and each message stores a hundred more bytes (contract 12).
	TracerProvider trace.TracerProvider `yaml:"-" env:"-"`
	// Propagator reads the producer's context from a message's headers, so that attempts continue its trace. An
	// unreadable context begins a new trace. Default: Module uses the Fx graph's propagation.TextMapPropagator if there
	// is one, without its baggage; otherwise propagation.TraceContext{} (traceparent and tracestate), never
	// OpenTelemetry's global one. Set it for producers that send their context in another format. It gets no value of
	// more than 8 KiB. Do not let it read baggage (propagation.Baggage{}, which the global one of most applications
	// has) unless you trust every producer: anyone who may write to the topic then decides what handlers, and the
	// services they call, find in their context, such as a role or a tenant (contract 12).
	Propagator propagation.TextMapPropagator `yaml:"-" env:"-"`
}

// Slog returns a logger for Options.Logger, and the loggers of other packages of this module, that writes to log:
//
//	o.Logger = inbox.Slog(slog.Default())
//
// Levels correspond by name, and zap's namespaces are groups. log decides which levels are written. For nil it returns
// nil.
func Slog(log *slog.Logger) *zap.Logger {
	if log == nil {
		return nil
	}
	return logging.Slog(log.Handler())
}

// InboxRequirement says whether channels may consume without an inbox.
type InboxRequirement string

// The values of Options.ConsumeChannelInboxRequirement.
const (
	RequirementNone InboxRequirement = "none"
	RequirementWarn InboxRequirement = "warn"
	RequirementFail InboxRequirement = "fail"
)

// DefaultOptions returns the defaults of contract 9.
func DefaultOptions() Options {
	return Options{
		Processor: processor.DefaultOptions(), Acceptor: acceptor.DefaultOptions(), Cleanup: cleanup.DefaultOptions(),
		TablePrefix: columns.DefaultPrefix, ConsumeChannelInboxRequirement: RequirementNone, PartitionConcurrency: 10,
		SampleInterval: 15 * time.Second, HealthDegradedAfter: 2 * time.Minute, HealthUnhealthyAfter: 5 * time.Minute,
		HealthMaxDueAge: 15 * time.Minute, HealthMaxPoisonRate: 0.1, LongRunning: 5 * time.Minute,
	}
}

// Validate returns all options that are out of range, joined. Each error names the option, its value and what is
// allowed.
func (o Options) Validate() error {
	if o.Processor == (processor.Options{}) && o.Acceptor == (acceptor.Options{}) && o.Cleanup == (cleanup.Options{}) {
		return errors.New("options are zero: start from inbox.DefaultOptions()")
	}
	all := append(o.Processor.Validate(), o.Cleanup.Validate()...)
	refuse := func(name string, value any, allowed string) {
		all = append(all, fmt.Errorf("option %s = %v: must be %s", name, value, allowed))
	}
	switch o.ConsumeChannelInboxRequirement {
	case RequirementNone, RequirementWarn, RequirementFail:
	default:
		all = append(all, fmt.Errorf("option ConsumeChannelInboxRequirement = %q: must be none, warn or fail",
			o.ConsumeChannelInboxRequirement))
	}
	if o.PartitionConcurrency < 1 {
		refuse("PartitionConcurrency", o.PartitionConcurrency, "1 or more")
	}
	if o.SampleInterval <= 0 {
		refuse("SampleInterval", o.SampleInterval, "more than 0")
	}
	if o.HealthDegradedAfter <= o.SampleInterval {
		refuse("HealthDegradedAfter", o.HealthDegradedAfter, fmt.Sprintf("more than SampleInterval (%s)", o.SampleInterval))
	}
	if o.HealthUnhealthyAfter < o.HealthDegradedAfter {
		refuse("HealthUnhealthyAfter", o.HealthUnhealthyAfter,
			fmt.Sprintf("HealthDegradedAfter (%s) or more", o.HealthDegradedAfter))
	}
	if o.HealthMaxDueAge < 0 {
		refuse("HealthMaxDueAge", o.HealthMaxDueAge, "0 (no limit) or more")
	}
	if !(o.HealthMaxPoisonRate > 0 && o.HealthMaxPoisonRate <= 1) { // also refuses NaN
		refuse("HealthMaxPoisonRate", o.HealthMaxPoisonRate, "more than 0 and at most 1")
	}
	if o.LongRunning < 0 {
		refuse("LongRunning", o.LongRunning, "0 (no limit) or more")
	}
	all = append(all, o.Acceptor.Validate())
	const identifier = "letters, digits and underscores, not a digit first, %d characters at most"
	if (models.Naming{Schema: o.Schema}).Validate() != nil {
		refuse("Schema", strconv.Quote(o.Schema), fmt.Sprintf(identifier, columns.MaxSchema))
	}
	if (models.Naming{Prefix: o.TablePrefix}).Validate() != nil {
		refuse("TablePrefix", strconv.Quote(o.TablePrefix), fmt.Sprintf(identifier, columns.MaxPrefix))
	}
	if slices.ContainsFunc(o.Middleware, func(m handler.Middleware) bool { return m == nil }) {
		all = append(all, errors.New("option Middleware: a middleware is nil"))
	}
	return errors.Join(all...)
}

// Option declares a part of an inbox: its settings (Configure), a channel (Channel), handlers of a channel that is
// declared elsewhere (Subscribe), or options from the Fx graph (Inject). Options are applied in order.
type Option func(*config)

// Configure sets options. set gets the options as set so far, at first DefaultOptions. Assign options that were loaded
// from a file:
//
//	inbox.Configure(func(o *inbox.Options) { *o = loaded })
//
// They replace everything that a file can set. Options without a key, such as Logger, Hooks and Redact, keep the value
// of an earlier Configure unless loaded has one. A nil set does nothing. Module may call set twice, the second time
// with what Inject has set before.
func Configure(set func(o *Options)) Option {
	return func(c *config) {
		if set == nil {
			return
		}
		if c.feature {
			c.problems = append(c.problems, errFeatureOptions)
			return
		}
		before := c.options
		set(&c.options)
		settings.Keep(before, &c.options)
		// Loaded options that several inboxes assign share an array. Each inbox may append to its own copy.
		c.options.Middleware = slices.Clone(c.options.Middleware)
	}
}

// config is everything a user declares about one inbox.
type config struct {
	name      string
	declared  []Option // as passed to New, Module or Extend
	options   Options
	channels  []*channel
	added     []addition // by Subscribe, to channels that are declared elsewhere
	clock     Clock
	redactor  redaction.Redactor
	manual    bool
	published func(inbox string, m outgoing.Message) // see Override
	withFx    bool                                   // declared by Module or Extend
	feature   bool                                   // declared by Extend: channels and handlers, no options
	extended  bool                                   // features declare the rest
	// injections are the functions of Inject; values have their results, nil while the graph is not known.
	injections []*injection
	values     map[*injection]injected
	injecting  bool    // options of an injection are being applied
	injects    bool    // an injection returns options of the inbox
	problems   []error // of options, found while they were applied
	// shutdown ends the Fx application; nil without Fx.
	shutdown func(exitCode int) error
}

// Clock is the source of time for due times, backoff and thresholds.
type Clock = clock.Clock

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// apply returns the declaration with its options applied. values come from the Fx graph, nil while it is not known.
func (cfg *config) apply(values map[*injection]injected) *config {
	c := &config{name: cfg.name, declared: cfg.declared, withFx: cfg.withFx, feature: cfg.feature,
		options: DefaultOptions(), values: values}
	applyAll(c.declared, c)
	c.subscribe()
	if c.clock = c.options.Clock; c.clock == nil {
		c.clock = clock.System{}
	}
	c.redactor = redaction.New(c.options.Redact)
	for _, channel := range c.channels {
		channel.setOptions(c.options)
	}
	return c
}

// applyAll applies the options that are not nil.
func applyAll[O ~func(T), T any](options []O, to T) {
	for _, o := range options {
		if o != nil {
			o(to)
		}
	}
}

// validate returns everything that is wrong with the declaration, joined, each error with the inbox's name. It needs
// neither the database nor the values of handlers from the Fx graph. It alone checks the declaration: later code relies
// on it. Before the graph is known it accepts what features and injections may add.
func (cfg *config) validate() error {
	all := slices.Clone(cfg.problems)
	if cfg.name != "" && !validName.MatchString(cfg.name) {
		all = append(all,
			errors.New("the name is not 1 to 100 letters, digits, dots, dashes or underscores, beginning with a letter or digit"))
	}
	all = append(all, cfg.validateInjections())
	if !cfg.optionsOpen() { // options of the graph may be valid only together with options of the code
		all = append(all, cfg.options.Validate())
	}
	if cfg.options.ShutdownOnHalt && !cfg.withFx {
		all = append(all, errNoShutdown)
	}
	subs := subscriptionsOf(cfg.all(), nil)
	_, err := registry.New(subs)
	all = append(all, cfg.validateChannels(), registry.CheckKeys(registrations(cfg.name, cfg.all())), err,
		cfg.validateModes(subs), cfg.validateKafka(), cfg.validateOutgoing(),
		checkGroups(memberships(cfg.name, cfg.channels)))
	return cfg.named(errors.Join(all...))
}

// incomplete reports whether the Fx graph may still add to the declaration.
func (cfg *config) incomplete() bool { return cfg.withFx && cfg.values == nil }

// optionsOpen reports whether the inbox's options are not known yet.
func (cfg *config) optionsOpen() bool { return cfg.incomplete() && (cfg.feature || cfg.injects) }

// channelOpen reports whether a channel's options are not known yet.
func (cfg *config) channelOpen(c *channel) bool {
	return cfg.optionsOpen() || cfg.incomplete() && len(c.injections) > 0
}

// handlersOpen reports whether a channel may get handlers that are not known yet.
func (cfg *config) handlersOpen(c *channel) bool {
	return cfg.incomplete() && (cfg.extended || cfg.injects || len(c.injections) > 0)
}

// named prefixes each error in err with the inbox's name.
func (cfg *config) named(err error) error {
	return problems.Prefix(fmt.Sprintf("inbox %q: ", cfg.name), err)
}
