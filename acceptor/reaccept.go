package acceptor

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// ErrRejectedNotFound means that no rejected message has that ID, or no longer.
var ErrRejectedNotFound = errors.New("no such rejected message")

// AcceptRejected decodes a rejected record again with its channel's current decoder, accepts its
// messages and deletes the rejected row, all in one transaction (contract 7.4). The results are
// those of the record's messages. An ID that is known by now is a duplicate, which is as good.
//
// If any message of the record cannot be accepted, nothing is stored, whatever the policies. The
// error is then a *handler.StillBadError with the reason. The row stays and gets this reason. An
// unknown ID, or one that another caller has just accepted, is ErrRejectedNotFound. A channel that
// this process does not declare, or that it delivers without an inbox, is an *InvalidError with
// reason unknown_channel or not_stored, and the row keeps its reason. After any other error it
// is unknown whether the record was accepted: call again, and ErrRejectedNotFound then means that
// it was.
//
// A record with several messages (batched CloudEvents) is accepted as a whole. That includes
// messages that were stored when the record was rejected because of another message. They are
// duplicates only as long as they are stored. Messages that were handled and cleaned up since are
// new, and their handlers run again: accept such records within the retention, or make sure that
// their handlers tolerate it.
//
// The messages count as received now: in their lanes they come after those accepted since.
// AcceptRejected is safe for concurrent use.
func (a *Acceptor) AcceptRejected(ctx context.Context, id string) ([]Result, error) {
	return a.AcceptRejectedBy(ctx, id, nil)
}

// AcceptRejectedBy is AcceptRejected on behalf of an operator. The audit row, if not nil, is added
// in the transaction that stores what the record holds or, if the record is still bad, the new
// reason (contract 11.3).
func (a *Acceptor) AcceptRejectedBy(ctx context.Context, id string, audit *models.Audit) ([]Result, error) {
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
	if a.unstored[row.Channel] {
		return nil, fmt.Errorf("rejected message %q: %w", id, notStored("", row.Channel))
	}
	record, err := rejectedRecord(row)
	if err != nil {
		return nil, a.keepRejected(ctx, row, err, audit)
	}
	received := a.decoders[row.Channel].Decode(row.Channel, record)
	tracing, span := a.tracedRecords(ctx, row.Channel, []envelope.Received{received})
	p, err := a.planRejected(row.Channel, received, span.Stored())
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

// badError marks what is wrong with the record, as opposed to the database.
type badError struct{ reason error }

func (e *badError) Error() string { return e.reason.Error() }

func (a *Acceptor) loadRejected(ctx context.Context, id string) (models.RejectedMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, a.statementTimeout)
	defer cancel()
	row, err := a.store.LoadRejected(ctx, id)
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
	record := envelope.Record{
		Topic: row.Topic, Partition: int(row.Partition), Offset: row.Offset, Timestamp: row.Timestamp.UTC(), Key: row.Key,
		Value: row.Value,
	}
	raw, unread, err := properties.RawHeaders(row.Headers)
	if cut := (*properties.CutError)(nil); errors.As(err, &cut) {
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
func (a *Acceptor) planRejected(channel string, received envelope.Received, traceparent string) (*plan, error) {
	if received.Err != nil {
		return nil, &badError{received.Err}
	}
	if len(received.Messages) == 0 {
		return nil, &badError{&InvalidError{Reason: reasonNoMessage, Detail: "the record holds no message"}}
	}
	p, _ := a.planRecords(channel, []envelope.Received{received}, nil, traceparent)
	for i, r := range p.results {
		if r.Outcome == handler.OutcomeUnrouted { // ignoring it would lose it
			p.results[i].Err = unroutedError(p.messages[i])
		}
	}
	if err := invalid(p.results); err != nil {
		return nil, &badError{err}
	}
	return p, nil
}

func (a *Acceptor) persistRejected(ctx context.Context, id string, p *plan) error {
	ctx, cancel := context.WithTimeout(ctx, a.statementTimeout)
	defer cancel()
	p.batch.Now = a.clock.Now()
	stored, err := a.store.AcceptRejected(ctx, id, p.batch)
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

// keepRejected stores why the row stays.
func (a *Acceptor) keepRejected(
	ctx context.Context, row models.RejectedMessage, reason error, audit *models.Audit,
) error {
	still := &handler.StillBadError{ID: row.ID, Channel: row.Channel, Err: reason}
	ctx, cancel := context.WithTimeout(ctx, a.statementTimeout)
	defer cancel()
	err := a.store.SetRejectedReason(ctx, row.ID, a.reason(row.Channel, row.ID, reason), audit)
	switch {
	case errors.Is(err, store.ErrRejectedGone): // another caller has accepted it
		return rejectedError(row.ID, err)
	case err != nil:
		return errors.Join(still, rejectedError(row.ID, err))
	}
	return still
}
