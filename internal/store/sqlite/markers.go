package sqlite

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/sqlite/sqlitedialect"
	"github.com/gorm-inbox/inbox/models"
)

const (
	// addMarkerSQL uses the primary key, which decides.
	addMarkerSQL = `
INSERT INTO {markers} (message_id, handler_key, message_type, processed_at, expires_at, namespace) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (message_id, handler_key, namespace) DO NOTHING
RETURNING 1`

	// hasMarkerSQL uses the primary key.
	hasMarkerSQL = `SELECT 1 FROM {markers} WHERE message_id = ?1 AND handler_key = ?2 AND namespace = ?3`
)

// busySnapshot is SQLITE_BUSY_SNAPSHOT: the transaction has read before, and another connection has written since.
// Waiting does not help.
const busySnapshot = 517

// AddMarkerTx waits as long as the connection does (busy_timeout), and until ctx ends. It ignores the wait argument.
func (s *Store) AddMarkerTx(ctx context.Context, tx *gorm.DB, marker models.Marker, _ time.Duration) (bool, error) {
	pool, err := base.Joined(tx)
	if err == nil {
		err = base.CheckMarker(marker)
	}
	if err != nil {
		return false, base.Doing("add marker", err)
	}
	added, err := store.Query(ctx, pool, s.Text(addMarkerSQL), store.Value[int],
		marker.MessageID, marker.HandlerKey, marker.MessageType, store.SQLiteTime(marker.ProcessedAt),
		store.SQLiteTime(marker.ExpiresAt), marker.Namespace)
	if code, _ := sqlitedialect.Code(err); store.IsBusy(err) && code != busySnapshot {
		err = fmt.Errorf("%w: %w", store.ErrMarkerBusy, err)
	}
	return len(added) == 1, base.Doing("add marker", err)
}

func (s *Store) HasMarker(ctx context.Context, messageID, handlerKey, namespace string) (bool, error) {
	found, err := store.Query(ctx, s.Pool(ctx), s.Text(hasMarkerSQL), store.Value[int], messageID, handlerKey, namespace)
	return len(found) > 0, base.Doing("find marker", err)
}
