package simulated

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/sqlite"
	"github.com/gorm-inbox/inbox/models"
)

// The statements that lock name the rows in an inner query. Its LIMIT -1 keeps the engine from merging the two, so that
// no other row is locked.
const (
	free  = `true)`  // passes over rows that others have locked
	await = `false)` // waits for them

	// lockStatusesSQL locks open statuses by their IDs, as FOR NO KEY UPDATE SKIP LOCKED.
	lockStatusesSQL = `
SELECT id FROM (
	SELECT id, rowid AS place FROM {statuses} WHERE id IN (SELECT value FROM json_each(?1)) AND ` + base.OpenSQL + ` LIMIT -1
) WHERE lock_row('{statuses}', place, 2, ` + free

	// lockMessagesSQL locks messages by their numbers, as FOR UPDATE SKIP LOCKED.
	lockMessagesSQL = `
SELECT number FROM (
	SELECT number, rowid AS place FROM {messages} WHERE number IN (SELECT value FROM json_each(?1)) LIMIT -1
) WHERE lock_row('{messages}', place, 3, ` + free

	// lockNumberedSQL locks messages by their numbers, as FOR NO KEY UPDATE.
	lockNumberedSQL = `
SELECT number FROM (
	SELECT number, rowid AS place FROM {messages} WHERE number IN (SELECT value FROM json_each(?1)) LIMIT -1
) WHERE lock_row('{messages}', place, 2, ` + await + ` ORDER BY number`

	// lockKnownSQL locks messages by their IDs, as FOR NO KEY UPDATE.
	lockKnownSQL = `
SELECT number FROM (
	SELECT m.number, m.rowid AS place FROM json_each(?1) k
	JOIN {messages} m ON m.id = json_extract(k.value, '$[0]') AND m.namespace = json_extract(k.value, '$[1]') LIMIT -1
) WHERE lock_row('{messages}', place, 2, ` + await
)

// within runs work with a store whose statements are all part of one transaction.
func (s *Store) within(ctx context.Context, work func(in *sqlite.Store) error) error {
	return s.Transaction(ctx, func(pool gorm.ConnPool) error {
		tx := s.DB.Session(&gorm.Session{NewDB: true, Context: ctx, DisableNestedTransaction: true})
		tx.Statement.ConnPool = pool
		return work(s.Store.Within(tx))
	})
}

// retried runs something again that has collided with another transaction.
func retried(ctx context.Context, run func() error) error {
	for attempt := 1; ; attempt++ {
		err := run()
		if err == nil || attempt == base.ClaimAttempts || ctx.Err() != nil ||
			!store.IsUniqueViolation(err) && !store.Collided(err) {
			return err
		}
	}
}

// lock returns what a statement has locked of a list.
func lock[T comparable](ctx context.Context, s *Store, pool gorm.ConnPool, statement string, list []T) (
	map[T]bool, error,
) {
	rows, err := store.Query(ctx, pool, s.Text(statement), store.Value[T], base.JSONList(list))
	locked := make(map[T]bool, len(rows))
	for _, row := range rows {
		locked[row] = true
	}
	return locked, err
}

// LockMessages locks for actions of operators.
func (s *Store) LockMessages(ctx context.Context, pool gorm.ConnPool, numbers []int64) ([]int64, error) {
	return store.Query(ctx, pool, s.Text(lockNumberedSQL), store.Value[int64], base.JSONList(numbers))
}

// Accept follows the store of SQLite, with this store's locks.
func (s *Store) Accept(ctx context.Context, batch store.AcceptBatch) ([]store.Accepted, error) {
	return base.AcceptRetrying(ctx, s.Transaction, s, batch, nil)
}

