package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// attempt is one call of Accept in this process, which is an application's view of the database.
type attempt struct {
	began, ended time.Time
	err          error
}

// watch keeps the attempts of the last minutes. It is safe for concurrent use.
type watch struct {
	mu       sync.Mutex
	attempts []attempt
}

// keptAttempts is more than there are during any disturbance.
const keptAttempts = 20_000

func (w *watch) note(a attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.attempts = append(w.attempts, a); len(w.attempts) > keptAttempts {
		w.attempts = slices.Clone(w.attempts[keptAttempts/2:])
	}
}

// overlapping returns the attempts that were made in some part of a time, as far as they have ended.
func (w *watch) overlapping(from, to time.Time) (found []attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.attempts {
		if a.ended.After(from) && a.began.Before(to) {
			found = append(found, a)
		}
	}
	return found
}

// acceptedSince reports whether an attempt that began after a time has succeeded.
func (w *watch) acceptedSince(at time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.attempts, func(a attempt) bool { return a.err == nil && a.began.After(at) })
}

// failed is an attempt that returned an error. One that hangs does after its timeout.
func failed(a attempt) bool { return a.err != nil }

// failedWith is an attempt whose error contains one of these texts.
func failedWith(texts ...string) func(attempt) bool {
	return func(a attempt) bool {
		return a.err != nil && slices.ContainsFunc(texts, func(text string) bool {
			return strings.Contains(a.err.Error(), text)
		})
	}
}

// slowed is an attempt that succeeded late.
func slowed(a attempt) bool { return a.err == nil && a.ended.Sub(a.began) >= slowness }

// The rows that show that something works again after a time.
const (
	effectAfter = `SELECT 1 FROM effects WHERE at > $1 LIMIT 1`
	runAfter    = `SELECT 1 FROM runs WHERE at > $1 LIMIT 1`
	recordAfter = `SELECT 1 FROM inbox_messages WHERE received_at > $1 AND id LIKE 'm-%' LIMIT 1`
)

// recoveryPatience is how long a recovery is waited for. A longer one does not count as felt, and the ledger will show
// what it has left.
const recoveryPatience = 60 * time.Second

// recovered returns outcome.felt for the database, after a disturbance that began at that time and ends now. It was
// felt if one of the attempts made meanwhile is as told. The recovery ends when a message is accepted and an effect is
// stored, both of which began after now.
func (w *world) recovered(began time.Time, felt func(attempt) bool) func() (bool, time.Duration) {
	end := time.Now()
	return func() (bool, time.Duration) {
		took, works := w.await("accepting and processing", end, recoveryPatience, func() bool {
			return w.watch.acceptedSince(end) && w.any(effectAfter, end.UTC())
		})
		made := w.watch.overlapping(began, end)
		if at := slices.IndexFunc(made, felt); at < 0 {
			w.logf("not felt: %d accepts, the last of which failed with: %v", len(made), lastError(made))
			return false, took
		}
		return works, took
	}
}

// lastError returns the last error of some attempts, or nil.
func lastError(made []attempt) (err error) {
	for _, a := range made {
		if a.err != nil {
			err = a.err
		}
	}
	return err
}

// resumed returns outcome.felt for a disturbance that ends now. The recovery ends when the query has a newer row.
func (w *world) resumed(felt bool, query string) func() (bool, time.Duration) {
	end := time.Now()
	return func() (bool, time.Duration) {
		took, works := w.await(query, end, recoveryPatience, func() bool { return w.any(query, end.UTC()) })
		return works && felt, took
	}
}

// await waits for a condition. It returns the time since a moment, and whether the condition became true in time. It is
// no failure if it did not.
func (w *world) await(what string, since time.Time, limit time.Duration, condition func() bool) (time.Duration, bool) {
	for deadline := time.Now().Add(limit); !condition(); {
		if time.Now().After(deadline) {
			w.logf("%s: not within %s", what, limit)
			return time.Since(since), false
		}
		pause(context.Background(), 20*time.Millisecond)
	}
	return time.Since(since), true
}

// number returns the result of a query for a number, and reports whether the database has answered.
func (w *world) number(query string, args ...any) (n int, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := w.db.QueryRowContext(ctx, workload.Text(w.db, query), args...).Scan(&n)
	return n, err == nil
}

// any reports whether a query has a row, and the database has answered.
func (w *world) any(query string, args ...any) bool {
	n, ok := w.number(fmt.Sprintf("SELECT count(*) FROM (%s) AS found", query), args...)
	return ok && n > 0
}

// claims returns how many statuses a process has claimed.
func (w *world) claims(pid int) (int, bool) {
	return w.number(`SELECT count(*) FROM inbox_handler_statuses s JOIN inbox_workers w ON w.id = s.worker_id
		WHERE w.pid = $1 AND s.processing_started_at IS NOT NULL AND s.completed_at IS NULL`, pid)
}

// takenOver waits until a process that does nothing more has no claims, for limit at most. It was felt if it had some.
func (w *world) takenOver(pid int, limit time.Duration) (bool, time.Duration) {
	began, held := time.Now(), false
	for time.Since(began) < limit {
		if n, ok := w.claims(pid); ok && n == 0 {
			return held, time.Since(began)
		} else if ok {
			held = true
		}
		pause(context.Background(), 20*time.Millisecond)
	}
	return false, limit
}
