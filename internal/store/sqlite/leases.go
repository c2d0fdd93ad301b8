package sqlite

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// These statements use primary keys, or read whole tables that have only a few rows. Leases are judged by the caller's
// clock.
const (
	acquireLeaseSQL = `
INSERT INTO {locks} (name, owner_id, expires_at) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET owner_id = excluded.owner_id, expires_at = excluded.expires_at
WHERE owner_id = excluded.owner_id OR expires_at <= ?4
RETURNING name`

	leaseOwnerSQL = `SELECT owner_id FROM {locks} WHERE name = ?1`

	releaseLeaseSQL = `DELETE FROM {locks} WHERE name = ?1 AND owner_id = ?2`

	deleteLeasesSQL = `DELETE FROM {locks} WHERE expires_at < ?1`

	pausedSQL = `SELECT handler_key FROM {handlers} WHERE paused ORDER BY handler_key`

	setPausedSQL = `
INSERT INTO {handlers} (handler_key, paused, updated_at) VALUES (?1, ?2, ?3)
ON CONFLICT (handler_key) DO UPDATE SET paused = excluded.paused, updated_at = excluded.updated_at`

	setLegacyKeysSQL = `
INSERT INTO {handlers} (handler_key, legacy_keys, updated_at) VALUES (?1, ?2, ?3)
ON CONFLICT (handler_key) DO UPDATE SET legacy_keys = excluded.legacy_keys, updated_at = excluded.updated_at`
)

func (s *Store) AcquireLease(ctx context.Context, name, owner string, ttl time.Duration, now time.Time) (bool, error) {
	held, err := store.Query(ctx, s.Pool(ctx), s.Text(acquireLeaseSQL), store.Value[string], name, owner,
		store.SQLiteTime(now.Add(ttl)), store.SQLiteTime(now))
	return len(held) == 1, base.Doing("acquire lease "+name, err)
}

func (s *Store) DeleteExpiredLeases(ctx context.Context, age time.Duration, now time.Time) (int64, error) {
	deleted, err := store.Exec(ctx, s.Pool(ctx), s.Text(deleteLeasesSQL), store.SQLiteTime(now.Add(-age)))
	return deleted, base.Doing("delete expired leases", err)
}
