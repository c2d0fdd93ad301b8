package handler

// AcceptOutcome is the result of accepting one message (contract 4.1).
type AcceptOutcome string

// The outcomes of an accept.
const (
	// OutcomeAccepted means that the message was stored for the first time.
	OutcomeAccepted AcceptOutcome = "accepted"
	// OutcomeDuplicate means that the message's ID was known. Rows for handlers that were registered since may have
	// been added.
	OutcomeDuplicate AcceptOutcome = "duplicate"
	// OutcomeUnrouted means that no handler takes the message's type. It was counted, not stored.
	OutcomeUnrouted AcceptOutcome = "unrouted"
	// OutcomeProcessed means that the message's handlers have processed it: a rejected record of an Inline or Direct
	// channel has run again. It was not stored.
	OutcomeProcessed AcceptOutcome = "processed"
	// OutcomeInvalid means that the message cannot be stored; see acceptor.Result.Err.
	OutcomeInvalid AcceptOutcome = "invalid"
)

// AttemptOutcome is the result of an attempt, as hooks, logs and metrics name it.
type AttemptOutcome string

// The outcomes of an attempt (contract 5.5).
const (
	// AttemptCompleted means that the handler returned nil, and that this is stored.
	AttemptCompleted AttemptOutcome = "completed"
	// AttemptFailed means that a failure is charged and another attempt follows.
	AttemptFailed AttemptOutcome = "failed"
	// AttemptPoisoned means that no further attempt is made.
	AttemptPoisoned AttemptOutcome = "poisoned"
	// AttemptSnoozed means that the handler asked for another time, see Snooze.
	AttemptSnoozed AttemptOutcome = "snoozed"
	// AttemptReleased means that the inbox or the database interrupted the attempt, which is repeated uncharged.
	AttemptReleased AttemptOutcome = "released"
)
