package telemetry

import "go.opentelemetry.io/otel/attribute"

// Scope is the instrumentation scope of all instruments and spans.
const Scope = "github.com/gorm-inbox/inbox"

// instrument is a metric as backends see it. If OpenTelemetry's messaging conventions define a name we use it; all
// other names begin with "inbox.".
type instrument struct {
	name, unit, description string
	buckets                 []float64 // the upper bounds of a histogram's buckets, in its unit
}

// Durations, in seconds.
var (
	acceptDuration = instrument{"inbox.accept.duration", "s",
		"Time to persist what was accepted together, in its transaction.",
		[]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}}
	waitDuration = instrument{"inbox.wait.duration", "s",
		"Time from when a status was due (created, or put off until) to the beginning of its attempt.",
		longBuckets}
	completionDuration = instrument{"inbox.completion.duration", "s",
		"Time from when a status was created, as its message was accepted, to its completion, retries included.",
		longBuckets}
	runDuration = instrument{"messaging.process.duration", "s",
		"Time that an attempt of a handler ran, its transaction included.",
		[]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900}}
	cleanupDuration = instrument{"inbox.cleanup.duration", "s",
		"Time that a run of cleanup took which had the lease, its pauses included.",
		[]float64{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600}}
)

// longBuckets are the buckets of durations that a backlog, an outage or retries may prolong.
var longBuckets = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600,
	21600, 86400}

// cleanupDeleted counts the rows that cleanup deleted.
var cleanupDeleted = instrument{name: "inbox.cleanup.deleted", unit: "{row}", description: "Rows that cleanup deleted."}

// Gauges of the last sample, see Sample.
var (
	backlogDue = instrument{name: "inbox.backlog.due", unit: "{status}",
		description: "Statuses that are due and not claimed, counted up to a bound."}
	backlogWaiting = instrument{name: "inbox.backlog.waiting", unit: "{status}",
		description: "Statuses that wait behind others of their lane, counted up to a bound."}
	backlogProcessing = instrument{name: "inbox.backlog.processing", unit: "{status}",
		description: "Statuses that workers have claimed, counted up to a bound."}
	backlogPoisoned = instrument{name: "inbox.backlog.poisoned", unit: "{status}",
		description: "Poisoned statuses that nobody has retried or discarded, counted up to a bound."}
	oldestDueAge = instrument{name: "inbox.backlog.oldest_due.age", unit: "s",
		description: "For how long the oldest due status has been due; 0 if none is."}
	oldestRunningAge = instrument{name: "inbox.handler.oldest_running.age", unit: "s",
		description: "For how long the oldest running call of the handler in this process has run; 0 if none runs."}
	handlerPaused = instrument{name: "inbox.handler.paused", unit: "{handler}",
		description: "1 while operators have paused the handler."}
	liveWorkers = instrument{name: "inbox.workers", unit: "{worker}",
		description: "Workers whose heartbeat is not older than WorkerTimeout."}
	sampleAge = instrument{name: "inbox.sample.age", unit: "s",
		description: "Time since the database last answered a sample; since the start if it has not yet."}
	consumerLag = instrument{name: "inbox.consumer.lag", unit: "{offset}",
		description: "Offsets between the end of an assigned partition and what is accepted of it."}
	consumerHalted = instrument{name: "inbox.consumer.halted", unit: "{partition}",
		description: "1 while an assigned partition is halted."}
	healthState = instrument{name: "inbox.health", unit: "{state}",
		description: "What each reason makes of the process: 0 healthy, 1 degraded, 2 unhealthy."}
)

// dimension is the attribute that a counter is broken down by.
type dimension int

const (
	wholeInbox dimension = iota
	perChannel
	perHandler
)

