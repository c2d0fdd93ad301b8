package postgres

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// These statements use primary keys, or read whole tables that have only a few rows. Leases are judged by
// clock_timestamp(), the database's current time.
const (
	acquireLeaseSQL = `
INSERT INTO {locks} AS l (name, owner_id, expires_at)
VALUES ($1, $2::text::uuid, clock_timestamp() + $3::bigint * interval '1 microsecond')
ON CONFLICT (name) DO UPDATE SET owner_id = EXCLUDED.owner_id, expires_at = clock_timestamp() + $3::bigint * interval '1 microsecond'
WHERE l.owner_id = EXCLUDED.owner_id OR l.expires_at <= clock_timestamp()
RETURNING true`

	leaseOwnerSQL = `SELECT owner_id::text FROM {locks} WHERE name = $1`

	releaseLeaseSQL = `DELETE FROM {locks} WHERE name = $1 AND owner_id = $2::text::uuid`

	deleteLeasesSQL = `DELETE FROM {locks} WHERE expires_at < clock_timestamp() - $1::bigint * interval '1 microsecond'`

	pausedSQL = `SELECT handler_key FROM {handlers} WHERE paused ORDER BY handler_key`

	setPausedSQL = `
INSERT INTO {handlers} (handler_key, paused, updated_at) VALUES ($1, $2, $3::timestamptz)
ON CONFLICT (handler_key) DO UPDATE SET paused = EXCLUDED.paused, updated_at = EXCLUDED.updated_at`

	setLegacyKeysSQL = `
INSERT INTO {handlers} (handler_key, legacy_keys, updated_at) VALUES ($1, $2, $3::timestamptz)
ON CONFLICT (handler_key) DO UPDATE SET legacy_keys = EXCLUDED.legacy_keys, updated_at = EXCLUDED.updated_at`
)

func (p *Store) AcquireLease(ctx context.Context, name, owner string, ttl time.Duration, _ time.Time) (bool, error) {
	held, err := store.Query(ctx, p.Pool(ctx), p.Text(acquireLeaseSQL), store.Value[bool], name, owner, ttl.Microseconds())
	return len(held) == 1, base.Doing("acquire lease "+name, err)
}

func (p *Store) DeleteExpiredLeases(ctx context.Context, age time.Duration, _ time.Time) (int64, error) {
	deleted, err := store.Exec(ctx, p.Pool(ctx), p.Text(deleteLeasesSQL), age.Microseconds())
	return deleted, base.Doing("delete expired leases", err)
}
