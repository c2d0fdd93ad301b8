package dashboard

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/ops"
)

// problem is an error as a page shows it. Its texts are this package's own. Errors from the
// database or the authorizer go to the log only.
type problem struct {
	status int
	title  string
	text   string
	cause  error
	// bare answers with plain text instead of a page, because rendering a page is the cost to
	// avoid.
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
	return refuse(http.StatusBadRequest, "That cannot be used", text, nil)
}

// problemOf translates an error from ops for the person who sees the page.
func problemOf(err error) *problem {
	var told *problem
	var stillBad *handler.StillBadError
	is := func(status int, title, text string) *problem {
		return &problem{status: status, title: title, text: text, cause: err}
	}
	switch {
	case errors.As(err, &told):
		return told
	case errors.As(err, &stillBad):
		return is(http.StatusConflict, "The record is still bad",
			"It was not accepted and keeps its row, with the new reason: load the record again to read it. Mend the decoder or the channel first.")
	case errors.Is(err, ops.ErrNotAudited):
		return is(http.StatusServiceUnavailable, "Nothing was done",
			"The audit row could not be written, so the action, or the look, was refused.")
	case errors.Is(err, ops.ErrNotFound):
		return is(http.StatusNotFound, "It is not there",
			"There is nothing of that name, or not any more: it may have been cleaned up or deleted meanwhile.")
	case errors.Is(err, ops.ErrAmbiguous):
		return is(http.StatusConflict, "Several messages have that ID",
			"An ID is unique within its channel. Find the one you mean under Messages, by its ID.")
	case errors.Is(err, ops.ErrStale):
		return is(http.StatusConflict, "Somebody was faster",
			"It has changed since you looked, and was left alone. Look again before you decide.")
	case errors.Is(err, ops.ErrNotPoisoned):
		return is(http.StatusConflict, "It is not poisoned",
			"Only poisoned messages can be retried or discarded. It was left alone.")
	case errors.Is(err, ops.ErrProcessing):
		return is(http.StatusConflict, "A handler is running on it",
			"Wait until it has ended, or pause the handler, then delete it.")
	case errors.Is(err, ops.ErrNeedsApplication):
		return is(http.StatusNotImplemented, "Only the application can do this",
			"This dashboard reaches the database alone. Use the dashboard that the application itself serves.")
	case errors.Is(err, ops.ErrReplayOff):
		return is(http.StatusForbidden, "Replay is off", "The application has to allow it with ops.AllowReplay.")
	case errors.Is(err, ops.ErrBadInput):
		return is(http.StatusBadRequest, "That cannot be used",
			"A filter, an ID or a page's address is malformed, too long or out of range.")
	case errors.Is(err, context.DeadlineExceeded):
		return is(http.StatusGatewayTimeout, "That took too long",
			"The database did not answer in time. Narrow the filters, or look whether it is overloaded.")
	case errors.Is(err, context.Canceled):
		return is(http.StatusServiceUnavailable, "That was ended", "The request was ended before its answer was complete.")
	}
	return is(http.StatusInternalServerError, "That did not work",
		"The database refused or could not be reached. What it said is in the application's log.")
}

// fail answers the request with an error. Nothing has been sent before, because pages are rendered
// completely before they are sent.
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
