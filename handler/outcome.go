package handler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/internal/routine"
)

// AcceptOutcome is the result of accepting one message (contract 4.1).
type AcceptOutcome string

// The outcomes of an accept.
const (
	// OutcomeAccepted means that the message was stored for the first time.
	OutcomeAccepted AcceptOutcome = "accepted"
	// OutcomeDuplicate means that the message's ID was known. Rows for handlers registered since may have been added.
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

// AcceptedEvent describes one message that was stored for the first time, for OnAccepted.
type AcceptedEvent struct {
	Channel   string
	MessageID string
	Type      string
	// Handlers is the number of the message's status rows.
	Handlers int
}

// AttemptEvent describes one attempt whose result is stored, for OnAttempt.
type AttemptEvent struct {
	MessageID  string
	HandlerKey string
	Type       string
	// Attempt counts from 1, see Metadata.Attempt.
	Attempt int
	Outcome AttemptOutcome
	// Err is the attempt's error, unredacted (contract 11.6); nil when completed.
	Err error
	// Duration is how long the handler ran.
	Duration time.Duration
	// NextAttemptAt is when the next attempt is due; zero if there is none or its time is not known.
	NextAttemptAt time.Time
}

// Hooks are functions of the application that are called on events (contract 10.6). They run on the inbox's goroutines
// after the event is durable, so they must be quick. A panic is logged and swallowed. Do not use them for effects that
// must happen: a crash can lose the call. Any may be nil.
type Hooks struct {
	OnAccepted func(ctx context.Context, e AcceptedEvent)
	OnAttempt  func(ctx context.Context, e AttemptEvent)
	OnPoisoned func(ctx context.Context, e AttemptEvent)
}

// CallHook runs one hook and turns a panic into an error, for the log. It does nothing if hook is nil.
func CallHook[E any](ctx context.Context, hook func(context.Context, E), event E) error {
	if hook == nil {
		return nil
	}
	return routine.Protect("hook", func() error { hook(ctx, event); return nil })
}

// Counts are the counters of an inbox at one moment, since the process began.
type Counts struct {
	Accepted                int64 // messages stored for the first time
	Duplicates              int64 // known messages received again
	DuplicateContentDiffers int64 // known IDs received with other content (contract 4.3)
	Unrouted                int64 // messages no handler takes (contract 4.6)
	Rejected                int64 // bad records kept or halted at (contract 7.4)
	DeadLettered            int64 // bad records that a dead-letter topic acknowledged (contract 7.4)
	Invalid                 int64 // messages refused by Accept (contract 4.1)
	Gaps                    int64 // gaps in partitions that were passed (contract 7.5)
	EmptyRecords            int64 // records that hold no message: skipped tombstones, empty batches (contract 4.5)

	// For channels that remember inline what was processed (contract 8.6).
	DuplicateSkipped int64 // a handler's messages that it had processed before
	// how often a message had no ID to be remembered by: counted once if it is refused before handlers run, otherwise
	// at each attempt of each handler
	MissingKey int64

	Dispatched int64 // statuses accepted already claimed and run from memory (contract 5.17)
	Processed  int64 // attempts completed
	Failed     int64 // attempts failed, poisoned ones included
	Poisoned   int64 // statuses poisoned
	Snoozed    int64 // attempts postponed uncharged
	Released   int64 // claims released uncharged
	Superseded int64 // statuses ended in favour of a sibling (contract 4.2)
	Fenced     int64 // results of stale claims, which changed nothing (contract 5.10)
	Recovered  int64 // claims of vanished workers released (contract 5.9)
	LockLost   int64 // times the lock of Exclusive mode was lost (contract 5.3)
}

// Deleted counts what one cleanup deleted (contract 6).
type Deleted struct {
	Messages int64
	Statuses int64
	// Unarchived counts messages that stay because the archive function failed with them (contract 6.3).
	Unarchived int64
	// Markers, Audit and Rejected are zero unless their options are set.
	Markers  int64
	Audit    int64
	Rejected int64
	// Workers and Leases count the rows of vanished processes.
	Workers int64
	Leases  int64
}

// StillBadError says why a rejected record still cannot be accepted. Its row stays, with this as its reason.
type StillBadError struct {
	// ID is the ID of the rejected message.
	ID string
	// Channel is the channel whose decoder read the record.
	Channel string
	// Err is the reason: an *acceptor.InvalidError, or an error of package envelope.
	Err error
}

// Error names the ID and the reason.
func (e *StillBadError) Error() string {
	return fmt.Sprintf("rejected message %q is still bad: %v", e.ID, e.Err)
}

// Unwrap returns the reason.
func (e *StillBadError) Unwrap() error { return e.Err }

// RetryAfter fails the attempt and replaces the backoff by d: the next attempt is due in d. It charges one error like
// any failure, so MaxRetries still applies. A negative d counts as zero. A nil err is replaced by a plain text. Do not
// use it for "not yet" conditions that are not failures: see Snooze. (Contract 5.7.)
func RetryAfter(d time.Duration, err error) error {
	return &RetryAfterError{Delay: max(d, 0), Err: cmp.Or(err, errors.New("handler asked for a retry"))}
}

// RetryAfterError is the error that RetryAfter returns; find it with errors.As.
type RetryAfterError struct {
	Delay time.Duration
	Err   error
}

// Error returns the failure and the delay.
func (e *RetryAfterError) Error() string { return fmt.Sprintf("retry after %s: %v", e.Delay, e.Err) }

// Unwrap returns the failure itself.
func (e *RetryAfterError) Unwrap() error { return e.Err }

// Poison fails the attempt permanently: the status is poisoned at once, under any MaxRetries, and waits for an
// operator. It charges one error. Do not use it for failures that may pass by themselves, such as an unreachable
// service. (Contract 5.7.)
func Poison(err error) error {
	return &PoisonError{Err: cmp.Or(err, errors.New("handler poisoned the message"))}
}

// PoisonError is the error that Poison returns; find it with errors.As.
type PoisonError struct{ Err error }

// Error describes the failure.
func (e *PoisonError) Error() string { return "poison: " + e.Err.Error() }

// Unwrap returns the failure itself.
func (e *PoisonError) Unwrap() error { return e.Err }

// Snooze postpones the attempt by d without charging an error: the message is not ready for this handler yet. A
// negative d counts as zero. Do not use it for failures: a snoozed message never runs out of attempts. (Contract 5.7.)
func Snooze(d time.Duration) error { return &SnoozeError{Delay: max(d, 0)} }

// SnoozeError is the error that Snooze returns; find it with errors.As.
type SnoozeError struct{ Delay time.Duration }

// Error returns for how long the attempt is postponed.
func (e *SnoozeError) Error() string { return "snoozed for " + e.Delay.String() }
