package handler

// AcceptOutcome says what became of a message that was accepted, or was to be
// (contract 4.1).
type AcceptOutcome string

// The outcomes of an accept.
const (
	// OutcomeAccepted: stored for the first time.
	OutcomeAccepted AcceptOutcome = "accepted"
	// OutcomeDuplicate: its ID was known; rows for handlers registered since may have
	// been added.
	OutcomeDuplicate AcceptOutcome = "duplicate"
	// OutcomeUnrouted: no handler takes its type; it was counted, not stored.
	OutcomeUnrouted AcceptOutcome = "unrouted"
	// OutcomeInvalid: it cannot be stored; see acceptor.Result.Err.
	OutcomeInvalid AcceptOutcome = "invalid"
)

// AttemptOutcome says what an attempt came to, as hooks, logs and metrics name it.
type AttemptOutcome string

// The outcomes of an attempt (contract 5.5).
const (
	// AttemptCompleted: the handler returned nil, and that is stored.
	AttemptCompleted AttemptOutcome = "completed"
	// AttemptFailed: it is charged, and another attempt follows.
	AttemptFailed AttemptOutcome = "failed"
	// AttemptPoisoned: no further attempt is made.
	AttemptPoisoned AttemptOutcome = "poisoned"
	// AttemptSnoozed: the handler asked for another time, see Snooze.
	AttemptSnoozed AttemptOutcome = "snoozed"
	// AttemptReleased: it was cut short by the inbox or the database, and is repeated
	// uncharged.
	AttemptReleased AttemptOutcome = "released"
)
