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
	// Several leases are locked in the order of their names, so that no two statements wait for each other.
	acquireLeasesSQL = `
INSERT INTO {locks} AS l (name, owner_id, expires_at)
SELECT k.name, $2::text::uuid, clock_timestamp() + $3::bigint * interval '1 microsecond'
FROM unnest((SELECT $1::text[])) AS k(name) ORDER BY k.name COLLATE "C"
ON CONFLICT (name) DO UPDATE SET owner_id = EXCLUDED.owner_id, expires_at = clock_timestamp() + $3::bigint * interval '1 microsecond'
WHERE l.owner_id = EXCLUDED.owner_id OR l.expires_at <= clock_timestamp()
RETURNING l.name`

	leaseOwnersSQL = `SELECT name, owner_id::text FROM {locks} WHERE name = ANY ($1::text[])`

	releaseLeasesSQL = `
DELETE FROM {locks} WHERE name IN (
	SELECT name FROM {locks} WHERE name = ANY ($1::text[]) AND owner_id = $2::text::uuid ORDER BY name COLLATE "C" FOR UPDATE)`

	deleteLeasesSQL = `DELETE FROM {locks} WHERE expires_at < clock_timestamp() - $1::bigint * interval '1 microsecond'`

	pausedSQL = `SELECT handler_key FROM {handlers} WHERE paused ORDER BY handler_key`

	setPausedSQL = `
INSERT INTO {handlers} (handler_key, paused, updated_at) VALUES ($1, $2, $3::timestamptz)
ON CONFLICT (handler_key) DO UPDATE SET paused = EXCLUDED.paused, updated_at = EXCLUDED.updated_at`

	setLegacyKeysSQL = `
INSERT INTO {handlers} (handler_key, legacy_keys, updated_at) VALUES ($1, $2, $3::timestamptz)
ON CONFLICT (handler_key) DO UPDATE SET legacy_keys = EXCLUDED.legacy_keys, updated_at = EXCLUDED.updated_at`
)

func (p *Store) AcquireLeases(
	ctx context.Context, names []string, owner string, ttl time.Duration, _ time.Time,
) ([]string, error) {
	held, err := store.Query(ctx, p.Pool(ctx), p.Text(acquireLeasesSQL), store.Value[string], texts(names), owner,
		ttl.Microseconds())
	return held, base.Doing("acquire "+base.Leases(names), err)
}

func (p *Store) DeleteExpiredLeases(ctx context.Context, age time.Duration, _ time.Time) (int64, error) {
	deleted, err := store.Exec(ctx, p.Pool(ctx), p.Text(deleteLeasesSQL), age.Microseconds())
	return deleted, base.Doing("delete expired leases", err)
}
