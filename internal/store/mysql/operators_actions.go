package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
	"github.com/gorm-inbox/inbox/internal/store/operators"
	"github.com/gorm-inbox/inbox/models"
)

// The actions of operators lock rows that may be changed, change them by their IDs, and return what they have locked.
// See package operators for what each does.
const (
	// lockOpenSQL locks open rows by the primary key.
	lockOpenSQL = `
SELECT s.id, s.message_id, s.handler_key, s.lane_handler, s.lane_key, s.version FROM {statuses} s FORCE INDEX (PRIMARY)
WHERE s.id IN ({list ?1}) AND s.completed_at IS NULL AND `

	isRetryable = `(s.is_poisoned OR NOT s.is_waiting AND s.processing_started_at IS NULL AND s.last_error IS NOT NULL
	AND s.error_count + s.abandoned_count + s.interrupted_count > 0)`

	isDiscardable = `(s.is_poisoned OR s.processing_started_at IS NULL)`

	isReschedulable = `NOT s.is_poisoned AND s.processing_started_at IS NULL`

	inOrder = ` ORDER BY s.id FOR UPDATE`

	// lockEndedOneSQL locks an ended row by the unique key on (message_number, handler_key).
	lockEndedOneSQL = `
SELECT s.id, s.message_id, s.handler_key, s.lane_handler, s.lane_key, s.version FROM {statuses} s FORCE INDEX (message)
WHERE s.message_number = ?1 AND s.handler_key = ?2 AND s.version = ?3 AND s.completed_at IS NOT NULL
	AND s.outcome IN ('processed', 'discarded') FOR UPDATE`

	unclaimed = `processing_started_at = NULL, worker_id = NULL, is_waiting = 0, holds_lane = 0, version = version + 1`
	atSQL     = `LEAST(?2, COALESCE({latest}, ?2))`
)

var (
	// Assignments are taken one after the other: what reads a column comes before what changes it.
	retrySQL = `
UPDATE {statuses} s FORCE INDEX (PRIMARY) SET attempts = ` + attemptsSQL("s", `JSON_OBJECT('at', `+asJSONTime(atSQL)+`, 'retried', `+asJSONBool("1")+`)`) + `,
	error_count = 0, abandoned_count = 0, interrupted_count = 0, requeued_count = requeued_count + 1, is_poisoned = 0,
	published_at = NULL, next_attempt_at = ` + atSQL + `, poisoned_at = NULL, completed_at = NULL, outcome = '', ` + unclaimed + `
WHERE id IN ({list ?1})`

	discardSQL = `
UPDATE {statuses} FORCE INDEX (PRIMARY) SET completed_at = ` + atSQL + `, outcome = 'discarded', abandoned_count = 0, interrupted_count = 0, is_poisoned = 0,
	next_attempt_at = NULL, ` + unclaimed + `
WHERE id IN ({list ?1})`

	// The row is due at ?3, or now if that is past or NULL.
	rescheduleSQL = `
UPDATE {statuses} FORCE INDEX (PRIMARY) SET next_attempt_at = COALESCE(GREATEST(?3, ` + atSQL + `), ` + atSQL + `), version = version + 1
WHERE id IN ({list ?1})`

	releaseClaimSQL = `
UPDATE {statuses} s FORCE INDEX (PRIMARY) SET attempts = ` + attemptsSQL("s", `JSON_OBJECT('at', `+asJSONTime(atSQL)+`, 'claimed_at', `+
		asJSONTime("s.processing_started_at")+`, 'worker_id', CONVERT(s.worker_id USING utf8mb4), 'error', '`+operators.ReleasedError+`')`) + `,
	abandoned_count = abandoned_count + 1, next_attempt_at = ` + atSQL + `, ` + unclaimed + `
WHERE id IN ({list ?1})`
)

// changed is a row that is locked.
type changed struct {
	store.ChangedStatus
	version int64
}

func scanChanged(rows *sql.Rows, c *changed) error {
	var lane base.LaneColumns
	err := rows.Scan(&c.ID, &c.MessageID, &c.HandlerKey, &lane.Handler, &lane.Key, &c.version)
	c.Lane = lane.Lane()
	return err
}

func (s *Store) RetryStatuses(ctx context.Context, pool gorm.ConnPool, refs []store.VersionedID, now time.Time) (
	[]store.ChangedStatus, error,
) {
	return s.act(ctx, pool, isRetryable+inOrder, retrySQL, refs, now)
}

func (s *Store) DiscardStatuses(ctx context.Context, pool gorm.ConnPool, refs []store.VersionedID, now time.Time) (
	[]store.ChangedStatus, error,
) {
	return s.act(ctx, pool, isDiscardable+inOrder, discardSQL, refs, now)
}

