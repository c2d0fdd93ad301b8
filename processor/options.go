package processor

import (
	"database/sql"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/internal/handlertx"
)

// Options configure a Processor. Start from DefaultOptions: a zero value is
// refused by Validate.
type Options struct {
	// MaxRetries is the error count at which a status is poisoned; 0 and 1
	// poison on the first failure. Default 5.
	MaxRetries int `yaml:"max_retries" env:"MAX_RETRIES"`
	// MaxRetryDelay caps the backoff. Default 5 m.
	MaxRetryDelay time.Duration `yaml:"max_retry_delay" env:"MAX_RETRY_DELAY"`
	// PollingInterval is the longest wait between looks for due work that
	// nobody has told of; after such a look has found some, the next come
	// sooner. Default 30 s.
	PollingInterval time.Duration `yaml:"polling_interval" env:"POLLING_INTERVAL"`
	// Listen wakes the workers of other processes by PostgreSQL's
	// notifications. Default off.
	Listen bool `yaml:"listen" env:"LISTEN"`
	// BatchSize bounds one claim. Default 100.
	BatchSize int `yaml:"batch_size" env:"BATCH_SIZE"`
	// Concurrency is how many handlers run at once. A handler below its fair
	// share may start beyond it (contract 5.2). Default 10.
	Concurrency int `yaml:"concurrency" env:"CONCURRENCY"`
	// Prefetch is how many slots' worth of claims may wait in memory, of what is
	// claimed and of what this process accepts and hands off; -1
	// means as many as Concurrency. Default -1.
	Prefetch int `yaml:"prefetch" env:"PREFETCH"`
	// HandlerTimeout limits each attempt; 0 is no limit. Default 0.
	HandlerTimeout time.Duration `yaml:"handler_timeout" env:"HANDLER_TIMEOUT"`
	// StuckHandlerGrace is how long a handler that ignores its cancelled
	// context keeps its claim. Default 1 m.
	StuckHandlerGrace time.Duration `yaml:"stuck_handler_grace" env:"STUCK_HANDLER_GRACE"`
	// StuckMessageThreshold is the age at which a claim without a worker is
	// released; greater than HandlerTimeout. Default 5 m.
	StuckMessageThreshold time.Duration `yaml:"stuck_message_threshold" env:"STUCK_MESSAGE_THRESHOLD"`
	// HeartbeatInterval is the time between heartbeats, and the wait before a
	// crashed loop or a failed claim is tried again. Default 5 s.
	HeartbeatInterval time.Duration `yaml:"heartbeat_interval" env:"HEARTBEAT_INTERVAL"`
	// SweepInterval is the time between looks for vanished workers.
	// Default 5 s.
	SweepInterval time.Duration `yaml:"sweep_interval" env:"SWEEP_INTERVAL"`
	// WorkerTimeout is the silence after which a worker is dead; at least
	// three heartbeats. Default 30 s.
	WorkerTimeout time.Duration `yaml:"worker_timeout" env:"WORKER_TIMEOUT"`
	// MaxAbandoned is how many workers may vanish while running a status
	// before it is poisoned. Default 10.
	MaxAbandoned int `yaml:"max_abandoned" env:"MAX_ABANDONED"`
	// UnknownKeyGrace is how long the handler keys of stopped workers count
	// as known; those of programs that only drain count for 25 h at least.
	// Default 10 m.
	UnknownKeyGrace time.Duration `yaml:"unknown_key_grace" env:"UNKNOWN_KEY_GRACE"`
	// StatementTimeout bounds each database call. Default 10 s.
	StatementTimeout time.Duration `yaml:"statement_timeout" env:"STATEMENT_TIMEOUT"`
	// TxIsolation is the isolation of handlers' transactions; sql.LevelDefault is
	// READ COMMITTED on PostgreSQL, whatever the role's or the database's default
	// is, and serializable on SQLite, which knows nothing else. It has no text form:
	// handlers are written for a level, so code sets it. Default sql.LevelDefault.
	TxIsolation sql.IsolationLevel `yaml:"-" env:"-"`
	// StopBudget is how long a stop waits for running handlers before it
	// cancels them; less if the stop's deadline is near. Default 10 s.
	StopBudget time.Duration `yaml:"stop_budget" env:"STOP_BUDGET"`
	// Mode says how the workers of one inbox share its work. Default "": by
	// the database, ModeCompeting on PostgreSQL and ModeExclusive on SQLite.
	Mode Mode `yaml:"mode" env:"MODE"`
}

// Mode says how the workers of one inbox share its work (contract 5.3).
type Mode string

