package processor

import (
	"database/sql"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/internal/dialects"
)

// Options configure how an inbox runs its handlers. Start from DefaultOptions: zero values are values.
type Options struct {
	// MaxRetries is after how many failed attempts a handler gives a message up, in every delivery mode: the status is
	// poisoned, and in an Inline or Direct channel the record is bad. 0 and 1 both mean no retry. A handler's own
	// handler.MaxRetries replaces it. The waits between attempts double, from 2 s at most, up to MaxRetryDelay: raise it
	// to outlast outages of minutes. Do not raise it for outages of hours: on an Inbox channel a circuit breaker waits
	// without charging attempts. In an Inline or Direct channel, which has no breaker, the partition stands still during
	// all retries. Default 5 (contract 5.6, 7.6).
	MaxRetries int `yaml:"max_retries" env:"MAX_RETRIES"`
	// MaxRetryDelay caps the exponential backoff. Do not set it below a few seconds:
	// failing handlers would be retried almost without pause. Default 5 m.
	MaxRetryDelay time.Duration `yaml:"max_retry_delay" env:"MAX_RETRY_DELAY"`
	// PollingInterval is the longest wait between polls for due work. Messages that this process accepts, and statuses
	// that are known to come due, do not wait for a poll, so do not shorten it for speed. It matters for messages of
	// other processes where no notification arrives, see Listen: when a poll finds such work, the next one follows
	// after 100 ms, and the wait doubles up to PollingInterval while nothing is found. Only the first messages after a
	// quiet time wait long. Default 30 s (contract 4.7, 5.1).
	PollingInterval time.Duration `yaml:"polling_interval" env:"POLLING_INTERVAL"`
	// Listen notifies the workers of other processes at once when one process accepts messages, by PostgreSQL's LISTEN and
	// NOTIFY. Each started inbox keeps one connection for it, beside the pool, with the settings of the pool's. While that
	// connection is lost, health is degraded. Where no notification can arrive (behind a pooler in transaction mode, with
	// a driver other than pgx, on SQLite), workers find the messages by polling, see PollingInterval.
	//
	// A process sends at most one notification every 3 ms, after its commits. Only AcceptTx outside a handler sends one
	// with each commit of yours, and PostgreSQL commits such transactions one at a time. Do not leave it on, in any
	// process of the inbox, where many of those commit at once, where connections are scarce, or where they are prepared
	// for a two-phase commit, which PostgreSQL refuses. Default on (contract 4.7).
	Listen bool `yaml:"listen" env:"LISTEN"`
	// BatchSize bounds one claim, and how many results are stored together. Do not lower it for large messages: claims are
	// bounded by their bytes, too. Default 500 (contract 5.2).
	BatchSize int `yaml:"batch_size" env:"BATCH_SIZE"`
	// Concurrency is how many handlers run at once; a handler below its fair share may start beyond it. Do not set it
	// above what the database pool can serve. Default 10 (contract 5.2).
	Concurrency int `yaml:"concurrency" env:"CONCURRENCY"`
	// Prefetch bounds how many slots' worth of claims may wait in memory. How many do depends on the handlers: as many
	// as these run in 100 ms, and about 32 MB in all. Claims that have waited for a second are released for other
	// workers. Messages that this process accepts are dispatched into the same slots without a claim. Do not set it to
	// 0 for less memory: claims then wait for free slots, and slots for claims. Default 2,000 (contract 5.2, 5.17).
	Prefetch int `yaml:"prefetch" env:"PREFETCH"`
	// HandlerTimeout limits each attempt; exceeding it is a failure. 0 is no limit. Do not set it below what the slowest
	// handler needs; handlers can have their own (handler.Timeout). Default 0.
	HandlerTimeout time.Duration `yaml:"handler_timeout" env:"HANDLER_TIMEOUT"`
	// StuckHandlerGrace is how long a handler that ignores its cancelled context keeps its claim. Do not shorten it for
	// handlers that clean up slowly: the message would run again beside them. Default 1 m.
	StuckHandlerGrace time.Duration `yaml:"stuck_handler_grace" env:"STUCK_HANDLER_GRACE"`
	// StuckMessageThreshold is the age at which a claim without a worker (of a process that called ProcessPending and
	// died) is released. It must exceed HandlerTimeout. Claims of running workers are judged by heartbeats instead, so do
	// not shorten it for faster recovery. Default 5 m.
	StuckMessageThreshold time.Duration `yaml:"stuck_message_threshold" env:"STUCK_MESSAGE_THRESHOLD"`
	// HeartbeatInterval is the time between a worker's heartbeats, and before a crashed loop or a failed claim is tried
	// again. Do not change it without WorkerTimeout. Default 5 s.
	HeartbeatInterval time.Duration `yaml:"heartbeat_interval" env:"HEARTBEAT_INTERVAL"`
	// SweepInterval is the time between sweeps for workers that have vanished. Do not
	// raise it for less load: a sweep reads a handful of rows. Default 5 s.
	SweepInterval time.Duration `yaml:"sweep_interval" env:"SWEEP_INTERVAL"`
	// WorkerTimeout is the silence after which a worker counts as dead; at least three
	// heartbeats. Do not set it below pauses that a live process may have (garbage
	// collection, a frozen machine): its work would be run again. Default 30 s.
	WorkerTimeout time.Duration `yaml:"worker_timeout" env:"WORKER_TIMEOUT"`
	// MaxAbandoned is how many workers may vanish while running a status before it is poisoned. Do not set it to 1: a
	// single crash would poison every running message. Default 10.
	MaxAbandoned int `yaml:"max_abandoned" env:"MAX_ABANDONED"`
	// UnknownKeyGrace is how long the handler keys of stopped and dead workers count as known, so that a deploy is not
	// reported as missing handlers. Those of a program that only calls ProcessPending count for 8 days after its last
	// call, or for this if it is longer. Do not set it below the length of a deploy. Default 10 m (contract 5.7).
	UnknownKeyGrace time.Duration `yaml:"unknown_key_grace" env:"UNKNOWN_KEY_GRACE"`
	// StatementTimeout bounds each database call of the inbox. Do not set it below what a claim of BatchSize needs;
	// accepts from Kafka that exceed it are tried again in smaller transactions. Default 10 s.
	StatementTimeout time.Duration `yaml:"statement_timeout" env:"STATEMENT_TIMEOUT"`
	// TxIsolation is the isolation of the transactions that handlers run in: of Tx, TxBatch and handler.TxGroup, of every
	// handler of an Inline channel whose markers are in the inbox's database, and of Tx handlers of a Direct channel.
	// Allowed are sql.LevelDefault, LevelReadCommitted, LevelRepeatableRead and LevelSerializable. LevelDefault is READ
	// COMMITTED, under any default_transaction_isolation of the role or the database: the transactions state their level.
	// The inbox's other transactions run at READ COMMITTED under any option, and a plain handler's statements have the
	// session's default. On SQLite, whose transactions are always serializable, LevelDefault and LevelSerializable alone
	// are allowed. It has no text form: handlers are written for a level, so code sets it.
	//
	// Do not raise it where one handler in a few needs it and can lock the rows it depends on (SELECT … FOR UPDATE): above
	// READ COMMITTED attempts that get in each other's way are rolled back and run again at once, uncharged, five times at
	// most, and are then released with a growing backoff, which costs more the more handlers touch the same rows. Default
	// sql.LevelDefault (contract 5.11).
	TxIsolation sql.IsolationLevel `yaml:"-" env:"-"`
	// StopBudget is how long Stop waits for running handlers before it cancels them; less if Stop's deadline is nearer. Do
	// not set it above that deadline (Fx: 15 s): it would not be reached. Default 10 s.
	StopBudget time.Duration `yaml:"stop_budget" env:"STOP_BUDGET"`
	// Mode says how the workers of one inbox share its work: ModeCompeting, where each claims for itself, or
	// ModeExclusive, where one at a time holds a lease and the others stand by, to take over within WorkerTimeout and a
	// third of it if it dies, and within a third of it if it stops. Do not set ModeExclusive for order: Ordered handlers
	// have it in both modes, with all workers working. Do not set ModeCompeting for speed on SQLite, which has one writer
	// at a time. All workers of an inbox must have the same mode. Where several processes use one SQLite file, a message
	// that one of them accepts while another holds the lease waits for that one's next poll, see PollingInterval. Default:
	// ModeExclusive on SQLite, else ModeCompeting (contract 5.3).
	Mode Mode `yaml:"mode" env:"MODE"`
}

