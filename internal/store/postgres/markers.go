package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgdialect"
	"github.com/gorm-inbox/inbox/models"
)

const (
	// addMarkerSQL uses the primary key, which decides. It waits for an uncommitted insertion of the same key, bounded
	// by lock_timeout. The statement sets lock_timeout and resets it, since the rest of the transaction is the
	// caller's. The last SELECT needs the count, which needs the insertion, which needs the setting: this fixes their
	// order. If the insertion fails, rolling back the transaction, or to a savepoint, resets it.
	//
	// The marker's times are the database's, except with a test's clock: the sweep judges them by that clock.
	//
	// An existing marker is locked, which writes. So the commit also waits until the synchronous standby has that
	// marker (see confirmed).
	addMarkerSQL = `
WITH before AS MATERIALIZED (
	SELECT current_setting('lock_timeout') AS lock_timeout
), bounded AS MATERIALIZED (
	SELECT lock_timeout, set_config('lock_timeout', $6::text, true) AS bound FROM before
), added AS (
	INSERT INTO {markers} (message_id, handler_key, namespace, message_type, processed_at, expires_at)
	SELECT $1::text, $2::text, $7::text, $3::text, COALESCE({latest}, $4::timestamptz), COALESCE({latest}, $4::timestamptz) + ($5::timestamptz - $4::timestamptz)
	FROM bounded WHERE bound IS NOT NULL
	ON CONFLICT (message_id, handler_key, namespace) DO UPDATE SET message_type = EXCLUDED.message_type WHERE false
	RETURNING 1
)
SELECT counted.added, set_config('lock_timeout', bounded.lock_timeout, true)
FROM bounded, (SELECT count(*) AS added FROM added) AS counted`

	// hasMarkerSQL uses the primary key.
	hasMarkerSQL = `SELECT 1 FROM {markers} WHERE message_id = $1 AND handler_key = $2 AND namespace = $3`

	// lockMarkerSQL uses the primary key. A weaker lock could be shared: see claimsLock.
	lockMarkerSQL = hasMarkerSQL + ` FOR NO KEY UPDATE`
)

func (p *Store) AddMarkerTx(ctx context.Context, tx *gorm.DB, marker models.Marker, wait time.Duration) (bool, error) {
	pool, err := base.Joined(tx)
	if err == nil {
		err = base.CheckMarker(marker)
	}
	if err != nil {
		return false, base.Doing("add marker", err)
	}
	bound := fmt.Sprintf("%dms", max(wait.Milliseconds(), 1)) // 0 would mean no bound
	added, err := store.Query(ctx, pool, p.Text(addMarkerSQL), func(rows *sql.Rows, added *int64) error {
		var restored string
		return rows.Scan(added, &restored)
	}, marker.MessageID, marker.HandlerKey, marker.MessageType, marker.ProcessedAt.UTC(), marker.ExpiresAt.UTC(), bound,
		marker.Namespace)
	if pgdialect.SQLState(err) == "55P03" { // lock not available
		err = fmt.Errorf("%w for %s: %w", store.ErrMarkerBusy, bound, err)
	}
	return len(added) == 1 && added[0] == 1, base.Doing("add marker", err)
}

func (p *Store) HasMarker(ctx context.Context, messageID, handlerKey, namespace string) (bool, error) {
	found, err := store.Query(ctx, p.Pool(ctx), p.Text(hasMarkerSQL), store.Value[int], messageID, handlerKey, namespace)
	if err == nil && len(found) > 0 {
		found, err = confirmed(ctx, p, lockMarkerSQL, messageID, handlerKey, namespace)
	}
	return len(found) > 0, base.Doing("find marker", err)
}
