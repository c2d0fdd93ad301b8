package sqlite

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// These statements use the indexes that their ORDER BY names.
const (
	deleteMarkersSQL = `
DELETE FROM {markers} WHERE rowid IN (SELECT rowid FROM {markers} WHERE expires_at < ?1 ORDER BY expires_at LIMIT ?2)`

	deleteAuditSQL = `
DELETE FROM {audit} WHERE rowid IN (SELECT rowid FROM {audit} WHERE occurred_at < ?1 ORDER BY occurred_at LIMIT ?2)`

	deleteRejectedSQL = `
DELETE FROM {rejected} WHERE rowid IN (SELECT rowid FROM {rejected} WHERE rejected_at < ?1 ORDER BY rejected_at, id LIMIT ?2)`
)

func (s *Store) DeleteMarkers(ctx context.Context, before time.Time, limit int) (int64, error) {
	deleted, err := store.Exec(ctx, s.Pool(ctx), s.Text(deleteMarkersSQL), store.SQLiteTime(before), limit)
	return deleted, base.Doing("delete expired markers", err)
}

func (s *Store) DeleteAudit(ctx context.Context, before time.Time, limit int) (int64, error) {
	deleted, err := store.Exec(ctx, s.Pool(ctx), s.Text(deleteAuditSQL), store.SQLiteTime(before), limit)
	return deleted, base.Doing("delete old audit rows", err)
}

func (s *Store) DeleteRejected(ctx context.Context, before time.Time, limit int) (int64, error) {
	deleted, err := store.Exec(ctx, s.Pool(ctx), s.Text(deleteRejectedSQL), store.SQLiteTime(before), limit)
	return deleted, base.Doing("delete old rejected messages", err)
}
