package dashboard

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/ops"
)

// problem is an error as a page shows it, in this package's words. Errors of the database or the authorizer go to the
// log only.
type problem struct {
	status int
	title  string
	text   string
	cause  error
	// bare answers with plain text instead of a page, because rendering a page is the cost to avoid.
	bare bool
}

func (p *problem) Error() string {
	if p.cause != nil {
		return p.title + ": " + p.cause.Error()
	}
	return p.title
}
func (p *problem) Unwrap() error { return p.cause }

func refuse(status int, title, text string, cause error) error {
	return &problem{status: status, title: title, text: text, cause: cause}
}

func badInput(text string) error {
	return refuse(http.StatusBadRequest, "Invalid input", text, nil)
}

// problems are the texts of known errors. An error that is several of them has the first.
var problems = []struct {
	err         error
	status      int
	title, text string
}{
	{ops.ErrNotAudited, http.StatusServiceUnavailable, "Nothing was done",
		"The audit row could not be written, so the request was refused."},
	{ops.ErrNotFound, http.StatusNotFound, "Not found",
		"It does not exist. It may have been completed, cleaned up or deleted."},
	{ops.ErrAmbiguous, http.StatusConflict, "Several messages have this ID",
		"An ID is unique within its channel. Find the one you mean under Messages, by its ID."},
	{ops.ErrStale, http.StatusConflict, "Changed by someone else",
		"It has changed since you loaded the page, so nothing was done. Check its current state before you decide."},
	{ops.ErrNotPoisoned, http.StatusConflict, "Nothing to retry",
		"Only poisoned and failing messages can be retried, unless they wait in their lane. Nothing was done."},
	{ops.ErrNotPending, http.StatusConflict, "It does not wait",
		"Only a pending status can be rescheduled. A poisoned one can be retried. Nothing was done."},
	{ops.ErrNotCompleted, http.StatusConflict, "It has not ended",
		"Only a completed or discarded handler can run again. After a rename, run its status under the other key again. Nothing was done."},
	{ops.ErrNotClaimed, http.StatusConflict, "It is not running",
		"No worker is processing it. Nothing was done."},
	{ops.ErrNotSkippable, http.StatusConflict, "Cannot be skipped",
		"The partition is not halted by one record, so skipping would not help or would lose records. Fix the cause, then resume it."},
	{ops.ErrStillDeclared, http.StatusConflict, "The topic is still declared",
		"Workers declare all of its partitions, or did within the last ten minutes. What holds cleanup back is to be consumed."},
	{ops.ErrNotPaused, http.StatusConflict, "Pause the handler first",
		"It is ordered. It is backfilled only while it is paused, so that its messages keep their order."},
	{ops.ErrPaused, http.StatusConflict, "A handler is paused",
		"The record runs through all of its handlers. Resume the paused one first. Nothing was done."},
	{ops.ErrProcessing, http.StatusConflict, "A handler is running",
		"Wait until it has ended, or pause the handler, then try again."},
	{cleanup.ErrLeaseHeld, http.StatusConflict, "Another cleanup is running",
		"Another worker is cleaning up this inbox. Try again later."},
	{ops.ErrNeedsApplication, http.StatusNotImplemented, "Available in the application only",
		"This dashboard has access to the database only. Use the dashboard that the application serves."},
	{ops.ErrReplayOff, http.StatusForbidden, "Replay is off",
		"The application has to allow it with the option AllowReplay of ops.Options."},
	{ops.ErrBadInput, http.StatusBadRequest, "Invalid input",
		"A filter, an ID or a page's address is malformed, too long or out of range."},
	{context.DeadlineExceeded, http.StatusGatewayTimeout, "Timed out",
		"The database, or a handler that should run again, did not respond in time. Narrow the filters, or check whether it is overloaded."},
	{context.Canceled, http.StatusServiceUnavailable, "Request cancelled",
		"The request was cancelled before it was complete."},
}

