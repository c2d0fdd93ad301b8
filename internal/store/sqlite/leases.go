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
	acquireLeasesSQL = `
INSERT INTO {locks} (name, owner_id, expires_at) SELECT k.value, ?2, ?3 FROM json_each(?1) k WHERE true
ON CONFLICT (name) DO UPDATE SET owner_id = excluded.owner_id, expires_at = excluded.expires_at
WHERE owner_id = excluded.owner_id OR expires_at <= ?4
RETURNING name`

	leaseOwnersSQL = `SELECT name, owner_id FROM {locks} WHERE name IN (SELECT value FROM json_each(?1))`

	releaseLeasesSQL = `DELETE FROM {locks} WHERE name IN (SELECT value FROM json_each(?1)) AND owner_id = ?2`

	deleteLeasesSQL = `DELETE FROM {locks} WHERE expires_at < ?1`

	pausedSQL = `SELECT handler_key FROM {handlers} WHERE paused ORDER BY handler_key`

	setPausedSQL = `
INSERT INTO {handlers} (handler_key, paused, updated_at) VALUES (?1, ?2, ?3)
ON CONFLICT (handler_key) DO UPDATE SET paused = excluded.paused, updated_at = excluded.updated_at`

	setLegacyKeysSQL = `
INSERT INTO {handlers} (handler_key, legacy_keys, updated_at) VALUES (?1, ?2, ?3)
ON CONFLICT (handler_key) DO UPDATE SET legacy_keys = excluded.legacy_keys, updated_at = excluded.updated_at`
)

func (s *Store) AcquireLeases(
	ctx context.Context, names []string, owner string, ttl time.Duration, now time.Time,
) ([]string, error) {
	held, err := store.Query(ctx, s.Pool(ctx), s.Text(acquireLeasesSQL), store.Value[string], base.JSONList(names), owner,
		store.SQLiteTime(now.Add(ttl)), store.SQLiteTime(now))
	return held, base.Doing("acquire "+base.Leases(names), err)
}

func (s *Store) DeleteExpiredLeases(ctx context.Context, age time.Duration, now time.Time) (int64, error) {
	deleted, err := store.Exec(ctx, s.Pool(ctx), s.Text(deleteLeasesSQL), store.SQLiteTime(now.Add(-age)))
	return deleted, base.Doing("delete expired leases", err)
}
