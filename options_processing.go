package inbox

import (
	"database/sql"
	"time"

	"github.com/gorm-inbox/inbox/processor"
)

// MaxRetries is the error count at which a status is poisoned; 0 and 1 poison
// on the first failure. Do not raise it to outlast long outages: raise
// MaxRetryDelay, or let the handler return handler.RetryAfter. Default 5.
func MaxRetries(n int) Option { return func(c *config) { c.options.Processor.MaxRetries = n } }

// MaxRetryDelay caps the exponential backoff. Do not set it below a few
// seconds: failing handlers would be retried almost without pause.
// Default 5 minutes.
func MaxRetryDelay(d time.Duration) Option {
	return func(c *config) { c.options.Processor.MaxRetryDelay = d }
}

// PollingInterval is the longest wait between looks for due work. What this
// process accepts, and what is known to come due, does not wait for it, so do
// not shorten it for speed. It matters for what other processes accept while
// Listen is off: when such a look finds work that nobody told of, the next one
// follows after 100 ms, and the wait doubles up to PollingInterval while nothing
// is found. Only what comes after a quiet time waits long. Default 30 s
// (contract 4.7, 5.1).
func PollingInterval(d time.Duration) Option {
	return func(c *config) { c.options.Processor.PollingInterval = d }
}

// Listen makes what one process accepts known to the workers of the others at
// once, by PostgreSQL's LISTEN and NOTIFY; without it they find it by polling,
// see PollingInterval. Each started inbox then keeps one connection of its own
// open, beside the pool, with the settings of the pool's. Set it in all
// processes of an inbox: those that have it tell, and hear, each other.
//
// Do not use it
//   - where the processes that accept also process and keep up: they wake
//     themselves;
//   - for many single messages a second: PostgreSQL lets one transaction with a
//     notification commit at a time in all its databases, so that accepting
//     messages one by one from many connections falls to about half its rate.
//     Batches are told of once each, whatever their size, and do not notice;
//   - behind a pooler in transaction mode, which lets no notification through:
//     the inbox notices, says so in log and health, and polls;
//   - with AcceptTx in transactions that are prepared for a two-phase commit:
//     PostgreSQL refuses notifications there.
//
// It needs PostgreSQL and pgx (what gorm.io/driver/postgres uses by default); with
// anything else the inbox does not start. While the connection is lost, health
// is degraded and polling goes on. Default off (contract 4.7).
func Listen() Option { return func(c *config) { c.options.Processor.Listen = true } }

// BatchSize bounds one claim. Do not raise it alone: what is claimed waits in
// memory for a slot, see Prefetch. Default 100.
func BatchSize(n int) Option { return func(c *config) { c.options.Processor.BatchSize = n } }

// Concurrency is how many handlers run at once; a handler below its fair
// share may start beyond it (contract 5.2). Do not set it above what the
// database pool can serve. Default 10.
func Concurrency(n int) Option { return func(c *config) { c.options.Processor.Concurrency = n } }

// Prefetch is how many slots' worth of claims may wait in memory; -1 means as many
// as Concurrency. What this process accepts is handed off into the same slots
// without a claim (contract 5.17): with fewer than an accept brings, the rest is
// claimed. Do not raise it for slow handlers: other workers could run what
// waits here. Default -1.
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
// count as known, so that a deploy poisons nothing. Those of a program that
// only calls ProcessPending count for 25 h after its last call, or for this if
// it is longer. Do not set it below the length of a deploy. Default 10 m
// (contract 5.7).
func UnknownKeyGrace(d time.Duration) Option {
	return func(c *config) { c.options.Processor.UnknownKeyGrace = d }
}

// StatementTimeout bounds each database call of the inbox. Do not set it below
// what a claim of BatchSize needs; accepts from Kafka that exceed it are tried
// again in smaller transactions. Default 10 s.
func StatementTimeout(d time.Duration) Option {
	return func(c *config) { c.options.Processor.StatementTimeout = d }
}

// TxIsolation is the isolation of the transactions that handlers run in: of Tx, TxBatch
// and handler.TxGroup, of every handler of an Inline channel whose markers are in the inbox's
// database, and of Tx handlers of a Direct channel. Allowed are sql.LevelDefault,
// LevelReadCommitted, LevelRepeatableRead and LevelSerializable. LevelDefault is READ
// COMMITTED, whatever default_transaction_isolation the role or the database has: the
// transactions state their level. The inbox's own run at READ COMMITTED under any option,
// and what a plain handler runs has the session's default. On SQLite, whose transactions
// are always serializable, LevelDefault and LevelSerializable alone are allowed.
//
// Do not raise it where one handler in a few needs it and can lock the rows it depends on
// (SELECT … FOR UPDATE): above READ COMMITTED attempts that get in each other's way are
// rolled back and run again at once, uncharged, five times at most, and are then released
// with a growing backoff, which costs more the more handlers touch the same rows. Default
// sql.LevelDefault (contract 5.11).
func TxIsolation(level sql.IsolationLevel) Option {
	return func(c *config) { c.options.Processor.TxIsolation = level }
}

// StopBudget is how long Stop waits for running handlers before it cancels
// them; less if Stop's deadline is nearer. Do not set it above that deadline
// (Fx: 15 s): it would not be reached. Default 10 s.
func StopBudget(d time.Duration) Option {
	return func(c *config) { c.options.Processor.StopBudget = d }
}

// Mode says how the workers of one inbox share its work: processor.ModeCompeting, where
// each claims for itself, or processor.ModeExclusive, where one at a time holds a lease
// and the others stand by, to take over within WorkerTimeout and a third of it
// if it dies, and within a third of it if it stops. Do not set processor.ModeExclusive
// for order: Ordered handlers have it in both modes, with all workers working.
// Do not set processor.ModeCompeting for speed on SQLite, which has one writer at a time.
// All workers of an inbox must have the same mode. Where several processes use
// one SQLite file, a message that one of them accepts while another holds the
// lease waits for that one's next look, see PollingInterval. Default: ModeCompeting on
// PostgreSQL, ModeExclusive on SQLite (contract 5.3).
func Mode(m processor.Mode) Option { return func(c *config) { c.options.Processor.Mode = m } }