// problemOf translates an error from ops for the person who sees the page.
func problemOf(err error) *problem {
	if known, ok := errors.AsType[*problem](err); ok {
		return known
	}
	is := func(status int, title, text string) *problem {
		return &problem{status: status, title: title, text: text, cause: err}
	}
	if _, ok := errors.AsType[*handler.StillBadError](err); ok {
		return is(http.StatusConflict, "The record is still bad",
			"It stays rejected, with a new reason: reload the record to read it. Fix the decoder, the channel or the handler first.")
	}
	waiting, ok := errors.AsType[*cleanup.WaitingError](err) // a missing audit row matters more
	if ok && waiting.Err == nil && !errors.Is(err, ops.ErrNotAudited) {
		return is(http.StatusConflict, "Cleanup waits",
			"It is "+waiting.Error()+". What redeliveries may need is kept until then; see Consumers. Everything else is cleaned up.")
	}
	for _, known := range problems {
		if errors.Is(err, known.err) {
			return is(known.status, known.title, known.text)
		}
	}
	return is(http.StatusInternalServerError, "Request failed",
		"The database could not be reached or returned an error. The application's log has the details.")
}

// fail answers the request with an error. Nothing has been sent yet: pages are rendered completely before that.
func (q *request) fail(err error) {
	p := problemOf(err)
	raw := make([]byte, 4)
	_, _ = rand.Read(raw) // never fails, see its doc
	reference := hex.EncodeToString(raw)
	log := q.d.log.Info
	if p.status >= http.StatusInternalServerError {
		log = q.d.log.Error
	}
	log("dashboard request refused", zap.String(telemetry.FieldReference, reference),
		zap.Int(telemetry.FieldHTTPStatus, p.status), zap.String(telemetry.FieldActor, q.who.Actor),
		zap.String(telemetry.FieldMethod, q.r.Method), zap.String(telemetry.FieldPath, q.r.URL.Path), zap.Error(err))
	q.renderProblem(p, reference)
}

const (
	// slowReuse is how long a slow result is reused, as a multiple of the time it took. It is slow if it took longer than
	// quick. Groupings of failures and the details of a handler read thousands of rows, and open pages request them every
	// few seconds. Reuse limits them to a tenth of the time, however many people watch.
	slowReuse = 10
	quick     = 100 * time.Millisecond
	// maxReused limits how many results are stored.
	maxReused = 32
)

// slowCache stores the latest slow result for each name.
type slowCache[T any] struct {
	mu   sync.Mutex
	last map[string]reusable[T]
	// forgotten counts calls of forget. A result whose reading began before the latest call is not stored.
	forgotten int
	asking    routine.Lock // one request reads while the others wait for its result
}

type reusable[T any] struct {
	found T
	until time.Time
}

// get reads what has this name, or returns a stored result that is still valid.
func (c *slowCache[T]) get(ctx context.Context, name string, read func() (T, error)) (found T, err error) {
	if err := c.asking.Acquire(ctx); err != nil {
		return found, fmt.Errorf("wait for another request that reads the same: %w", err)
	}
	defer c.asking.Release()
	began := time.Now()
	c.mu.Lock()
	known, ok := c.last[name]
	forgotten := c.forgotten
	c.mu.Unlock()
	if ok && began.Before(known.until) {
		return known.found, nil
	}
	if found, err = read(); err != nil {
		return found, err
	}
	took := time.Since(began)
	c.mu.Lock()
	defer c.mu.Unlock()
	if took < quick || c.forgotten != forgotten {
		return found, nil
	}
	if len(c.last) >= maxReused {
		c.last = nil
	}
	if c.last == nil {
		c.last = map[string]reusable[T]{}
	}
	c.last[name] = reusable[T]{found, began.Add(took + slowReuse*took)}
	return found, nil
}

// forget drops all stored results, so that the next page shows the action that was just done.
func (c *slowCache[T]) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = nil
	c.forgotten++
}
