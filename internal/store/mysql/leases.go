package mysql

import (
	"context"
	"database/sql"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// These statements use primary keys, or read whole tables that have only a few rows. Leases are judged by the
// database's clock.
const (
	lockLeaseSQL = `SELECT owner_id = ?2, expires_at <= UTC_TIMESTAMP(6) FROM {locks} WHERE name = ?1 FOR UPDATE`

	insertLeaseSQL = `INSERT INTO {locks} (name, owner_id, expires_at) VALUES (?1, ?2, UTC_TIMESTAMP(6) + INTERVAL ?3 MICROSECOND)`

	renewLeaseSQL = `UPDATE {locks} SET owner_id = ?2, expires_at = UTC_TIMESTAMP(6) + INTERVAL ?3 MICROSECOND WHERE name = ?1`

	leaseOwnerSQL = `SELECT owner_id FROM {locks} WHERE name = ?1`

	releaseLeaseSQL = `DELETE FROM {locks} WHERE name = ?1 AND owner_id = ?2`

	deleteLeasesSQL = `DELETE FROM {locks} WHERE expires_at < UTC_TIMESTAMP(6) - INTERVAL ?1 MICROSECOND`

	pausedSQL = `SELECT handler_key FROM {handlers} WHERE paused ORDER BY handler_key`

	setPausedSQL = `
INSERT INTO {handlers} (handler_key, paused, updated_at) VALUES (?1, ?2, ?3)
ON DUPLICATE KEY UPDATE paused = VALUES(paused), updated_at = VALUES(updated_at)`

	setLegacyKeysSQL = `
INSERT INTO {handlers} (handler_key, legacy_keys, updated_at) VALUES (?1, ?2, ?3)
ON DUPLICATE KEY UPDATE legacy_keys = VALUES(legacy_keys), updated_at = VALUES(updated_at)`
)

func (s *Store) AcquireLease(ctx context.Context, name, owner string, ttl time.Duration, _ time.Time) (
	held bool, err error,
) {
	err = s.retrying(ctx, func(pool gorm.ConnPool) error {
		found, err := store.Query(ctx, pool, s.Text(lockLeaseSQL), func(rows *sql.Rows, is *[2]bool) error {
			return rows.Scan(&is[0], &is[1])
		}, name, owner)
		if err != nil {
			return err
		}
		statement := insertLeaseSQL
		if len(found) == 1 {
			if held = found[0][0] || found[0][1]; !held {
				return nil
			}
			statement = renewLeaseSQL
		}
		_, err = store.Exec(ctx, pool, s.Text(statement), name, owner, ttl.Microseconds())
		held = err == nil
		return err
	})
	return held, base.Doing("acquire lease "+name, err)
}

func (s *Store) DeleteExpiredLeases(ctx context.Context, age time.Duration, _ time.Time) (int64, error) {
	deleted, err := store.Exec(ctx, s.Pool(ctx), s.Text(deleteLeasesSQL), age.Microseconds())
	return deleted, base.Doing("delete expired leases", err)
}
