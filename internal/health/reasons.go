// Package health has the codes of the reasons why an inbox is not healthy. Programs see the reasons as
// strings in ops.HealthReason and in the workers' rows, and docs/observability.md lists them: they are
// as fixed as the name of a metric (contract 11.5).
package health

// The codes of reasons.
const (
	// NoProgress means that work is due and no attempt ends in this process.
	NoProgress = "no_progress"
	// OldestDue means that a status has been due for longer than HealthMaxDueAge.
	OldestDue = "oldest_due_age"
	// PoisonRate means that too much of what ends is poisoned.
	PoisonRate = "poison_rate"
	// Halted means that no member consumes a partition because it is halted.
	Halted = "halted_partition"
	// Consumer means that something else keeps a channel from consuming.
	Consumer = "consumer"
	// Database means that the backlog cannot be read, or an error of the processor lasts.
	Database = "database"
	// Stuck means that calls of a handler ignore their cancelled context.
	Stuck = "stuck_handler"
	// LongRunning means that a call of a handler has not returned for the option LongRunning.
	LongRunning = "long_running"
	// Circuit means that a handler's circuit breaker is open.
	Circuit = "open_circuit"
	// Outage means that attempts of an Inline or Direct channel cannot be made or finished.
	Outage = "outage"
	// Failing means that a handler of an Inline or Direct channel fails and is retried, while its partition waits.
	Failing = "failing_handler"
	// ClockSkew means that this machine's clock is not the database's.
	ClockSkew = "clock_skew"
	// BarredRole means that another worker's database role is one whose sessions this worker's can neither see
	// nor end.
	BarredRole = "barred_role"
	// UnknownHandler means that statuses are pending of a handler key that no program lists.
	UnknownHandler = "unknown_handler"
	// ClosedPool means that the application has closed the database's pool.
	ClosedPool = "closed_pool"
	// Cleanup means that cleanup fails, or is far behind because a partition is.
	Cleanup = "cleanup"
)
