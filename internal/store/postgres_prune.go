package store

import (
	"context"
	"time"
)

// Each by the index its ORDER BY names, rows by their place: they are locked,
// so they stay there. What another transaction uses is passed over. Audit rows need no lock,
// which would take the right to update them: nobody changes one, so each stays in its place.
const (
	postgresDeleteMarkers = `
DELETE FROM {markers} WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM {markers} WHERE expires_at < $1::timestamptz ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
))`

	postgresDeleteAudit = `
DELETE FROM {audit} WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM {audit} WHERE occurred_at < $1::timestamptz ORDER BY occurred_at LIMIT $2
))`

	postgresDeleteRejected = `
DELETE FROM {rejected} WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM {rejected} WHERE rejected_at < $1::timestamptz ORDER BY rejected_at, id LIMIT $2 FOR UPDATE SKIP LOCKED
))`
)

func (p *postgres) DeleteMarkers(ctx context.Context, before time.Time, limit int) (int64, error) {
	deleted, err := Exec(ctx, p.pool(ctx), p.text(postgresDeleteMarkers), before.UTC(), limit)
	return deleted, doing("delete expired markers", err)
}

func (p *postgres) DeleteAudit(ctx context.Context, before time.Time, limit int) (int64, error) {
	deleted, err := Exec(ctx, p.pool(ctx), p.text(postgresDeleteAudit), before.UTC(), limit)
	return deleted, doing("delete old audit rows", err)
}

func (p *postgres) DeleteRejected(ctx context.Context, before time.Time, limit int) (int64, error) {
	deleted, err := Exec(ctx, p.pool(ctx), p.text(postgresDeleteRejected), before.UTC(), limit)
	return deleted, doing("delete old rejected messages", err)
}
