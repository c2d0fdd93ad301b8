package ops

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// row is a whole status.
type row struct {
	Status
	lane     *store.Lane
	attempts []Attempt
}

// rowColumns are the columns that scanRow scans. The message's columns are read one at a time by
// the unique index on its number, because a join may be planned as a scan of the whole table.
const rowColumns = `s.id, s.message_id, s.handler_key, s.version, s.error_count, s.abandoned_count, s.interrupted_count, s.requeued_count, s.last_error, s.fingerprint,
	s.created_at, s.processing_started_at, CAST(s.worker_id AS text), s.next_attempt_at, s.is_poisoned, s.completed_at, s.outcome, s.is_waiting,
	s.lane_handler, s.lane_key, s.poisoned_at,
	(SELECT namespace FROM {messages} WHERE number = s.message_number),
	(SELECT type FROM {messages} WHERE number = s.message_number),
	(SELECT source FROM {messages} WHERE number = s.message_number),
	(SELECT received_at FROM {messages} WHERE number = s.message_number)`

// openRows uses the index on open statuses, rowsOfMessages the statuses' primary key.
const (
	openRows = `
SELECT ` + rowColumns + ` FROM {statuses} s WHERE s.id {= any ID} AND ` + base.OpenSQL + ` LIMIT $2`

	rowsOfMessages = `
SELECT ` + rowColumns + ` FROM {statuses} s WHERE s.message_number {= any} AND CAST(s.id AS text) {= any text} LIMIT $2`
)

// rowsOfMessage uses the statuses' primary key.
const rowsOfMessage = `
SELECT s.attempts, ` + rowColumns + ` FROM {statuses} s WHERE s.message_number = $1 ORDER BY s.handler_key LIMIT $2`

// whole returns the statuses of a list's hits in the same order, without those that are gone. Hits of
// a list by messages have their messages' numbers. The other lists are of open statuses: one that has
// been completed meanwhile is gone.
func (o *Ops) whole(ctx context.Context, hits []hit) ([]row, error) {
	if len(hits) == 0 {
		return nil, nil
	}
	order, ids, numbers := make(map[string]int, len(hits)), make([]string, len(hits)), make([]int64, len(hits))
	for i, h := range hits {
		order[h.id], ids[i], numbers[i] = i, h.id, h.place.Number
	}
	list, err := jsonOf(ids)
	if err != nil {
		return nil, err
	}
	statement, args := openRows, []any{list, len(ids)}
	if numbers[0] != 0 {
		of, err := jsonOf(numbers)
		if err != nil {
			return nil, err
		}
		statement, args = rowsOfMessages, []any{of, len(ids), list}
	}
	rows, err := readRows(ctx, o, statement, o.scanRow, args...)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(order[a.ID], order[b.ID]) })
	return rows, nil
}

// scanRow scans rowColumns.
func (o *Ops) scanRow(rows *sql.Rows, r *row) error { return o.scanColumns(rows, r) }

// scanColumns scans rowColumns after others.
func (o *Ops) scanColumns(rows *sql.Rows, r *row, others ...any) error {
	var (
		lastError, named, worker, namespace, messageType, source sql.NullString
		created, processing, next, complete, received, parked    store.Stamp
		poisoned                                                 bool
		outcome                                                  string
		laneHandler, laneKey                                     sql.NullInt64
	)
	err := rows.Scan(append(others, &r.ID, &r.MessageID, &r.HandlerKey, &r.Version, &r.ErrorCount, &r.AbandonedCount,
		&r.InterruptedCount, &r.RequeuedCount, &lastError, &named, &created, &processing, &worker, &next, &poisoned,
		&complete, &outcome, &r.Waiting, &laneHandler, &laneKey, &parked, &namespace, &messageType, &source, &received)...)
	if err != nil {
		return err
	}
	r.WorkerID, r.CreatedAt, r.ProcessingStartedAt = worker.String, created.Time, processing.Time
	r.NextAttemptAt, r.CompletedAt, r.PoisonedAt = next.Time, complete.Time, parked.Time
	r.Namespace, r.Type, r.Source, r.ReceivedAt = namespace.String, messageType.String, source.String, received.Time
	if laneHandler.Valid && laneKey.Valid {
		r.lane, r.InLane = &store.Lane{Handler: laneHandler.Int64, Key: laneKey.Int64}, true
	}
	r.State = stateOf(complete.Time, models.Outcome(outcome), poisoned, processing.Time)
	r.Failing = r.State == StatePending && lastError.Valid && r.ErrorCount+r.AbandonedCount+r.InterruptedCount > 0
	r.LastError = o.redactor.Error(redact.Value{MessageID: r.MessageID, Type: r.Type, HandlerKey: r.HandlerKey},
		lastError.String)
	r.Fingerprint = named.String
	return nil
}

// scanWithAttempts scans a status with its attempts.
func (o *Ops) scanWithAttempts(rows *sql.Rows, r *row) error {
	var kept sql.NullString
	if err := o.scanColumns(rows, r, &kept); err != nil || !kept.Valid {
		return err
	}
	var entries []struct {
		At        string  `json:"at"`
		ClaimedAt *string `json:"claimed_at"`
		WorkerID  string  `json:"worker_id"`
		Error     *string `json:"error"`
		Poisoned  bool    `json:"poisoned"`
		Retried   bool    `json:"retried"`
	}
	if err := json.Unmarshal([]byte(kept.String), &entries); err != nil {
		return fmt.Errorf("attempts of status %s: %w", r.ID, err)
	}
	about := redact.Value{MessageID: r.MessageID, Type: r.Type, HandlerKey: r.HandlerKey}
	for _, e := range entries {
		a := Attempt{WorkerID: e.WorkerID, Poisoned: e.Poisoned, Retried: e.Retried}
		var at, claimed store.Stamp
		err := at.Scan(e.At)
		if e.ClaimedAt != nil {
			err = errors.Join(err, claimed.Scan(*e.ClaimedAt))
		}
		if err != nil {
			return fmt.Errorf("attempts of status %s: %w", r.ID, err)
		}
		a.At, a.ClaimedAt = at.Time, claimed.Time
		switch {
		case e.Error != nil:
			a.Error = o.redactor.Error(about, whole(*e.Error))
		case !e.Retried:
			a.Error = "its worker vanished"
		}
		r.attempts = append(r.attempts, a)
	}
	return nil
}

// whole returns an attempt's error without its last word if it was cut: half of a secret would not be recognised.
func whole(text string) string {
	if utf8.RuneCountInString(text) < columns.MaxAttemptError {
		return text
	}
	return text[:strings.LastIndexByte(text, ' ')+1] + "…"
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

// stored is a time as it is in an index: SQLite's text, or the same form of PostgreSQL's time. It
// sorts as the index does.
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

// argument returns a place's time as an argument of a statement.
func (o *Ops) argument(at string) (any, error) {
	if o.sqlite {
		return at, nil
	}
	var t store.Stamp
	err := t.Scan(at)
	return t.Time, err
}
