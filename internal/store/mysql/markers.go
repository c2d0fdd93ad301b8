package mysql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

const (
	// addMarkerSQL uses the primary key, which decides. Another transaction that has inserted the same marker is waited
	// for. The marker's times are the database's, except with a test's clock: the sweep judges them by that clock.
	addMarkerSQL = `
INSERT INTO {markers} (message_id, handler_key, message_type, processed_at, expires_at, namespace)
VALUES (?1, ?2, ?3, COALESCE({latest}, ?4), COALESCE({latest}, ?4) + INTERVAL ?5 MICROSECOND, ?6)`

	// hasMarkerSQL uses the primary key.
	hasMarkerSQL = `SELECT 1 FROM {markers} WHERE message_id = ?1 AND handler_key = ?2 AND namespace = ?3`

	// waitSQL reads and setWaitSQL sets how many seconds a statement of the session waits for a lock.
	waitSQL    = `SELECT @@innodb_lock_wait_timeout`
	setWaitSQL = `SET innodb_lock_wait_timeout = %d`
)

// resetTimeout bounds the statement that gives the session its own setting back.
const resetTimeout = 10 * time.Second

// AddMarkerTx waits for whole seconds, one at least. A duplicate fails the statement alone, and not the transaction.
func (s *Store) AddMarkerTx(ctx context.Context, tx *gorm.DB, marker models.Marker, wait time.Duration) (
	added bool, err error,
) {
	pool, err := base.Joined(tx)
	if err == nil {
		err = base.CheckMarker(marker)
	}
	if err != nil {
		return false, base.Doing("add marker", err)
	}
	before, err := store.Query(ctx, pool, waitSQL, store.Value[int])
	if err != nil {
		return false, base.Doing("add marker", err)
	}
	seconds := max(1, int(wait.Round(time.Second)/time.Second))
	if _, err := store.Exec(ctx, pool, fmt.Sprintf(setWaitSQL, seconds)); err != nil {
		return false, base.Doing("add marker", err)
	}
	_, err = store.Exec(ctx, pool, s.Text(addMarkerSQL), marker.MessageID, marker.HandlerKey, marker.MessageType,
		marker.ProcessedAt, marker.ExpiresAt.Sub(marker.ProcessedAt).Microseconds(), marker.Namespace)
	// The session is the application's.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), resetTimeout)
	defer cancel()
	_, reset := store.Exec(last, pool, fmt.Sprintf(setWaitSQL, before[0]))
	switch {
	case store.IsUniqueViolation(err):
		return false, base.Doing("add marker", reset)
	case isLockNotFree(err):
		err = fmt.Errorf("%w for %d s: %w", store.ErrMarkerBusy, seconds, err)
	}
	return err == nil, base.Doing("add marker", errors.Join(err, reset))
}

func (s *Store) HasMarker(ctx context.Context, messageID, handlerKey, namespace string) (bool, error) {
	found, err := store.Query(ctx, s.Pool(ctx), s.Text(hasMarkerSQL), store.Value[int], messageID, handlerKey, namespace)
	return len(found) > 0, base.Doing("find marker", err)
}
