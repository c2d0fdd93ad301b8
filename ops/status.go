package ops

import "time"

// State is what a status is.
type State string

// The states of a status.
const (
	// StatePending: not begun, or waiting for its next attempt.
	StatePending State = "pending"
	// StateProcessing: claimed by a worker.
	StateProcessing State = "processing"
	StateCompleted  State = "completed"
	// StatePoisoned: given up, waiting for an operator.
	StatePoisoned   State = "poisoned"
	StateDiscarded  State = "discarded"
	StateSuperseded State = "superseded"
	// StateFailing is for filters: the pending statuses that have failed since
	// they were accepted or last retried by an operator, and will be tried again. The
	// State of such a status is StatePending, its Failing true.
	StateFailing State = "failing"
)

// States are all of them, in the order of a status's life; StateFailing last.
func States() []State {
	return []State{StatePending, StateProcessing, StateCompleted, StatePoisoned, StateDiscarded, StateSuperseded,
		StateFailing}
}

// Status is one handler's progress on one message, as lists show it. Times are
// UTC; a zero time is none.
type Status struct {
	ID         string
	MessageID  string
	Namespace  string // of the message's ID, see MessageRef
	HandlerKey string
	State      State
	// Failing: pending after a failed attempt, see StateFailing.
	Failing bool
	// Version guards actions: pass it on in a Ref.
	Version int64

	ErrorCount     int
	AbandonedCount int
	RequeuedCount  int
	// LastError is redacted. It stays after a success, as history.
	LastError string
	// Fingerprint names its failure group; empty if it has never failed.
	Fingerprint string

	CreatedAt           time.Time
	ProcessingStartedAt time.Time
	WorkerID            string
	// NextAttemptAt is zero if it is due since CreatedAt, and of no meaning
	// unless it is pending.
	NextAttemptAt time.Time
	CompletedAt   time.Time
	// Waiting: found behind another of its lane (contract 5.12).
	Waiting bool
	// InLane: it has an ordering key and an ordered handler.
	InLane bool

	// Of its message.
	Type       string
	Source     string
	ReceivedAt time.Time
}

// Message names the status's message.
func (s Status) Message() MessageRef { return MessageRef{ID: s.MessageID, Namespace: s.Namespace} }

// MessageRef names a message. Its ID is unique within its namespace alone, which is
// its channel's name unless channels share their IDs (contract 4.4). An empty
// Namespace is any: ErrAmbiguous if several have a message of that ID.
type MessageRef struct{ ID, Namespace string }

// Ref returns the status at the version seen.
func (s Status) Ref() Ref { return Ref{StatusID: s.ID, Version: s.Version} }

// Ref names a status for an action.
type Ref struct {
	StatusID string
	// Version is the one the operator saw: if it has moved on the action is
	// ErrStale. 0 takes any.
	Version int64
}
