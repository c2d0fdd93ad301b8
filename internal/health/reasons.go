// Package health has the codes of the reasons why an inbox is not healthy. Programs see them as
// strings in ops.HealthReason and in the workers' rows, and docs/observability.md lists them:
// they are as fixed as the name of a metric (contract 11.5).
package health

// The codes of reasons.
const (
	// NoProgress: work is due and no attempt ends in this process.
	NoProgress = "no_progress"
	// OldestDue: a status has been due for longer than HealthMaxDueAge.
	OldestDue = "oldest_due_age"
	// PoisonRate: too much of what ends is poisoned.
	PoisonRate = "poison_rate"
	// Halted: a partition is halted, and nobody consumes it.
	Halted = "halted_partition"
	// Consumer: something else keeps a channel from consuming.
	Consumer = "consumer"
	// Database: the backlog cannot be read, or an error of the processor lasts.
	Database = "database"
	// Stuck: calls of a handler ignore their cancelled context.
	Stuck = "stuck_handler"
	// LongRunning: a call of a handler has not returned for the option LongRunning.
	LongRunning = "long_running"
	// Circuit: a handler's circuit breaker is open.
	Circuit = "open_circuit"
	// Outage: attempts of an Inline or Direct channel cannot be made or finished.
	Outage = "outage"
	// ClockSkew: this machine's clock is not the database's.
	ClockSkew = "clock_skew"
	// BarredRole: another worker's database role is one whose sessions this worker's can neither see
	// nor end.
	BarredRole = "barred_role"
	// ClosedPool: the application has closed the database's pool.
	ClosedPool = "closed_pool"
	// Cleanup: cleanup fails, or has waited for consumers for too long.
	Cleanup = "cleanup"
)
