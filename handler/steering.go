package handler

import (
	"errors"
	"fmt"
	"time"
)

// RetryAfter fails the attempt and replaces the backoff by d: the next attempt is due in d. It charges one error like
// any failure, so MaxRetries still applies. A negative d counts as zero. A nil err is replaced by a plain text. Do not
// use it for "not yet" conditions that are not failures: see Snooze. (Contract 5.7.)
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		err = errors.New("handler asked for a retry")
	}
	return &RetryAfterError{Delay: max(d, 0), Err: err}
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
	if err == nil {
		err = errors.New("handler poisoned the message")
	}
	return &PoisonError{Err: err}
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