func (s *Store) RescheduleStatuses(ctx context.Context, pool gorm.ConnPool, refs []store.VersionedID,
	at, now time.Time,
) ([]store.ChangedStatus, error) {
	due := sql.NullTime{Time: at, Valid: !at.IsZero()} // the driver has another zero time
	return s.act(ctx, pool, isReschedulable+inOrder, rescheduleSQL, refs, now, due)
}

func (s *Store) ReleaseClaim(ctx context.Context, pool gorm.ConnPool, ref store.VersionedID, now time.Time) (
	*store.ChangedStatus, error,
) {
	// It does not wait for the transaction of a handler, which locks the row until it ends.
	done, err := s.act(ctx, pool, `s.processing_started_at IS NOT NULL`+inOrder+` SKIP LOCKED`, releaseClaimSQL,
		[]store.VersionedID{ref}, now)
	if err != nil || len(done) == 0 {
		return nil, err
	}
	return &done[0], nil
}

// act changes the rows that fulfill a condition and are at their versions; a version of 0 is any.
func (s *Store) act(ctx context.Context, pool gorm.ConnPool, condition, statement string, refs []store.VersionedID,
	now time.Time, more ...any,
) (done []store.ChangedStatus, err error) {
	versions := make(map[string]int64, len(refs))
	for _, ref := range refs {
		versions[ref.ID] = ref.Version
	}
	wanted := slices.Sorted(maps.Keys(versions))
	locked, err := queryAll(ctx, s, pool, lockOpenSQL+condition, scanChanged, listOf(wanted))
	if err != nil {
		return nil, err
	}
	var ids mysqldialect.List
	for _, c := range locked {
		if v := versions[c.ID]; v == 0 || v == c.version {
			ids, done = append(ids, c.ID), append(done, c.ChangedStatus)
		}
	}
	_, err = execAll(ctx, s, pool, statement, ids, append([]any{now}, more...)...)
	return done, err
}

func (s *Store) RerunStatus(ctx context.Context, pool gorm.ConnPool, messageNumber int64, handlerKey string,
	version int64, now time.Time,
) (*store.ChangedStatus, error) {
	locked, err := store.Query(ctx, pool, s.Text(lockEndedOneSQL), scanChanged, messageNumber, handlerKey, version)
	if err != nil || len(locked) == 0 {
		return nil, err
	}
	if _, err := store.Exec(ctx, pool, s.Text(retrySQL), mysqldialect.List{locked[0].ID}, now); err != nil {
		return nil, err
	}
	return &locked[0].ChangedStatus, nil
}

const (
	// lockMessageSQL and deleteOneSQL use the messages' primary key.
	lockMessageSQL = `SELECT id, namespace, type, received_at FROM {messages} WHERE number = ?1 FOR UPDATE`

	// lockStatusesSQL waits for a claim that is being committed, and then sees it.
	lockStatusesSQL = `
SELECT s.id, s.message_id, s.handler_key, s.lane_handler, s.lane_key, s.processing_started_at IS NOT NULL
FROM {statuses} s FORCE INDEX (message) WHERE s.message_number = ?1 ORDER BY s.handler_key FOR UPDATE`

	deleteAnySQL = `DELETE x FROM ({rows ?1}) c STRAIGHT_JOIN {statuses} x FORCE INDEX (PRIMARY) ON x.id = c.c0`
)

func (s *Store) DeleteMessage(ctx context.Context, pool gorm.ConnPool, number int64) (deleted *models.Message,
	statuses []store.ChangedStatus, left int64, err error,
) {
	// Accepts lock the ID first. In partitions, one that is forgotten has none.
	if locked, err := s.LockMessages(ctx, pool, []int64{number}); err != nil || len(locked) == 0 {
		return nil, nil, 0, err
	}
	found, err := store.Query(ctx, pool, s.Text(lockMessageSQL), func(rows *sql.Rows, m *models.Message) error {
		var received store.Stamp
		err := rows.Scan(&m.ID, &m.Namespace, &m.Type, &received)
		m.ReceivedAt = received.Time
		return err
	}, number)
	if err != nil || len(found) == 0 {
		return nil, nil, 0, err
	}
	locked, err := store.Query(ctx, pool, s.Text(lockStatusesSQL), scanChanged, number)
	if err != nil {
		return nil, nil, 0, err
	}
	var ids mysqldialect.List
	for _, c := range locked {
		if processing := c.version != 0; processing {
			left++
			continue
		}
		ids, statuses = append(ids, c.ID), append(statuses, c.ChangedStatus)
	}
	if _, err := execAll(ctx, s, pool, deleteAnySQL, ids); err != nil {
		return nil, nil, 0, err
	}
	if left == 0 && s.partitioned.Load() {
		_, err = execAll(ctx, s, pool, forgetSQL, mysqldialect.List{number})
	}
	if left == 0 && err == nil {
		_, err = execAll(ctx, s, pool, deleteMessagesSQL, mysqldialect.List{number})
	}
	return &found[0], statuses, left, err
}

