package ops

import "time"

// State is the state of a status.
type State string

// These are the states of a status.
const (
	// StatePending means not started, or waiting for the next attempt.
	StatePending State = "pending"
	// StateProcessing means claimed by a worker.
	StateProcessing State = "processing"
	StateCompleted  State = "completed"
	// StatePoisoned means given up and waiting for an operator.
	StatePoisoned   State = "poisoned"
	StateDiscarded  State = "discarded"
	StateSuperseded State = "superseded"
	// StateFailing is for filters. It matches the pending statuses that have failed since they were
	// accepted or last retried by an operator, and will be tried again. The State of such a status
	// is StatePending, and its Failing is true.
	StateFailing State = "failing"
)

// States returns all states in the order of a status's life, StateFailing last.
func States() []State {
	return []State{StatePending, StateProcessing, StateCompleted, StatePoisoned, StateDiscarded, StateSuperseded,
		StateFailing}
}

// Status is one handler's progress on one message, as lists show it. Times are UTC; a zero time
// means none.
type Status struct {
	ID         string
	MessageID  string
	Namespace  string // of the message's ID, see MessageRef
	HandlerKey string
	State      State
	// Failing means pending after a failed attempt, see StateFailing.
	Failing bool
	// Version guards actions: pass it in a Ref.
	Version int64

	ErrorCount     int
	AbandonedCount int
	RequeuedCount  int
	// LastError is redacted. It stays after a success, as history.
	LastError string
	// Fingerprint identifies the failure group; empty if the status has never failed.
	Fingerprint string

	CreatedAt           time.Time
	ProcessingStartedAt time.Time
	WorkerID            string
	// NextAttemptAt is zero if the status has been due since CreatedAt. It has a meaning only while
	// the status is pending.
	NextAttemptAt time.Time
	CompletedAt   time.Time
	// Waiting means that a claim found it after another one of its lane (contract 5.12).
	Waiting bool
	// InLane means that it has an ordering key and an ordered handler.
	InLane bool

	// These are of its message.
	Type       string
	Source     string
	ReceivedAt time.Time
}

// Message returns a reference to the status's message.
func (s Status) Message() MessageRef { return MessageRef{ID: s.MessageID, Namespace: s.Namespace} }

// MessageRef identifies a message. An ID is unique only within its namespace, which is the
// channel's name unless channels share their IDs (contract 4.4). An empty Namespace means any: the
// error is ErrAmbiguous if several have a message with that ID.
type MessageRef struct{ ID, Namespace string }

// Ref returns the status at the version seen.
func (s Status) Ref() Ref { return Ref{StatusID: s.ID, Version: s.Version} }

// Ref identifies a status for an action.
type Ref struct {
	StatusID string
	// Version is the one that the operator saw: if the status has another one, the action returns
	// ErrStale. 0 matches any version.
	Version int64
}
