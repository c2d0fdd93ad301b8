package inbox

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/processor"
)

// Options are an inbox's settings that can come from a file or from the
// environment (contract 9). Start from DefaultOptions, unmarshal YAML over it
// (keys in snake_case, durations like "30s") or parse the environment over it
// with a library that reads `env` tags, and pass the result to WithOptions.
type Options struct {
	Processor processor.Options `yaml:",inline"`
	Acceptor  acceptor.Options  `yaml:",inline"`
	Cleanup   cleanup.Options   `yaml:",inline"`

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
		TablePrefix: models.DefaultPrefix,
	}
}

// resolve fills in what depends on the inbox's name or on other options.
func (o Options) resolve(name string) Options {
	if o.Processor.LockName == "" {
		o.Processor.LockName = "InboxProcessor_" + name
	}
	if o.Cleanup.CleanupLockName == "" {
		o.Cleanup.CleanupLockName = "InboxCleanup_" + name
	}
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
	named := o.resolve("")
	problems := append(named.Processor.Validate(), named.Cleanup.Validate()...)
	if named.Processor.LockName == named.Cleanup.CleanupLockName {
		problems = append(problems, fmt.Errorf("option LockName is %q, allowed is another name than CleanupLockName", named.Processor.LockName))
	}
	if err := o.Acceptor.Validate(); err != nil {
		problems = append(problems, err)
	}
	if err := (models.Naming{Schema: o.Schema, Prefix: o.TablePrefix}).Validate(); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
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
	manual     bool
}

// Clock tells the time that due times, backoff and thresholds are judged by.
type Clock = clock.Clock

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