// LockKnown locks first and reads what it has locked.
func (s *Store) LockKnown(
	ctx context.Context, pool gorm.ConnPool, messages []*store.NewMessage, now time.Time,
) ([]base.Known, error) {
	keys := make([][2]string, len(messages))
	for i, message := range messages {
		keys[i] = [2]string{message.ID, message.Namespace}
	}
	numbers, err := store.Query(ctx, pool, s.Text(lockKnownSQL), store.Value[int64], base.JSONList(keys))
	if err != nil {
		return nil, err
	}
	locked := make(map[int64]bool, len(numbers))
	for _, number := range numbers {
		locked[number] = true
	}
	found, err := s.Store.LockKnown(ctx, pool, messages, s.now(now))
	known := found[:0]
	for _, message := range found { // one that was inserted since is not locked
		if locked[message.Number] {
			known = append(known, message)
		}
	}
	return known, err
}

// InsertNew takes the time of receipt from the database's clock.
func (s *Store) InsertNew(ctx context.Context, pool gorm.ConnPool, messages []*store.NewMessage,
	statuses []base.StatusRow, worker string, now time.Time,
) ([]base.StoredNumber, time.Time, error) {
	return s.Store.InsertNew(ctx, pool, messages, statuses, worker, s.now(now))
}

// InsertRejected takes the time of rejection from the database's clock.
func (s *Store) InsertRejected(ctx context.Context, pool gorm.ConnPool, rejected []models.RejectedMessage) error {
	for i := range rejected {
		rejected[i].RejectedAt = s.now(rejected[i].RejectedAt)
	}
	return s.Store.InsertRejected(ctx, pool, rejected)
}

// KeepGap takes the time at which it was found from the database's clock.
func (s *Store) KeepGap(ctx context.Context, gap models.Gap) (bool, error) {
	gap.FoundAt = s.now(gap.FoundAt)
	return s.Store.KeepGap(ctx, gap)
}

// InsertStatuses takes the time of creation from the database's clock, and keeps the worker from being marked as
// released.
func (s *Store) InsertStatuses(ctx context.Context, pool gorm.ConnPool, statuses []base.StatusRow, worker string,
	now time.Time,
) (added []string, claimedAt time.Time, err error) {
	if worker, err = s.lockWorker(ctx, pool, worker); err != nil {
		return nil, time.Time{}, err
	}
	return s.Store.InsertStatuses(ctx, pool, statuses, worker, s.now(now))
}

// Complete takes the time of completion from the database's clock.
func (s *Store) Complete(
	ctx context.Context, completions []store.Completion, at time.Time, locked store.Locked,
) (applied []bool, err error) {
	return unlocked(ctx, s, completions, locked, func(c store.Completion) string { return c.StatusID },
		func(in *sqlite.Store, completions []store.Completion) ([]bool, error) {
			return in.Complete(ctx, completions, s.now(at), store.AwaitLocked)
		})
}

// CompleteTx takes the time of completion from the database's clock.
func (s *Store) CompleteTx(ctx context.Context, tx *gorm.DB, completions []store.Completion, at time.Time) (
	[]bool, error,
) {
	return s.Store.CompleteTx(ctx, tx, completions, s.now(at))
}

// Settle follows the store of SQLite.
func (s *Store) Settle(
	ctx context.Context, settlements []store.Settlement, locked store.Locked,
) (applied []bool, err error) {
	return unlocked(ctx, s, settlements, locked, func(c store.Settlement) string { return c.StatusID },
		func(in *sqlite.Store, settlements []store.Settlement) ([]bool, error) {
			return in.Settle(ctx, settlements, store.AwaitLocked)
		})
}