// Mode says how the workers of one inbox share its work (contract 5.3).
type Mode string

const (
	// ModeCompeting lets all workers claim, each its own statuses.
	ModeCompeting Mode = "competing"
	// ModeExclusive lets one worker at a time claim, which holds a lease; the others stand by.
	ModeExclusive Mode = "exclusive"
)

// lockName is the lease of ModeExclusive, which lasts WorkerTimeout.
const lockName = "processor"

// DefaultOptions returns the defaults of contract 9.
func DefaultOptions() Options {
	return Options{
		MaxRetries: 5, MaxRetryDelay: 5 * time.Minute, PollingInterval: 30 * time.Second, Listen: true, BatchSize: 500,
		Concurrency: 10, Prefetch: 2000, StuckHandlerGrace: time.Minute, StuckMessageThreshold: 5 * time.Minute,
		HeartbeatInterval: 5 * time.Second, SweepInterval: 5 * time.Second, WorkerTimeout: 30 * time.Second,
		MaxAbandoned: 10, UnknownKeyGrace: 10 * time.Minute, StatementTimeout: 10 * time.Second, StopBudget: 10 * time.Second,
	}
}

// Validate reports every option that is out of range, by name, with its value and what is allowed.
func (o Options) Validate() []error {
	var problems []error
	refuse := func(name string, value any, allowed string) {
		problems = append(problems, fmt.Errorf("option %s = %v: must be %s", name, value, allowed))
	}
	for _, positive := range []struct {
		name  string
		value time.Duration
	}{
		{"MaxRetryDelay", o.MaxRetryDelay}, {"PollingInterval", o.PollingInterval},
		{"StuckHandlerGrace", o.StuckHandlerGrace}, {"StuckMessageThreshold", o.StuckMessageThreshold},
		{"HeartbeatInterval", o.HeartbeatInterval}, {"SweepInterval", o.SweepInterval},
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
		{"Prefetch", o.Prefetch, 0}, {"MaxAbandoned", o.MaxAbandoned, 1},
	} {
		if counted.value < counted.least {
			refuse(counted.name, counted.value, fmt.Sprintf("%d or more", counted.least))
		}
	}
	if allowed := dialects.RefusedIsolation(o.TxIsolation); allowed != "" {
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

// groupWindow is how long a result may wait for others to be stored with, BatchSize at most.
const groupWindow = 20 * time.Millisecond
