package ops

import (
	"context"
	"database/sql"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// row is a status as a walk meets it, and where that is.
type row struct {
	Status
	place  place
	number int64
	lane   *store.Lane
	// empty: a message without statuses.
	empty bool
}

// rowColumns are what scanRow takes. Of the message one column at a time, each by
// the unique index on its number: a join may be planned as a walk over all.
const rowColumns = `s.id, s.message_number, s.message_id, s.handler_key, s.version, s.error_count, s.abandoned_count, s.requeued_count, s.last_error,
	s.created_at, s.processing_started_at, CAST(s.worker_id AS text), s.next_attempt_at, s.is_poisoned, s.completed_at, s.outcome, s.is_waiting,
	s.lane_handler, s.lane_key`

const messageColumns = `
	(SELECT type FROM {messages} WHERE number = s.message_number),
	(SELECT source FROM {messages} WHERE number = s.message_number),
	(SELECT received_at FROM {messages} WHERE number = s.message_number)`

// scanRow scans rowColumns and then what is given besides.
func (o *Ops) scanRow(rows *sql.Rows, r *row, more ...any) error {
	var (
		lastError, worker                   sql.NullString
		created, processing, next, complete store.Stamp
		poisoned                            bool
		outcome                             string
		laneHandler, laneKey                sql.NullInt64
	)
	err := rows.Scan(append([]any{&r.ID, &r.number, &r.MessageID, &r.HandlerKey, &r.Version, &r.ErrorCount, &r.AbandonedCount, &r.RequeuedCount, &lastError,
		&created, &processing, &worker, &next, &poisoned, &complete, &outcome, &r.Waiting, &laneHandler, &laneKey}, more...)...)
	if err != nil {
		return err
	}
	r.WorkerID, r.CreatedAt, r.ProcessingStartedAt, r.NextAttemptAt, r.CompletedAt = worker.String, created.Time, processing.Time, next.Time, complete.Time
	if laneHandler.Valid && laneKey.Valid {
		r.lane, r.InLane = &store.Lane{Handler: laneHandler.Int64, Key: laneKey.Int64}, true
	}
	r.State = stateOf(complete.Time, models.Outcome(outcome), poisoned, processing.Time)
	r.Failing = r.State == StatePending && lastError.Valid && r.ErrorCount+r.AbandonedCount > 0
	r.LastError = lastError.String // redacted once its message is known
	return nil
}

func stateOf(completed time.Time, outcome models.Outcome, poisoned bool, processing time.Time) State {
	switch {
	case !completed.IsZero() && outcome == models.OutcomeDiscarded:
		return StateDiscarded
	case !completed.IsZero() && outcome == models.OutcomeSuperseded:
		return StateSuperseded
	case !completed.IsZero():
		return StateCompleted
	case poisoned:
		return StatePoisoned
	case !processing.IsZero():
		return StateProcessing
	default:
		return StatePending
	}
}

// scanWhole scans rowColumns, messageColumns and the place's time as it is
// stored: what users wrote in a zone of theirs stands in SQLite's indexes by
// its text, which no time tells.
func (o *Ops) scanWhole(rows *sql.Rows, r *row) error {
	var messageType, source sql.NullString
	var received store.Stamp
	var at stored
	if err := o.scanRow(rows, r, &messageType, &source, &received, &at); err != nil {
		return err
	}
	r.Type, r.Source, r.ReceivedAt = messageType.String, source.String, received.Time
	r.place = place{At: string(at), ID: r.ID}
	o.redactStatus(&r.Status)
	return nil
}

// stored is a time as it stands in an index: SQLite's text, and the same form
// of PostgreSQL's. It sorts as the index does.
type stored string

func (s *stored) Scan(source any) error {
	switch source := source.(type) {
	case time.Time:
		*s = stored(store.SQLiteTime(source))
	case string:
		*s = stored(source)
	case []byte:
		*s = stored(source)
	}
	return nil
}

// argument makes one of a place's time.
func (o *Ops) argument(at string) (any, error) {
	if o.sqlite {
		return at, nil
	}
	var t store.Stamp
	err := t.Scan(at)
	return t.Time, err
}

// statusesOf are the statuses of messages, by handler key and at most most of each call's messages together.
// By the unique index on (message_number, handler_key).
const statusesOf = `
SELECT ` + rowColumns + ` FROM {statuses} s WHERE s.message_number {= any} ORDER BY s.message_number, s.handler_key LIMIT $2`

func (o *Ops) statusesOf(ctx context.Context, numbers []int64) ([]row, error) {
	list, err := jsonOf(numbers)
	if err != nil {
		return nil, err
	}
	return look(ctx, o, statusesOf, func(rows *sql.Rows, r *row) error { return o.scanRow(rows, r) }, list, statusesAtOnce)
}

// statusesAtOnce bounds what one look at messages' statuses reads: more than any
// application has handlers.
const statusesAtOnce = 100_000