func newConfig(name string, opts []Option) (*config, error) {
	c := &config{name: name, options: DefaultOptions(), clock: clock.System{}}
	for _, o := range opts {
		if o != nil {
			o(c)
		}
	}
	if c.name != "" && !validName.MatchString(c.name) {
		return c, fmt.Errorf("inbox %q: the name is not 1 to 100 letters, digits, dots, dashes or underscores, beginning with a letter or digit", name)
	}
	if slices.ContainsFunc(c.middleware, func(m Middleware) bool { return m == nil }) {
		return c, fmt.Errorf("inbox %q: option Use: a middleware is nil", name)
	}
	if err := c.options.Validate(); err != nil {
		return c, fmt.Errorf("inbox %q: %w", name, err)
	}
	c.options = c.options.resolve(name)
	return c, nil
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
func Use(middleware ...Middleware) Option {
	return func(c *config) { c.middleware = append(c.middleware, middleware...) }
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

// MaxRetries is the error count at which a status is poisoned; 0 and 1 poison
// on the first failure. Do not raise it to outlast long outages: raise
// MaxRetryDelay, or let the handler return RetryAfter. Default 5.
func MaxRetries(n int) Option { return func(c *config) { c.options.Processor.MaxRetries = n } }

// MaxRetryDelay caps the exponential backoff. Do not set it below a few
// seconds: failing handlers would be retried almost without pause.
// Default 5 minutes.
func MaxRetryDelay(d time.Duration) Option {
	return func(c *config) { c.options.Processor.MaxRetryDelay = d }
}

// PollingInterval is the longest wait between looks for due work. Wake-ups
// make it rarely matter, so do not shorten it for speed. Default 30 s.
func PollingInterval(d time.Duration) Option {
	return func(c *config) { c.options.Processor.PollingInterval = d }
}

// BatchSize bounds one claim. Do not raise it alone: what is claimed waits in
// memory for a slot, see Prefetch. Default 100.
func BatchSize(n int) Option { return func(c *config) { c.options.Processor.BatchSize = n } }

// Concurrency is how many handlers run at once; a handler below its fair
// share may start beyond it (contract 5.2). Do not set it above what the
// database pool can serve. Default 10.
func Concurrency(n int) Option { return func(c *config) { c.options.Processor.Concurrency = n } }

// Prefetch is how many slots' worth of claims may wait in memory; -1 means as many
// as Concurrency. Do not raise it for slow handlers: other workers could run
// what waits here. Default -1.
func Prefetch(n int) Option { return func(c *config) { c.options.Processor.Prefetch = n } }

// HandlerTimeout limits each attempt; exceeding it is a failure. 0 is no
// limit. Do not set it below what the slowest handler needs; handlers can
// have their own. Default 0.
func HandlerTimeout(d time.Duration) Option {
	return func(c *config) { c.options.Processor.HandlerTimeout = d }
}

// StuckHandlerGrace is how long a handler that ignores its cancelled context
// keeps its claim. Do not shorten it for handlers that clean up slowly: the
// message would run again beside them. Default 1 m.
func StuckHandlerGrace(d time.Duration) Option {
	return func(c *config) { c.options.Processor.StuckHandlerGrace = d }
}

// StuckMessageThreshold is the age at which a claim without a worker (of a
// process that called ProcessPending and died) is released. It must exceed
// HandlerTimeout. Claims of running workers are judged by heartbeats instead,
// so do not shorten it for faster recovery. Default 5 m.
func StuckMessageThreshold(d time.Duration) Option {
	return func(c *config) { c.options.Processor.StuckMessageThreshold = d }
}

// HeartbeatInterval is the time between a worker's heartbeats. Do not change
// it without WorkerTimeout. Default 5 s.
func HeartbeatInterval(d time.Duration) Option {
	return func(c *config) { c.options.Processor.HeartbeatInterval = d }
}

// SweepInterval is the time between looks for vanished workers. Do not raise
// it for less load: a sweep reads a handful of rows. Default 5 s.
func SweepInterval(d time.Duration) Option {
	return func(c *config) { c.options.Processor.SweepInterval = d }
}

// WorkerTimeout is the silence after which a worker counts as dead; at least
// three heartbeats. Do not set it below pauses that a live process may have
// (garbage collection, a frozen machine): its work would be run again.
// Default 30 s.
func WorkerTimeout(d time.Duration) Option {
	return func(c *config) { c.options.Processor.WorkerTimeout = d }
}

// MaxAbandoned is how many workers may vanish while running a status before
// it is poisoned. Do not set it to 1: a single crash would poison whatever
// was running. Default 10.
func MaxAbandoned(n int) Option { return func(c *config) { c.options.Processor.MaxAbandoned = n } }

// UnknownKeyGrace is how long the handler keys of stopped and dead workers
// count as known, so that a deploy poisons nothing. Do not set it below the
// length of a deploy. Default 10 m.
func UnknownKeyGrace(d time.Duration) Option {
	return func(c *config) { c.options.Processor.UnknownKeyGrace = d }
}

// GroupWindow is how long a result may wait to be stored together with
// others. Do not raise it: more waits for a crash to repeat. Default 20 ms.
func GroupWindow(d time.Duration) Option {
	return func(c *config) { c.options.Processor.GroupWindow = d }
}

// StatementTimeout bounds each database call of the inbox. Do not set it
// below what a full batch needs. Default 10 s.
func StatementTimeout(d time.Duration) Option {
	return func(c *config) { c.options.Processor.StatementTimeout = d }
}

// StopBudget is how long Stop waits for running handlers before it cancels
// them; less if Stop's deadline is nearer. Do not set it above that deadline
// (Fx: 15 s): it would not be reached. Default 10 s.
func StopBudget(d time.Duration) Option {
	return func(c *config) { c.options.Processor.StopBudget = d }
}

// RestartDelay is the wait before a crashed loop or a failed claim is tried
// again. Do not set it to milliseconds: an outage would be met with a storm.
// Default 5 s.
func RestartDelay(d time.Duration) Option {
	return func(c *config) { c.options.Processor.RestartDelay = d }
}

// Mode says how the workers of one inbox share its work: ModeCompeting, where
// each claims for itself, or ModeExclusive, where one at a time holds a lease
// and the others stand by, to take over within WorkerTimeout and a third of it
// if it dies, and within a third of it if it stops. Do not set ModeExclusive
// for order: Ordered handlers have it in both modes, with all workers working.
// Do not set ModeCompeting for speed on SQLite, which has one writer at a time.
// All workers of an inbox must have the same mode. Where several processes use
// one SQLite file, a message that one of them accepts while another holds the
// lease waits for that one's PollingInterval. Default: ModeCompeting on
// PostgreSQL, ModeExclusive on SQLite (contract 5.3).
func Mode(m ProcessingMode) Option { return func(c *config) { c.options.Processor.Mode = m } }

// LockName names the lease of ModeExclusive. Do not share it with
// CleanupLockName, and do not give it another name in one of an inbox's
// processes: both would process. Default "InboxProcessor_{inbox}".
func LockName(name string) Option { return func(c *config) { c.options.Processor.LockName = name } }

// LockAcquireTimeout is how long ProcessPending waits, in ModeExclusive, for
// another worker to give the lease up, in real time. Do not set it below
// WorkerTimeout where a process may die: its lease would outlast the wait.
// Default 60 s (contract 5.14).
func LockAcquireTimeout(d time.Duration) Option {
	return func(c *config) { c.options.Processor.LockAcquireTimeout = d }
}

// Retention is how long completed statuses and finished messages are kept; 0
// keeps them for ever. It is also how far back duplicates are recognised: do
// not set it below the longest time after which a message may come again.
// Default 0.
func Retention(d time.Duration) Option { return func(c *config) { c.options.Cleanup.Retention = d } }

// CleanupInterval is the time between cleanups. Do not shorten it to keep
// tables small: Retention does that. Default 1 h.
func CleanupInterval(d time.Duration) Option {
	return func(c *config) { c.options.Cleanup.CleanupInterval = d }
}

// CleanupBatchSize bounds the rows one cleanup transaction looks at. Do not
// raise it on a busy database. Default 10,000.
func CleanupBatchSize(n int) Option {
	return func(c *config) { c.options.Cleanup.CleanupBatchSize = n }
}

// SweepMarkers deletes the markers of inline handlers once they have expired.
// Do not use it where the marker store is swept by other means, or where
// redeliveries may come later than the handlers' retention. Default off
// (contract 6.6).
func SweepMarkers() Option { return func(c *config) { c.options.Cleanup.SweepMarkers = true } }

// AuditRetention deletes audit rows older than d. Do not set it where somebody
// must be able to tell later who did what. Default 0, which keeps them for
// ever (contract 6.6).
func AuditRetention(d time.Duration) Option {
	return func(c *config) { c.options.Cleanup.AuditRetention = d }
}

// RejectedRetention deletes rejected messages older than d, whether or not
// anybody has looked at them. Do not set it unless their loss is acceptable:
// their offsets are committed, so nobody else has them. Default 0, which keeps them
// for ever (contract 6.6).
func RejectedRetention(d time.Duration) Option {
	return func(c *config) { c.options.Cleanup.RejectedRetention = d }
}

// Archive has cleanup hand messages and statuses to a function before it
// deletes them; its error keeps them. See cleanup.Archive for what it must
// hold to. Do not use it for what must happen with each message: rows come
// late, and more than once. With nil, or without it, nothing is handed over
// (contract 6.3).
func Archive(take func(ctx context.Context, messages []Archived) error) Option {
	return func(c *config) { c.archive = take }
}

// ArchiveTimeout limits each call of the function given to Archive. Do not set
// it below what it needs for 500 messages: it would never succeed.
// Default 1 m.
func ArchiveTimeout(d time.Duration) Option {
	return func(c *config) { c.options.Cleanup.ArchiveTimeout = d }
}

// CleanupLockName names the lease that lets one worker clean at a time. Do not
// share it between inboxes. Default "InboxCleanup_{inbox}".
func CleanupLockName(name string) Option {
	return func(c *config) { c.options.Cleanup.CleanupLockName = name }
}

// Unrouted says what happens to messages that no handler takes: UnroutedIgnore
// (default), UnroutedReject or UnroutedHalt. Do not use Reject on topics that
// carry other teams' types: every one of them would be kept.
func Unrouted(policy UnroutedPolicy) Option {
	return func(c *config) { c.options.Acceptor.Unrouted = policy }
}

// BadRecords says what happens to records of which no message can be made:
// BadRecordStore (default) or BadRecordHalt. Do not use Halt unless someone
// is there to act: the partition stands still until then.
func BadRecords(policy BadRecordPolicy) Option {
	return func(c *config) { c.options.Acceptor.BadRecords = policy }
}
