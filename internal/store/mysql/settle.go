package mysql

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
)

// settleSQL uses the primary key. The rows are locked. A poisoned row has no next attempt. MySQL takes assignments one
// after the other, so that those which read a column come before those which change it.
var settleSQL = `
UPDATE ({rows ?1}) c STRAIGHT_JOIN {statuses} s FORCE INDEX (PRIMARY) ON s.id = c.c0 SET
	s.attempts = CASE WHEN c.c7 IS NULL THEN s.attempts ELSE ` + attemptsSQL("s", failedAttemptSQL) + ` END,
	s.error_count = c.c1, s.abandoned_count = c.c2, s.interrupted_count = c.c3,
	s.last_error = COALESCE(c.c4, s.last_error), s.fingerprint = COALESCE(c.c5, s.fingerprint),
	s.is_poisoned = c.c8, s.next_attempt_at = CASE WHEN c.c8 THEN NULL ELSE c.c6 END,
	s.processing_started_at = NULL, s.worker_id = NULL, s.is_waiting = 0, s.holds_lane = 0, s.version = s.version + 1,
	s.poisoned_at = CASE WHEN c.c8 THEN c.c7 ELSE s.poisoned_at END`

// failedAttemptSQL is the entry of an attempt that failed. Its claim is the row's until now. It has no error if its
// worker vanished.
var failedAttemptSQL = fmt.Sprintf(`JSON_OBJECT('at', %s, 'claimed_at', %s, 'worker_id', CONVERT(s.worker_id USING utf8mb4),
	'error', LEFT(CONVERT(c.c4 USING utf8mb4), %d), 'poisoned', %s)`, asJSONTime("c.c7"), asJSONTime("s.processing_started_at"),
	columns.MaxAttemptError, asJSONBool("c.c8"))

// asJSONTime returns a time as RFC 3339 has it, NULL for NULL.
func asJSONTime(at string) string { return `DATE_FORMAT(` + at + `, '%Y-%m-%dT%H:%i:%s.%fZ')` }

func asJSONBool(value string) string {
	return `JSON_EXTRACT(CASE WHEN ` + value + ` THEN 'true' ELSE 'false' END, '$')`
}

// attemptsSQL is the column attempts of the row with one more entry, a JSON object. The oldest entry is dropped beyond
// columns.MaxAttempts.
func attemptsSQL(row, entry string) string {
	return fmt.Sprintf(`JSON_ARRAY_APPEND(CASE WHEN %[1]s.attempts IS NULL THEN '[]'
		WHEN JSON_LENGTH(%[1]s.attempts) >= %[2]d THEN JSON_REMOVE(%[1]s.attempts, '$[0]')
		ELSE %[1]s.attempts END, '$', %[3]s)`, row, columns.MaxAttempts, entry)
}

func (s *Store) Settle(ctx context.Context, settlements []store.Settlement, locked store.Locked) (
	applied []bool, err error,
) {
	if len(settlements) == 0 {
		return []bool{}, nil
	}
	err = s.retrying(ctx, func(pool gorm.ConnPool) (err error) {
		applied, err = s.settle(ctx, pool, settlements, lockingBy(lockVersionedSQL, locked))
		return err
	})
	if err != nil {
		return nil, base.Doing("settle", err)
	}
	return applied, nil
}

func (s *Store) settle(ctx context.Context, pool gorm.ConnPool, settlements []store.Settlement, statement string) (
	[]bool, error,
) {
	wanted := make([]versioned, len(settlements))
	for i, each := range settlements {
		wanted[i] = versioned{each.StatusID, each.Version}
	}
	applied, err := s.lockVersioned(ctx, pool, statement, wanted)
	if err != nil {
		return nil, err
	}
	var rows mysqldialect.Rows
	for i, each := range settlements {
		if !applied[i] {
			continue
		}
		text, named := base.Failure(each)
		row := []any{each.StatusID, each.ErrorCount, each.AbandonedCount, each.InterruptedCount, text, named,
			each.NextAttemptAt, nil, each.Poisoned}
		if !each.FailedAt.IsZero() {
			row[7] = each.FailedAt
		}
		rows = append(rows, row)
	}
	_, err = execAll(ctx, s, pool, settleSQL, rows)
	return applied, err
}
