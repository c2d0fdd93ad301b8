package store

import (
	"context"
	"time"
)

// All by primary key or over the whole of a table with a few rows. Leases are
// judged by clock_timestamp(), the time now (contract 3.5).
const (
	postgresAcquireLease = `
INSERT INTO {locks} AS l (name, owner_id, expires_at)
VALUES ($1, $2::text::uuid, clock_timestamp() + $3::bigint * interval '1 microsecond')
ON CONFLICT (name) DO UPDATE SET owner_id = EXCLUDED.owner_id, expires_at = clock_timestamp() + $3::bigint * interval '1 microsecond'
WHERE l.owner_id = EXCLUDED.owner_id OR l.expires_at <= clock_timestamp()
RETURNING true`

	postgresLeaseOwner = `SELECT owner_id::text FROM {locks} WHERE name = $1`

	postgresReleaseLease = `DELETE FROM {locks} WHERE name = $1 AND owner_id = $2::text::uuid`

	postgresDeleteLeases = `DELETE FROM {locks} WHERE expires_at < clock_timestamp() - $1::bigint * interval '1 microsecond'`

	postgresPaused = `SELECT handler_key FROM {handlers} WHERE paused ORDER BY handler_key`

	postgresSetPaused = `
INSERT INTO {handlers} (handler_key, paused, updated_at) VALUES ($1, $2, $3::timestamptz)
ON CONFLICT (handler_key) DO UPDATE SET paused = EXCLUDED.paused, updated_at = EXCLUDED.updated_at`
)

func (p *postgres) AcquireLease(ctx context.Context, name, owner string, ttl time.Duration, _ time.Time) (bool, error) {
	held, err := Query(ctx, p.pool(ctx), p.text(postgresAcquireLease), Value[bool], name, owner, ttl.Microseconds())
	return len(held) == 1, doing("acquire lease "+name, err)
}

func (p *postgres) LeaseOwner(ctx context.Context, name string) (string, error) {
	owners, err := Query(ctx, p.pool(ctx), p.text(postgresLeaseOwner), Value[string], name)
	return onlyOwner(owners), doing("look at lease "+name, err)
}

// onlyOwner of a lease by its name: there is one, or none.
func onlyOwner(owners []string) string {
	if len(owners) == 0 {
		return ""
	}
	return owners[0]
}

func (p *postgres) ReleaseLease(ctx context.Context, name, owner string) error {
	_, err := Exec(ctx, p.pool(ctx), p.text(postgresReleaseLease), name, owner)
	return doing("release lease "+name, err)
}

func (p *postgres) DeleteExpiredLeases(ctx context.Context, age time.Duration, _ time.Time) (int64, error) {
	deleted, err := Exec(ctx, p.pool(ctx), p.text(postgresDeleteLeases), age.Microseconds())
	return deleted, doing("delete expired leases", err)
}

func (p *postgres) Paused(ctx context.Context) ([]string, error) {
	keys, err := Query(ctx, p.pool(ctx), p.text(postgresPaused), Value[string])
	return keys, doing("list paused handler keys", err)
}

func (p *postgres) SetPaused(ctx context.Context, handlerKey string, paused bool, now time.Time) error {
	_, err := Exec(ctx, p.pool(ctx), p.text(postgresSetPaused), handlerKey, paused, now.UTC())
	return doing("set paused", err)
}