// unlocked applies transitions, but if others are not awaited, only those of rows that it can lock.
func unlocked[T any](ctx context.Context, s *Store, transitions []T, locked store.Locked, idOf func(T) string,
	apply func(*sqlite.Store, []T) ([]bool, error),
) (applied []bool, err error) {
	if locked == store.AwaitLocked || len(transitions) == 0 {
		return apply(s.Store, transitions)
	}
	ids := make([]string, len(transitions))
	for i, transition := range transitions {
		ids[i] = idOf(transition)
	}
	err = s.within(ctx, func(in *sqlite.Store) error {
		ours, err := lock(ctx, s, in.Pool(ctx), lockStatusesSQL, ids)
		if err != nil {
			return err
		}
		var chosen []T
		var at []int
		for i, id := range ids {
			if ours[id] {
				chosen, at = append(chosen, transitions[i]), append(at, i)
			}
		}
		done, err := apply(in, chosen)
		applied = make([]bool, len(transitions))
		for i, is := range done {
			applied[at[i]] = is
		}
		return err
	})
	return applied, base.Doing("apply to what is not locked", err)
}

// currentSQL locks nothing.
const currentSQL = `
SELECT k.key FROM json_each(?1) k
JOIN {statuses} s ON s.id = json_extract(k.value, '$[0]') AND s.version = json_extract(k.value, '$[1]') AND ` + base.OpenSQL

// CurrentTx only reads.
func (s *Store) CurrentTx(ctx context.Context, tx *gorm.DB, completions []store.Completion) ([]bool, error) {
	pool, err := base.Joined(tx)
	if err != nil {
		return nil, base.Doing("check claims", err)
	}
	rows, current := make([][2]any, len(completions)), make([]bool, len(completions))
	for i, c := range completions {
		rows[i] = [2]any{c.StatusID, c.Version}
	}
	found, err := store.Query(ctx, pool, s.Text(currentSQL), store.Value[int], base.JSONList(rows))
	for _, i := range found {
		current[i] = true
	}
	return current, base.Doing("check claims", err)
}

// AddMarkerTx takes the times from the database's clock, and waits no longer than wait.
func (s *Store) AddMarkerTx(ctx context.Context, tx *gorm.DB, marker models.Marker, wait time.Duration) (bool, error) {
	kept := marker.ExpiresAt.Sub(marker.ProcessedAt)
	marker.ProcessedAt = s.now(marker.ProcessedAt)
	marker.ExpiresAt = marker.ProcessedAt.Add(kept)
	bounded, cancel := context.WithTimeout(ctx, max(wait, time.Millisecond))
	defer cancel()
	added, err := s.Store.AddMarkerTx(bounded, tx, marker, wait)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return false, fmt.Errorf("%w for %s", store.ErrMarkerBusy, wait)
	}
	return added, err
}

// The statements of pruning pass over rows that others have locked.
const (
	deleteMarkersSQL = `
DELETE FROM {markers} WHERE rowid IN (SELECT place FROM (
	SELECT rowid AS place FROM {markers} WHERE expires_at < ?1 ORDER BY expires_at LIMIT -1
) WHERE lock_row('{markers}', place, 3, ` + free + ` LIMIT ?2)`

	deleteRejectedSQL = `
DELETE FROM {rejected} WHERE rowid IN (SELECT place FROM (
	SELECT rowid AS place FROM {rejected} WHERE rejected_at < ?1 ORDER BY rejected_at, id LIMIT -1
) WHERE lock_row('{rejected}', place, 3, ` + free + ` LIMIT ?2)`
)

// DeleteMarkers deletes none that has not expired by the database's clock.
func (s *Store) DeleteMarkers(ctx context.Context, before time.Time, limit int) (int64, error) {
	deleted, err := store.Exec(ctx, s.Pool(ctx), s.Text(deleteMarkersSQL), store.SQLiteTime(s.latest(before)), limit)
	return deleted, base.Doing("delete expired markers", err)
}

// DeleteRejected passes over rows that others have locked.
func (s *Store) DeleteRejected(ctx context.Context, before time.Time, limit int) (int64, error) {
	deleted, err := store.Exec(ctx, s.Pool(ctx), s.Text(deleteRejectedSQL), store.SQLiteTime(before), limit)
	return deleted, base.Doing("delete old rejected messages", err)
}

// Clock asks the database.
func (s *Store) Clock(ctx context.Context, now time.Time) (time.Time, error) {
	return s.ClockIn(ctx, s.Pool(ctx), now)
}

