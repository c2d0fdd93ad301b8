package store

import (
	"context"
	"time"
)

// All by primary key or over the whole of a table with a few rows. Leases are
// judged by the clock the caller gives (contract 3.5).
const (
	sqliteAcquireLease = `
INSERT INTO {locks} (name, owner_id, expires_at) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET owner_id = excluded.owner_id, expires_at = excluded.expires_at
WHERE owner_id = excluded.owner_id OR expires_at <= ?4
RETURNING name`

	sqliteLeaseOwner = `SELECT owner_id FROM {locks} WHERE name = ?1`

	sqliteReleaseLease = `DELETE FROM {locks} WHERE name = ?1 AND owner_id = ?2`

	sqliteDeleteLeases = `DELETE FROM {locks} WHERE expires_at < ?1`

	sqlitePaused = `SELECT handler_key FROM {handlers} WHERE paused ORDER BY handler_key`

	sqliteSetPaused = `
INSERT INTO {handlers} (handler_key, paused, updated_at) VALUES (?1, ?2, ?3)
ON CONFLICT (handler_key) DO UPDATE SET paused = excluded.paused, updated_at = excluded.updated_at`
)

func (s *sqlite) AcquireLease(ctx context.Context, name, owner string, ttl time.Duration, now time.Time) (bool, error) {
	held, err := Query(ctx, s.pool(ctx), s.text(sqliteAcquireLease), Value[string], name, owner, SQLiteTime(now.Add(ttl)), SQLiteTime(now))
	return len(held) == 1, doing("acquire lease "+name, err)
}

func (s *sqlite) LeaseOwner(ctx context.Context, name string) (string, error) {
	owners, err := Query(ctx, s.pool(ctx), s.text(sqliteLeaseOwner), Value[string], name)
	return onlyOwner(owners), doing("look at lease "+name, err)
}

func (s *sqlite) ReleaseLease(ctx context.Context, name, owner string) error {
	_, err := Exec(ctx, s.pool(ctx), s.text(sqliteReleaseLease), name, owner)
	return doing("release lease "+name, err)
}

func (s *sqlite) DeleteExpiredLeases(ctx context.Context, age time.Duration, now time.Time) (int64, error) {
	deleted, err := Exec(ctx, s.pool(ctx), s.text(sqliteDeleteLeases), SQLiteTime(now.Add(-age)))
	return deleted, doing("delete expired leases", err)
}

func (s *sqlite) Paused(ctx context.Context) ([]string, error) {
	keys, err := Query(ctx, s.pool(ctx), s.text(sqlitePaused), Value[string])
	return keys, doing("list paused handler keys", err)
}

func (s *sqlite) SetPaused(ctx context.Context, handlerKey string, paused bool, now time.Time) error {
	_, err := Exec(ctx, s.pool(ctx), s.text(sqliteSetPaused), handlerKey, paused, SQLiteTime(now))
	return doing("set paused", err)
}
