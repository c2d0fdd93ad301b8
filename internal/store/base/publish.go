package base

import (
	"context"
	"database/sql"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// Publishing has a dialect's statements of Store's Publisher. Those that mark get the time last.
type Publishing struct {
	Statuses, Rejected, MarkStatus, MarkRejected string
}

// Unpublished implements Store.Unpublished.
func Unpublished(
	ctx context.Context, d Database, sql Publishing, handlerKey string, limit int,
) ([]store.Unpublished, error) {
	found, err := store.Query(ctx, d.Pool(ctx), d.Text(sql.Statuses), scanUnpublished, handlerKey, limit)
	return found, Doing("query poisoned statuses to publish", err)
}

func scanUnpublished(rows *sql.Rows, u *store.Unpublished) error {
	var lastError sql.NullString
	var m StoredMessage
	var messageID string
	err := rows.Scan(&u.StatusID, &u.Version, &u.ErrorCount, &u.AbandonedCount, &lastError, &messageID, &m.Number,
		&m.Namespace, &m.TransportName, &m.MessageType, &m.Source, &m.Content, &m.ContentType, &m.Properties,
		&m.OrderingKey, &m.ReceivedAt)
	if err != nil {
		return err
	}
	u.LastError, u.Message = lastError.String, *m.Message(messageID)
	return nil
}

// UnpublishedRejected implements Store.UnpublishedRejected.
func UnpublishedRejected(
	ctx context.Context, d Database, sql Publishing, channel string, limit int,
) ([]models.RejectedMessage, error) {
	found, err := store.Query(ctx, d.Pool(ctx), d.Text(sql.Rejected), scanRejected, channel, limit)
	return found, Doing("query rejected messages to publish", err)
}

// MarkPublished implements Store.MarkPublished.
func MarkPublished(ctx context.Context, d Database, sql Publishing, statusID string, version int64, at any) error {
	_, err := store.Exec(ctx, d.Pool(ctx), d.Text(sql.MarkStatus), statusID, version, at)
	return Doing("mark a poisoned status as published", err)
}

// MarkRejectedPublished implements Store.MarkRejectedPublished.
func MarkRejectedPublished(ctx context.Context, d Database, sql Publishing, id string, at any) error {
	_, err := store.Exec(ctx, d.Pool(ctx), d.Text(sql.MarkRejected), id, at)
	return Doing("mark a rejected message as published", err)
}
