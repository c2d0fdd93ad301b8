package mysql

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// These statements use primary keys, or read whole tables that have only a few rows. Leases are judged by the
// database's clock.
const (
	// Several leases are locked in the order of their names, so that no two transactions wait for each other.
	lockLeasesSQL = `
SELECT name, owner_id = ?2, expires_at <= UTC_TIMESTAMP(6) FROM {locks} FORCE INDEX (PRIMARY)
WHERE name IN ({list ?1}) ORDER BY name FOR UPDATE`

	insertLeaseSQL = `INSERT INTO {locks} (name, owner_id, expires_at) VALUES (?1, ?2, UTC_TIMESTAMP(6) + INTERVAL ?3 MICROSECOND)`

	renewLeasesSQL = `
UPDATE {locks} SET owner_id = ?2, expires_at = UTC_TIMESTAMP(6) + INTERVAL ?3 MICROSECOND WHERE name IN ({list ?1})`

	leaseOwnersSQL = `SELECT name, owner_id FROM {locks} WHERE name IN ({list ?1})`

	releaseLeasesSQL = `DELETE FROM {locks} WHERE name IN ({list ?1}) AND owner_id = ?2`

	deleteLeasesSQL = `DELETE FROM {locks} WHERE expires_at < UTC_TIMESTAMP(6) - INTERVAL ?1 MICROSECOND`

	pausedSQL = `SELECT handler_key FROM {handlers} WHERE paused ORDER BY handler_key`

	setPausedSQL = `
INSERT INTO {handlers} (handler_key, paused, updated_at) VALUES (?1, ?2, ?3)
ON DUPLICATE KEY UPDATE paused = VALUES(paused), updated_at = VALUES(updated_at)`

	setLegacyKeysSQL = `
INSERT INTO {handlers} (handler_key, legacy_keys, updated_at) VALUES (?1, ?2, ?3)
ON DUPLICATE KEY UPDATE legacy_keys = VALUES(legacy_keys), updated_at = VALUES(updated_at)`
)

// lockedLease is a lease that a transaction has locked.
type lockedLease struct {
	name      string
	own, over bool
}

func (s *Store) AcquireLeases(ctx context.Context, names []string, owner string, ttl time.Duration, _ time.Time) (
	held []string, err error,
) {
	names = slices.Sorted(slices.Values(names))
	err = s.retrying(ctx, func(pool gorm.ConnPool) error {
		held = nil
		locked, err := queryAll(ctx, s, pool, lockLeasesSQL, func(rows *sql.Rows, l *lockedLease) error {
			return rows.Scan(&l.name, &l.own, &l.over)
		}, listOf(names), owner)
		if err != nil {
			return err
		}
		free := map[string]bool{} // by the names of leases that exist
		for _, l := range locked {
			free[l.name] = l.own || l.over
		}
		var renewed []string
		for _, name := range names {
			mayRenew, exists := free[name]
			switch {
			case mayRenew:
				renewed = append(renewed, name)
			case !exists:
				if _, err := store.Exec(ctx, pool, s.Text(insertLeaseSQL), name, owner, ttl.Microseconds()); err != nil {
					return err
				}
				held = append(held, name)
			}
		}
		for some := range slices.Chunk(renewed, longestList) {
			if _, err := store.Exec(ctx, pool, s.Text(renewLeasesSQL), listOf(some), owner, ttl.Microseconds()); err != nil {
				return err
			}
		}
		held = append(held, renewed...)
		return nil
	})
	if err != nil {
		held = nil
	}
	return held, base.Doing("acquire "+base.Leases(names), err)
}

// ReleaseLeases runs again after a deadlock with a transaction that takes some of them.
func (s *Store) ReleaseLeases(ctx context.Context, names []string, owner string) error {
	names = slices.Sorted(slices.Values(names))
	err := s.retrying(ctx, func(pool gorm.ConnPool) error {
		for some := range slices.Chunk(names, longestList) {
			if _, err := store.Exec(ctx, pool, s.Text(releaseLeasesSQL), listOf(some), owner); err != nil {
				return err
			}
		}
		return nil
	})
	return base.Doing("release "+base.Leases(names), err)
}

func (s *Store) DeleteExpiredLeases(ctx context.Context, age time.Duration, _ time.Time) (int64, error) {
	deleted, err := store.Exec(ctx, s.Pool(ctx), s.Text(deleteLeasesSQL), age.Microseconds())
	return deleted, base.Doing("delete expired leases", err)
}