// ClockIn asks on this pool.
func (s *Store) ClockIn(ctx context.Context, pool gorm.ConnPool, now time.Time) (time.Time, error) {
	times, err := store.Query(ctx, pool, `SELECT clock(0)`, store.Value[store.Stamp])
	if err != nil || s.testClock {
		return now, base.Doing("read the database's clock", err)
	}
	return times[0].Time, nil
}

// CheckSettings accepts a database in memory.
func (s *Store) CheckSettings(context.Context, bool) ([]store.Warning, error) { return nil, nil }

// cleanupStatusesSQL deletes the statuses of some messages that are old enough.
const cleanupStatusesSQL = `
DELETE FROM {statuses} WHERE message_number IN (SELECT value FROM json_each(?1)) AND completed_at < COALESCE((
	SELECT json_extract(own.value, '$[1]') FROM json_each(?3) own WHERE json_extract(own.value, '$[0]') = {statuses}.handler_key
), ?2)`

// cleanupMessagesSQL deletes those that have no statuses.
const cleanupMessagesSQL = `
DELETE FROM {messages} WHERE number IN (SELECT value FROM json_each(?1))
	AND NOT EXISTS (SELECT 1 FROM {statuses} s WHERE s.message_number = {messages}.number)`

// Cleanup locks the messages before it judges what is to be deleted, and passes over those that an accept has locked.
func (s *Store) Cleanup(ctx context.Context, req store.CleanupRequest) (store.CleanupResult, error) {
	found, err := s.Expired(ctx, req)
	if err != nil {
		return store.CleanupResult{Next: req.After}, err
	}
	result := store.CleanupResult{Next: found.Next, Done: found.Done}
	if len(found.MessageNumbers) == 0 {
		return result, nil
	}
	cutoffs := make([][2]string, len(req.HandlerCutoffs))
	for i, own := range req.HandlerCutoffs {
		cutoffs[i] = [2]string{own.HandlerKey, store.SQLiteTime(own.Cutoff)}
	}
	err = s.Transaction(ctx, func(pool gorm.ConnPool) error {
		numbers, err := store.Query(ctx, pool, s.Text(lockMessagesSQL), store.Value[int64],
			base.JSONList(found.MessageNumbers))
		result.Passed = int64(len(found.MessageNumbers) - len(numbers))
		if err != nil || len(numbers) == 0 {
			return err
		}
		locked := base.JSONList(numbers)
		result.Statuses, err = store.Exec(ctx, pool, s.Text(cleanupStatusesSQL), locked, store.SQLiteTime(req.Cutoff),
			base.JSONList(cutoffs))
		if err != nil {
			return err
		}
		result.Messages, err = store.Exec(ctx, pool, s.Text(cleanupMessagesSQL), locked)
		return err
	})
	if err != nil {
		return store.CleanupResult{Next: req.After}, base.Doing("cleanup", err)
	}
	return result, nil
}

// DeleteExpired works like Cleanup.
func (s *Store) DeleteExpired(ctx context.Context, expired []store.ExpiredMessage) (
	result store.CleanupResult, err error,
) {
	numbers := make([]int64, len(expired))
	for i, e := range expired {
		numbers[i] = int64(e.Message.Number)
	}
	err = s.within(ctx, func(in *sqlite.Store) error {
		locked, err := lock(ctx, s, in.Pool(ctx), lockMessagesSQL, numbers)
		if err != nil {
			return err
		}
		var ours []store.ExpiredMessage
		for i, e := range expired {
			if locked[numbers[i]] {
				ours = append(ours, e)
			}
		}
		result, err = in.DeleteExpired(ctx, ours)
		result.Passed += int64(len(expired) - len(ours))
		return err
	})
	if err != nil {
		return store.CleanupResult{}, base.Doing("delete archived messages", err)
	}
	return result, nil
}
