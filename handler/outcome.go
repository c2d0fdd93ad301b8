package handler

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
