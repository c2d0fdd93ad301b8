package store

import (
	"context"
	"time"
)

// Each by the index its ORDER BY names.
const (
	sqliteDeleteMarkers = `
DELETE FROM {markers} WHERE rowid IN (SELECT rowid FROM {markers} WHERE expires_at < ?1 ORDER BY expires_at LIMIT ?2)`

	sqliteDeleteAudit = `
DELETE FROM {audit} WHERE rowid IN (SELECT rowid FROM {audit} WHERE occurred_at < ?1 ORDER BY occurred_at LIMIT ?2)`

	sqliteDeleteRejected = `
DELETE FROM {rejected} WHERE rowid IN (SELECT rowid FROM {rejected} WHERE rejected_at < ?1 ORDER BY rejected_at, id LIMIT ?2)`
)

func (s *sqlite) DeleteMarkers(ctx context.Context, before time.Time, limit int) (int64, error) {
	deleted, err := Exec(ctx, s.pool(ctx), s.text(sqliteDeleteMarkers), SQLiteTime(before), limit)
	return deleted, doing("delete expired markers", err)
}

func (s *sqlite) DeleteAudit(ctx context.Context, before time.Time, limit int) (int64, error) {
	deleted, err := Exec(ctx, s.pool(ctx), s.text(sqliteDeleteAudit), SQLiteTime(before), limit)
	return deleted, doing("delete old audit rows", err)
}

func (s *sqlite) DeleteRejected(ctx context.Context, before time.Time, limit int) (int64, error) {
	deleted, err := Exec(ctx, s.pool(ctx), s.text(sqliteDeleteRejected), SQLiteTime(before), limit)
	return deleted, doing("delete old rejected messages", err)
}