// eventInstruments are the counters, one for each Event.
var eventInstruments = [events]struct {
	field string // of handler.Counts
	instrument
	by dimension
}{
	Accepted: {"Accepted", instrument{name: "inbox.messages.accepted", unit: "{message}",
		description: "Messages stored for the first time."}, perChannel},
	Duplicates: {"Duplicates", instrument{name: "inbox.messages.duplicates", unit: "{message}",
		description: "Known messages received again."}, perChannel},
	DuplicateContentDiffers: {"DuplicateContentDiffers", instrument{name: "inbox.messages.duplicate_content_differs",
		unit: "{message}", description: "Known messages received again with other content."}, perChannel},
	Unrouted: {"Unrouted", instrument{name: "inbox.messages.unrouted", unit: "{message}",
		description: "Messages that no handler takes."}, perChannel},
	Invalid: {"Invalid", instrument{name: "inbox.messages.invalid", unit: "{message}",
		description: "Messages refused by Accept."}, perChannel},
	Rejected: {"Rejected", instrument{name: "inbox.records.rejected", unit: "{record}",
		description: "Bad records kept as rejected or halted at."}, perChannel},
	DeadLettered: {"DeadLettered", instrument{name: "inbox.records.dead_lettered", unit: "{record}",
		description: "Bad records that a dead-letter topic acknowledged."}, perChannel},
	Gaps: {"Gaps", instrument{name: "inbox.gaps", unit: "{gap}",
		description: "Gaps in partitions that were passed."}, perChannel},
	EmptyRecords: {"EmptyRecords", instrument{name: "inbox.records.empty", unit: "{record}",
		description: "Records that hold no message: skipped tombstones and empty batches of CloudEvents."}, perChannel},
	DuplicateSkipped: {"DuplicateSkipped", instrument{name: "inbox.inline.duplicates_skipped", unit: "{message}",
		description: "Messages that a handler without inbox (Inline, idempotent) had processed before."}, perChannel},
	MissingKey: {"MissingKey", instrument{name: "inbox.inline.missing_keys", unit: "{attempt}",
		description: "Times a message for handlers without inbox (Inline, idempotent) had no ID to remember it by: once if it is refused before handlers run, else at each attempt of each handler."}, perChannel},

	Dispatched: {"Dispatched", instrument{name: "inbox.statuses.dispatched", unit: "{status}",
		description: "Statuses accepted already claimed and run from memory."}, perHandler},
	Processed: {"Processed", instrument{name: "inbox.attempts.processed", unit: "{attempt}",
		description: "Attempts completed."}, perHandler},
	Failed: {"Failed", instrument{name: "inbox.attempts.failed", unit: "{attempt}",
		description: "Attempts failed, those that poisoned included."}, perHandler},
	Snoozed: {"Snoozed", instrument{name: "inbox.attempts.snoozed", unit: "{attempt}",
		description: "Attempts put off uncharged."}, perHandler},
	Poisoned: {"Poisoned", instrument{name: "inbox.statuses.poisoned", unit: "{status}",
		description: "Statuses poisoned."}, perHandler},
	Superseded: {"Superseded", instrument{name: "inbox.statuses.superseded", unit: "{status}",
		description: "Statuses ended in favour of a sibling."}, perHandler},
	Released: {"Released", instrument{name: "inbox.claims.released", unit: "{claim}",
		description: "Claims given back uncharged."}, perHandler},
	Fenced: {"Fenced", instrument{name: "inbox.claims.fenced", unit: "{claim}",
		description: "Results of stale claims, which changed nothing."}, perHandler},
	Recovered: {"Recovered", instrument{name: "inbox.claims.recovered", unit: "{claim}",
		description: "Claims of vanished workers released."}, perHandler},
	LockLost: {"LockLost", instrument{name: "inbox.lock.lost", unit: "{loss}",
		description: "Times the lock of Exclusive mode was lost."}, wholeInbox},
}

// Attributes of metrics and spans. Metrics only have attributes whose values the application declares or whose values
// are few. A message's ID and type are for spans only.
const (
	attrInbox     = attribute.Key("inbox.name")
	attrChannel   = attribute.Key("inbox.channel")
	attrHandler   = attribute.Key("inbox.handler.key")
	attrOutcome   = attribute.Key("inbox.outcome")
	attrAttempt   = attribute.Key("inbox.attempt")
	attrType      = attribute.Key("inbox.message.type")
	attrErrorType = attribute.Key("error.type")
	attrReason    = attribute.Key("inbox.health.reason")
	attrTable     = attribute.Key("inbox.cleanup.table")

	attrSystem        = attribute.Key("messaging.system")
	attrOperation     = attribute.Key("messaging.operation.name")
	attrOperationType = attribute.Key("messaging.operation.type")
	attrDestination   = attribute.Key("messaging.destination.name")
	attrPartition     = attribute.Key("messaging.destination.partition.id")
	attrGroup         = attribute.Key("messaging.consumer.group.name")
	attrMessageID     = attribute.Key("messaging.message.id")
	attrBatch         = attribute.Key("messaging.batch.message_count")
	attrKafkaOffset   = attribute.Key("messaging.kafka.offset")

	attrExceptionType    = attribute.Key("exception.type")
	attrExceptionMessage = attribute.Key("exception.message")
	attrExceptionStack   = attribute.Key("exception.stacktrace")
)

// Values of attributes.
const (
	// Other stands for a handler key or a channel that this process does not declare, and for an error without a class.
	Other = "_OTHER"

	systemKafka = "kafka"
	systemInbox = "inbox" // messages that the application accepts itself

	operationAccept  = "accept"
	operationProcess = "process"
	typeReceive      = "receive"
	typeProcess      = "process"

	eventException = "exception"

	outcomeCompleted = "completed"
	outcomeFailed    = "failed"
	outcomePoisoned  = "poisoned"
)

// Metric describes one instrument, for dashboards and documentation.
type Metric struct {
	Name, Unit, Description string
	// Kind is "counter", "histogram" or "gauge".
	Kind string
	// Counts is the field of handler.Counts that a counter shows. It is empty for other instruments, and for the
	// counter of deleted rows, which handler.Deleted reports.
	Counts string
}

// Metrics returns all instruments.
func Metrics() []Metric {
	var all []Metric
	for _, d := range eventInstruments {
		all = append(all, Metric{d.name, d.unit, d.description, "counter", d.field})
	}
	all = append(all, Metric{cleanupDeleted.name, cleanupDeleted.unit, cleanupDeleted.description, "counter", ""})
	for _, d := range []instrument{acceptDuration, waitDuration, runDuration, completionDuration, cleanupDuration} {
		all = append(all, Metric{d.name, d.unit, d.description, "histogram", ""})
	}
	for _, d := range []instrument{backlogDue, backlogWaiting, backlogProcessing, backlogPoisoned, oldestDueAge,
		oldestRunningAge, handlerPaused, liveWorkers, sampleAge, consumerLag, consumerHalted, healthState} {
		all = append(all, Metric{d.name, d.unit, d.description, "gauge", ""})
	}
	return all
}
