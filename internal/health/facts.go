package health

import (
	"fmt"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Facts are what the parts of a process report. Errors are nil, times zero and lists empty where nothing is wrong.
type Facts struct {
	Now    time.Time // by the inbox's clock, as all times here
	Limits Limits

	// Running means that the processor is started, and Standby that another worker holds its lock (Exclusive mode).
	Running, Standby bool
	WorkerID         string // empty if there is none
	// Busy counts the running attempts. ProgressAt is when the last one ended.
	Busy       int
	ProgressAt time.Time
	// Errors are the processor's lasting errors, by what fails.
	Errors map[string]error
	// Stuck counts the calls that ignore their cancelled context, by handler key, in all delivery modes.
	Stuck map[string]int
	// Calls are the running calls in all delivery modes, the longest first.
	Calls        []Call
	OpenCircuits []OpenCircuit
	UnknownKeys  []string
	// ClockAhead is by how much this machine's clock is ahead of the database's, if that is too much.
	ClockAhead time.Duration
	// BarredRoles are database roles whose sessions this worker's Role can neither see nor end.
	BarredRoles []string
	Role        string

	Sample Sample
	// Poisoned is how many of the statuses that Ended within Limits.PoisonWindow are poisoned.
	Poisoned, Ended int64

	Consumers []Channel
	// Synchronous are the Inline and Direct channels.
	Synchronous map[string]Synchronous

	// CleanupHeld names the partition that cleanup has waited for since CleanupHeldSince, if that is too long.
	// CleanupErr is why it fails.
	CleanupHeld, CleanupErr error
	CleanupHeldSince        time.Time
}

// Limits are the options that health is judged by. Zero means no limit.
type Limits struct {
	DegradedAfter, UnhealthyAfter time.Duration // without progress
	MaxDueAge                     time.Duration
	MaxPoisonRate                 float64
	PoisonWindow                  time.Duration
	LongRunning                   time.Duration
}

// Call is a call of a handler that has not returned.
type Call struct {
	HandlerKey string
	MessageIDs []string // at least one
	Since      time.Time
	Timeout    time.Duration // 0 if it has none
}

// OpenCircuit is a handler's circuit breaker that is open. It lets the next probe through at ProbeAt, zero while one is
// running. Err is the last failure; it may quote data.
type OpenCircuit struct {
	HandlerKey     string
	Since, ProbeAt time.Time
	Err            error
}

// Channel is what a channel's consumer reports.
type Channel struct {
	Name string
	// Halted says why partitions are halted: the first MaxHalts of them. Halts counts them all.
	Halted []error
	Halts  int
	// Err is any other error that prevents the channel from consuming, from committing or from publishing copies.
	Err error
	// Stalled is since when each partition that makes no progress has made none.
	Stalled []time.Time
}

// Synchronous is what an Inline or Direct channel reports.
type Synchronous struct {
	// Outage is why attempts cannot be made or finished. ExcusedUntil is the time before which no progress was possible.
	Outage       error
	ExcusedUntil time.Time
	Paused       []string         // handler keys
	Failing      []FailingHandler // those that have failed for longest first
}

// FailingHandler is a handler that has failed with a message and is about to run again, while its partition waits
// (contract 7.6).
type FailingHandler struct {
	Topic                 string
	Partition             int
	HandlerKey, MessageID string
	// Failures counts the charged attempts. Since is when the first of them ended, and Next when the next one is due.
	Failures    int
	Since, Next time.Time
	// Err is the last attempt's error. It may quote data.
	Err error
}

// Text describes the failure as of now, without the handler's key.
func (f FailingHandler) Text(now time.Time) string {
	times := "once"
	if f.Failures > 1 {
		times = fmt.Sprintf("%d times", f.Failures)
	}
	next := "running again"
	if wait := f.Next.Sub(now).Round(time.Second); wait > 0 {
		next = "next in " + InWords(wait)
	}
	return fmt.Sprintf("failed %s with message %q, %s: %v", times, f.MessageID, next, f.Err)
}

// Sample is the last reading of the backlog.
type Sample struct {
	Began time.Time // when sampling began
	At    time.Time // of the last sample that succeeded
	// Err is why samples have failed since ErrSince.
	Err      error
	ErrSince time.Time
	// DueSince is the first of the latest samples in a row that found work on which this process owes progress.
	DueSince time.Time
	Handlers []telemetry.HandlerSample
}

// Succeed stores what a sample found at now. Queued is how many claimed statuses wait in memory. Statuses of a paused
// or broken handler need no progress. Neither does a worker that stands by: its time counts from its takeover.
func (s *Sample) Succeed(now time.Time, handlers []telemetry.HandlerSample, queued int, standby bool) {
	s.At, s.Err, s.Handlers = now, nil, handlers
	due := queued > 0
	for _, h := range handlers {
		due = due || h.Due > 0 && !h.Paused && !h.Broken
	}
	switch {
	case !due || standby:
		s.DueSince = time.Time{}
	case s.DueSince.IsZero():
		s.DueSince = now
	}
}

// Fail stores that a sample failed at now. Nothing is known of the time until the next one.
func (s *Sample) Fail(now time.Time, err error) {
	if s.Err == nil {
		s.ErrSince = now
	}
	s.Err, s.DueSince = err, time.Time{}
}

// InWords formats a duration without units that are zero at its end: "5m" and not "5m0s".
func InWords(d time.Duration) string {
	text := d.String()
	if minutes, exact := strings.CutSuffix(text, "m0s"); exact {
		text = minutes + "m"
	}
	if hours, exact := strings.CutSuffix(text, "h0m"); exact {
		text = hours + "h"
	}
	return text
}
