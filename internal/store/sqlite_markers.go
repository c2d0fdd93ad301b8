package store

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

const (
	// By the primary key, which decides.
	sqliteAddMarker = `
INSERT INTO {markers} (message_id, handler_key, message_type, processed_at, expires_at, namespace) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (message_id, handler_key, namespace) DO NOTHING
RETURNING 1`

	// By the primary key.
	sqliteHasMarker = `SELECT 1 FROM {markers} WHERE message_id = ?1 AND handler_key = ?2 AND namespace = ?3`
)

// sqliteSnapshot is SQLITE_BUSY_SNAPSHOT: the transaction has read before and
// somebody else has written since. No waiting helps against it.
const sqliteSnapshot = 517

// AddMarkerTx waits as the connection does (busy_timeout), and for ctx.
func (s *sqlite) AddMarkerTx(ctx context.Context, tx *gorm.DB, marker models.Marker, _ time.Duration) (bool, error) {
	pool, err := joined(tx)
	if err == nil {
		err = checkMarker(marker)
	}
	if err != nil {
		return false, doing("add marker", err)
	}
	added, err := Query(ctx, pool, s.text(sqliteAddMarker), Value[int],
		marker.MessageID, marker.HandlerKey, marker.MessageType, SQLiteTime(marker.ProcessedAt), SQLiteTime(marker.ExpiresAt), marker.Namespace)
	if code, _ := sqliteCode(err); IsBusy(err) && code != sqliteSnapshot {
		err = fmt.Errorf("%w: %w", ErrMarkerBusy, err)
	}
	return len(added) == 1, doing("add marker", err)
}

func (s *sqlite) HasMarker(ctx context.Context, messageID, handlerKey, namespace string) (bool, error) {
	found, err := Query(ctx, s.pool(ctx), s.text(sqliteHasMarker), Value[int], messageID, handlerKey, namespace)
	return len(found) > 0, doing("look for marker", err)
}