// identitiesSQL uses the messages' primary key.
const identitiesSQL = `SELECT id, namespace, number FROM {messages} FORCE INDEX (PRIMARY) WHERE number IN ({list ?1})`

// LockMessages first reads which messages these are: rows are locked as they are read, and not in the order in which a
// statement sorts them.
func (s *Store) LockMessages(ctx context.Context, pool gorm.ConnPool, numbers []int64) ([]int64, error) {
	stored, err := queryAll(ctx, s, pool, identitiesSQL, scanNumber, listOf(numbers))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(stored, func(a, b base.StoredNumber) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Namespace, b.Namespace))
	})
	pairs := make(mysqldialect.Rows, len(stored))
	for i, m := range stored {
		pairs[i] = []any{m.ID, m.Namespace}
	}
	stored, err = queryAll(ctx, s, pool, lockMessagesSQL, scanNumber, pairs)
	var locked []int64
	for _, m := range stored {
		if slices.Contains(numbers, m.Number) { // it may have been deleted and accepted again in between
			locked = append(locked, m.Number)
		}
	}
	return locked, err
}

const (
	// earliestSQL reads the first status of each message by the unique key on (message_number, handler_key).
	earliestSQL = `
SELECT message_number, MIN(sequence), MAX(message_bytes), SUM(CASE WHEN handler_key IN ({list ?2}) THEN 1 ELSE 0 END)
FROM {statuses} FORCE INDEX (message) WHERE message_number IN ({list ?1}) GROUP BY message_number`

	addStatusesSQL = `
INSERT INTO {statuses} (id, message_number, message_id, handler_key, sequence, message_bytes, created_at, lane_handler, lane_key, next_attempt_at)
{rows ?1}`
)

// AddStatuses adds rows to messages that are locked. A message without any row is about to be cleaned up.
func (s *Store) AddStatuses(ctx context.Context, pool gorm.ConnPool, key string, keys []string,
	statuses []store.AddedStatus, now time.Time,
) (added []string, err error) {
	at, err := s.ClockIn(ctx, pool, now)
	if err != nil {
		return nil, err
	}
	if at.After(now) {
		at = now
	}
	type earliest struct{ number, sequence, bytes, has int64 }
	numbers := make(mysqldialect.List, len(statuses))
	for i, each := range statuses {
		numbers[i] = each.MessageNumber
	}
	found, err := queryAll(ctx, s, pool, earliestSQL, func(rows *sql.Rows, e *earliest) error {
		return rows.Scan(&e.number, &e.sequence, &e.bytes, &e.has)
	}, numbers, listOf(keys))
	if err != nil {
		return nil, err
	}
	of := make(map[int64]earliest, len(found))
	for _, e := range found {
		of[e.number] = e
	}
	var rows mysqldialect.Rows
	for _, each := range statuses {
		e, has := of[each.MessageNumber]
		if !has || e.has > 0 {
			continue
		}
		row := []any{each.ID, each.MessageNumber, each.MessageID, key, e.sequence, e.bytes, at, nil, nil, nil}
		if each.Lane != nil {
			row[7], row[8] = each.Lane.Handler, each.Lane.Key
		}
		if each.NotBefore.After(at) {
			row[9] = each.NotBefore
		}
		rows, added = append(rows, row), append(added, each.ID)
	}
	_, err = execAll(ctx, s, pool, addStatusesSQL, rows)
	return added, err
}

const (
	lockRejectedSQL = `SELECT channel, topic, "partition", record_offset FROM {rejected} WHERE id = ?1 FOR UPDATE`
	dropRejectedSQL = `DELETE FROM {rejected} WHERE id = ?1`
)

func (s *Store) DropRejected(ctx context.Context, pool gorm.ConnPool, id string) (*models.RejectedMessage, error) {
	found, err := store.Query(ctx, pool, s.Text(lockRejectedSQL), func(rows *sql.Rows, r *models.RejectedMessage) error {
		return rows.Scan(&r.Channel, &r.Topic, &r.Partition, &r.Offset)
	}, id)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	if _, err := store.Exec(ctx, pool, s.Text(dropRejectedSQL), id); err != nil {
		return nil, fmt.Errorf("delete rejected message: %w", err)
	}
	return &found[0], nil
}

// deleteRequestsSQL uses the index on requested_at.
const deleteRequestsSQL = `DELETE FROM {worker requests} WHERE requested_at < ?1 ORDER BY requested_at, id LIMIT ?2`

func (s *Store) DeleteRequests(ctx context.Context, before time.Time, limit int) (deleted int64, err error) {
	err = s.retrying(ctx, func(pool gorm.ConnPool) error {
		deleted, err = store.Exec(ctx, pool, s.Text(deleteRequestsSQL), before, limit)
		return err
	})
	return deleted, err
}
