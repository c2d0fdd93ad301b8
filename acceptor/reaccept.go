package acceptor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// ErrRejectedNotFound means that no rejected message has that ID, or no longer.
var ErrRejectedNotFound = errors.New("no such rejected message")

// AcceptRejected decodes a rejected record again with its channel's current decoder, accepts its messages and deletes
// the rejected row, all in one transaction (contract 7.4). There is one result per message of the record. A message
// whose ID is known by now is a duplicate, which counts as accepted.
//
// If any message of the record cannot be accepted, nothing is stored, under any policy. The error is then a
// *handler.StillBadError with the reason. The row stays and gets this reason. An unknown ID, or one that another caller
// has just accepted, is ErrRejectedNotFound. A channel that this process does not declare is an *InvalidError with
// reason unknown_channel, and the row keeps its reason. After any other error it is unknown whether the record was
// accepted: call again, and ErrRejectedNotFound then means that it was.
//
// A record of an Inline or Direct channel is not stored. Its handlers run again while the caller waits, one attempt
// each, at most until ctx ends; on an Inline channel those that have processed their message before are left out. When
// all have processed it, the row is deleted. If one fails, the row stays with the new reason. If the process ends in
// between, the row stays, and the next call runs the handlers that are not marked as done: on a Direct channel all of
// them (contract 7.4, 7.6). ErrRunning means that another call in this process runs the record.
//
// A record with several messages (batched CloudEvents) is accepted as a whole. That includes messages that were stored
// when the record was rejected because of another message. They are duplicates only as long as they are stored.
// Messages that were handled and cleaned up since are new, and their handlers run again: accept such records within the
// retention, or make sure that their handlers tolerate it.
//
// The messages count as received now: in their lanes they come after messages that were accepted in between.
// AcceptRejected is safe for concurrent use.
func (a *Acceptor) AcceptRejected(ctx context.Context, id string) ([]Result, error) {
	return a.AcceptRejectedBy(ctx, id, nil, nil)
}

// AcceptRejectedBy is AcceptRejected on behalf of an operator. The audit row, if not nil, is added in the transaction
// that stores the record's messages or, if the record is still bad, the new reason (contract 11.3). begun, if not nil,
// is called before handlers run, and its error ends the call before they do. If the process ends while they run, begun
// has been called, and the audit row is missing.
func (a *Acceptor) AcceptRejectedBy(
	ctx context.Context, id string, begun func(context.Context) error, audit *models.Audit,
) ([]Result, error) {
	parsed, err := uuid.Parse(id)
	if err != nil {
		return nil, fmt.Errorf("rejected message %q: %w", id, ErrRejectedNotFound)
	}
	id = parsed.String()
	row, err := a.loadRejected(ctx, id)
	if err != nil {
		return nil, err
	}
	if a.channels[row.Channel] == nil {
		return nil, fmt.Errorf("rejected message %q: %w", id,
			&InvalidError{Reason: reasonUnknownChannel, Detail: fmt.Sprintf("channel %q is not declared", row.Channel)})
	}
	if err := a.openRejected(ctx, &row); errors.As(err, new(*handler.PoisonError)) {
		return nil, a.keepRejected(ctx, row, err, audit)
	} else if err != nil {
		return nil, fmt.Errorf("rejected message %q: %w", id, err)
	}
	record, err := rejectedRecord(row)
	if err != nil {
		return nil, a.keepRejected(ctx, row, err, audit)
	}
	received := a.decoders[row.Channel].Decode(row.Channel, record)
	if errors.Is(received.Err, envelope.ErrUnavailable) {
		return nil, rejectedError(id, received.Err) // not a reason to keep
	}
	if a.unstored[row.Channel] {
		return a.rerun(ctx, row, received, begun, audit)
	}
	tracing, span := a.tracedRecords(ctx, row.Channel, []envelope.Received{received})
	p, err := a.planRejected(ctx, row.Channel, received, span.Stored())
	if err == nil {
		p.batch.Audit = audit
		err = a.persistRejected(tracing, id, p)
	}
	span.End(err)
	bad := &badError{}
	switch {
	case err == nil:
		a.report(ctx, p)
		return p.results, nil
	case errors.As(err, &bad):
		return nil, a.keepRejected(ctx, row, bad.reason, audit)
	default:
		return nil, rejectedError(id, err)
	}
}

// ErrRunning means that a rejected record is being run again by another call.
var ErrRunning = errors.New("it is being run again already")

// rerun runs the handlers of a record that its channel does not store, and deletes the row when all have processed it.
func (a *Acceptor) rerun(ctx context.Context, row models.RejectedMessage, received envelope.Received,
	begun func(context.Context) error, audit *models.Audit,
) ([]Result, error) {
	if _, running := a.rerunning.LoadOrStore(row.ID, true); running {
		return nil, fmt.Errorf("rejected message %q: %w", row.ID, ErrRunning)
	}
	defer a.rerunning.Delete(row.ID)
	if _, err := a.loadRejected(ctx, row.ID); err != nil { // a call that has just ended may have deleted it
		return nil, err
	}
	if err := a.checkRunnable(row.Channel, received); err != nil {
		return nil, a.keepRejected(ctx, row, err, audit)
	}
	if begun != nil {
		if err := begun(ctx); err != nil {
			return nil, fmt.Errorf("rejected message %q: %w", row.ID, err)
		}
	}
	limited, cancel := withTimeToStore(ctx)
	defer cancel()
	results, bad, err := a.cfg.RunAgain(limited, row.Channel, received)
	if audit != nil {
		audit.OccurredAt = a.cfg.Clock.Now()
	}
	if err != nil {
		return nil, fmt.Errorf("rejected message %q: run its handlers again: %w", row.ID, err)
	}
	// The handlers have run, so store the result even if the caller has gone.
	ctx = context.WithoutCancel(ctx)
	if bad != nil {
		return nil, a.keepRejected(ctx, row, bad, audit)
	}
	ctx, end := context.WithTimeout(ctx, a.cfg.StatementTimeout)
	defer end()
	_, err = a.cfg.Store.AcceptRejected(ctx, row.ID, store.AcceptBatch{Now: a.cfg.Clock.Now(), Audit: audit})
	return results, rejectedError(row.ID, err)
}