const (
	// ModeCompeting lets all workers claim, each its own statuses.
	ModeCompeting Mode = "competing"
	// ModeExclusive lets one worker at a time claim, which holds a lease; the
	// others stand by.
	ModeExclusive Mode = "exclusive"
)

// defaultMode: SQLite has one writer at a time whoever claims.
func defaultMode(dialect string) Mode {
	if dialect == "sqlite" {
		return ModeExclusive
	}
	return ModeCompeting
}

// lockName is the lease of ModeExclusive, which lasts WorkerTimeout.
const lockName = "processor"

// DefaultOptions returns the defaults of contract 9.
func DefaultOptions() Options {
	return Options{
		MaxRetries: 5, MaxRetryDelay: 5 * time.Minute,
		PollingInterval: 30 * time.Second, BatchSize: 100, Concurrency: 10, Prefetch: -1,
		StuckHandlerGrace: time.Minute, StuckMessageThreshold: 5 * time.Minute,
		HeartbeatInterval: 5 * time.Second, SweepInterval: 5 * time.Second, WorkerTimeout: 30 * time.Second,
		MaxAbandoned: 10, UnknownKeyGrace: 10 * time.Minute,
		StatementTimeout: 10 * time.Second, StopBudget: 10 * time.Second,
	}
}

// Validate reports every option that is out of range, by name, with its value
// and what is allowed.
func (o Options) Validate() []error {
	var problems []error
	refuse := func(name string, value any, allowed string) {
		problems = append(problems, fmt.Errorf("option %s is %v, allowed is %s", name, value, allowed))
	}
	for _, positive := range []struct {
		name  string
		value time.Duration
	}{
		{"MaxRetryDelay", o.MaxRetryDelay}, {"PollingInterval", o.PollingInterval},
		{"StuckHandlerGrace", o.StuckHandlerGrace},
		{"StuckMessageThreshold", o.StuckMessageThreshold}, {"HeartbeatInterval", o.HeartbeatInterval},
		{"SweepInterval", o.SweepInterval},
		{"StatementTimeout", o.StatementTimeout}, {"StopBudget", o.StopBudget},
	} {
		if positive.value <= 0 {
			refuse(positive.name, positive.value, "more than 0")
		}
	}
	for _, counted := range []struct {
		name         string
		value, least int
	}{
		{"MaxRetries", o.MaxRetries, 0}, {"BatchSize", o.BatchSize, 1}, {"Concurrency", o.Concurrency, 1},
		{"MaxAbandoned", o.MaxAbandoned, 1},
	} {
		if counted.value < counted.least {
			refuse(counted.name, counted.value, fmt.Sprintf("%d or more", counted.least))
		}
	}
	if o.Prefetch < -1 {
		refuse("Prefetch", o.Prefetch, "0 or more, or -1 for as many as Concurrency")
	}
	if allowed := handlertx.RefusedIsolation("", o.TxIsolation); allowed != "" {
		refuse("TxIsolation", o.TxIsolation, allowed)
	}
	if o.HandlerTimeout < 0 {
		refuse("HandlerTimeout", o.HandlerTimeout, "0 (no limit) or more")
	}
	if o.UnknownKeyGrace < 0 {
		refuse("UnknownKeyGrace", o.UnknownKeyGrace, "0 or more")
	}
	if o.StuckMessageThreshold > 0 && o.StuckMessageThreshold <= o.HandlerTimeout {
		refuse("StuckMessageThreshold", o.StuckMessageThreshold,
			fmt.Sprintf("more than HandlerTimeout (%s)", o.HandlerTimeout))
	}
	if o.HeartbeatInterval > 0 && o.WorkerTimeout < 3*o.HeartbeatInterval {
		refuse("WorkerTimeout", o.WorkerTimeout, fmt.Sprintf("at least three HeartbeatIntervals (%s)", 3*o.HeartbeatInterval))
	}
	if o.Mode != "" && o.Mode != ModeCompeting && o.Mode != ModeExclusive {
		refuse("Mode", fmt.Sprintf("%q", o.Mode), `"competing", "exclusive", or "" for the database's default`)
	}
	return problems
}

// restartDelay is the wait before a crashed loop or a failed claim is tried again.
func (o Options) restartDelay() time.Duration { return o.HeartbeatInterval }

// lockPatience is how long ProcessPending waits for the lock of ModeExclusive, in real time:
// that of a process that has died runs out before.
func (o Options) lockPatience() time.Duration { return 2 * o.WorkerTimeout }

// groupWindow is how long a result may wait for others to be stored with, BatchSize at most.
const groupWindow = 20 * time.Millisecond

// prefetch resolves the -1 of Prefetch.
func (o Options) prefetch() int {
	if o.Prefetch < 0 {
		return o.Concurrency
	}
	return o.Prefetch
}