// withTimeToStore returns a context that leaves a quarter of ctx's time, if that has an end, for storing the
// result of a run.
func withTimeToStore(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ends := ctx.Deadline()
	if !ends {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)*3/4)
}

// checkRunnable returns why no handler can run a record that its channel does not store. Unrouted messages prevent it,
// as they do when a record is accepted again, unless the policy ignores them and other messages have handlers.
func (a *Acceptor) checkRunnable(channel string, received envelope.Received) error {
	if received.Err != nil {
		return received.Err
	}
	if len(received.Messages) == 0 {
		return &InvalidError{Reason: reasonNoMessage, Detail: "the record holds no message"}
	}
	var unrouted []handler.RawMessage
	for _, m := range received.Messages {
		if len(a.cfg.Registry.Route(channel, m.Type)) == 0 {
			unrouted = append(unrouted, m)
		}
	}
	ignores := a.channels[channel].Unrouted == UnroutedIgnore
	if len(unrouted) > 0 && (!ignores || len(unrouted) == len(received.Messages)) {
		return a.unroutedError(unrouted[0])
	}
	return nil
}

// badError marks what is wrong with the record, as opposed to the database.
type badError struct{ reason error }

func (e *badError) Error() string { return e.reason.Error() }

func (a *Acceptor) loadRejected(ctx context.Context, id string) (models.RejectedMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StatementTimeout)
	defer cancel()
	row, err := a.cfg.Store.LoadRejected(ctx, id)
	return row, rejectedError(id, err)
}

func rejectedError(id string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrRejectedGone):
		return fmt.Errorf("rejected message %q: %w", id, ErrRejectedNotFound)
	default:
		return fmt.Errorf("rejected message %q: %w", id, err)
	}
}

// rejectedRecord is the inverse of rejection. Only a timestamp outside the years 1 to 9999 was
// altered when the row was stored.
func rejectedRecord(row models.RejectedMessage) (envelope.Record, error) {
	record := envelope.Record{Topic: row.Topic, Partition: int(row.Partition), Offset: row.Offset,
		Timestamp: row.Timestamp.UTC(), Key: row.Key, Value: row.Value}
	raw, unread, err := properties.RawHeaders(row.Headers)
	if cut, ok := errors.AsType[*properties.CutError](err); ok {
		return record, &InvalidError{Reason: reasonCut, Err: cut}
	}
	if unread {
		record.RawHeaders = raw
		return record, err
	}
	record.Headers, err = properties.ParseHeaders(row.Headers)
	return record, err
}

// planRejected plans all of the record's messages, or none.
func (a *Acceptor) planRejected(
	ctx context.Context, channel string, received envelope.Received, traceparent string,
) (*plan, error) {
	if received.Err != nil {
		return nil, &badError{received.Err}
	}
	if len(received.Messages) == 0 {
		return nil, &badError{&InvalidError{Reason: reasonNoMessage, Detail: "the record holds no message"}}
	}
	p, _, err := a.planRecords(ctx, channel, []envelope.Received{received}, nil, traceparent)
	if err != nil {
		return nil, err
	}
	for i, r := range p.results {
		if r.Outcome == handler.OutcomeUnrouted { // ignoring it would lose it
			p.results[i].Err = a.unroutedError(p.messages[i])
		}
	}
	if err := invalid(p.results); err != nil {
		return nil, &badError{err}
	}
	return p, nil
}

func (a *Acceptor) persistRejected(ctx context.Context, id string, p *plan) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StatementTimeout)
	defer cancel()
	p.batch.Now = a.cfg.Clock.Now()
	stored, err := a.cfg.Store.AcceptRejected(ctx, id, p.batch)
	if store.IsData(err) && !errors.Is(err, store.ErrNotAudited) {
		return &badError{&InvalidError{MessageID: p.messages[0].ID, Reason: reasonRefused, Err: err}}
	}
	if err != nil {
		return err
	}
	p.take(stored)
	if err := invalid(p.results); err != nil { // an ID conflict, for which nothing was stored
		a.reportDiffering(p)
		return &badError{err}
	}
	return nil
}

// keepRejected stores why the row stays. A cut record can never be accepted, so its row keeps the reason for which it
// was rejected.
func (a *Acceptor) keepRejected(ctx context.Context, row models.RejectedMessage, why error, audit *models.Audit) error {
	still := &handler.StillBadError{ID: row.ID, Channel: row.Channel, Err: why}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StatementTimeout)
	defer cancel()
	text := row.Reason
	if !errors.As(why, new(*properties.CutError)) {
		text = a.reason(row.Channel, row.ID, why)
	}
	err := a.cfg.Store.SetRejectedReason(ctx, row.ID, text, audit)
	switch {
	case errors.Is(err, store.ErrRejectedGone): // another caller has accepted it
		return rejectedError(row.ID, err)
	case err != nil:
		return errors.Join(still, rejectedError(row.ID, err))
	}
	return still
}
