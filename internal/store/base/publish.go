package base

import (
	"context"
	"database/sql"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// Publishing has a dialect's statements of store.Publisher.
type Publishing struct {
	// Statuses and Rejected list references, Status and Record load a row.
	Statuses, Rejected, Status, Record string
	// MarkStatus and MarkRejected get the time last.
	MarkStatus, MarkRejected string
}

// noID comes before every ID.
const noID = "00000000-0000-0000-0000-000000000000"

func (c Common) Unpublished(ctx context.Context, handlerKey, after string, limit int) ([]store.UnpublishedRef, error) {
	return c.unpublished(ctx, c.sql.Statuses, handlerKey, after, limit)
}

func (c Common) UnpublishedRejected(
	ctx context.Context, channel, after string, limit int,
) ([]store.UnpublishedRef, error) {
	return c.unpublished(ctx, c.sql.Publishing.Rejected, channel, after, limit)
}

func (c Common) unpublished(
	ctx context.Context, statement, of, after string, limit int,
) ([]store.UnpublishedRef, error) {
	if after == "" {
		after = noID
	}
	found, err := store.Query(ctx, c.Pool(ctx), c.Text(statement), func(rows *sql.Rows, r *store.UnpublishedRef) error {
		return rows.Scan(&r.ID, &r.Version)
	}, of, after, limit)
	return found, Doing("query what is to be published", err)
}

func (c Common) LoadUnpublished(ctx context.Context, statusID string, maxBytes int) (store.Unpublished, error) {
	return loadUnpublished(ctx, c.Database, c.sql.Status, scanUnpublished, statusID, maxBytes)
}

func (c Common) LoadUnpublishedRejected(
	ctx context.Context, id string, maxBytes int,
) (store.UnpublishedRejected, error) {
	return loadUnpublished(ctx, c.Database, c.sql.Record, scanUnpublishedRejected, id, maxBytes)
}

func loadUnpublished[T any](
	ctx context.Context, d Database, statement string, scan func(*sql.Rows, *T) error, id string, maxBytes int,
) (loaded T, err error) {
	found, err := store.Query(ctx, d.Pool(ctx), d.Text(statement), scan, id, maxBytes)
	if err == nil && len(found) == 0 {
		err = store.ErrGone
	}
	if err != nil {
		return loaded, Doing("load what is to be published", err)
	}
	return found[0], nil
}

// scanUnpublished scans a poisoned status with its message.
func scanUnpublished(rows *sql.Rows, u *store.Unpublished) error {
	var lastError sql.NullString
	var m StoredMessage
	var messageID string
	err := rows.Scan(&u.ErrorCount, &u.AbandonedCount, &lastError, &messageID, &m.Number,
		&m.Namespace, &m.TransportName, &m.MessageType, &m.Source, &m.Content, &m.ContentType, &m.Properties,
		&m.OrderingKey, &m.ReceivedAt)
	u.LastError = lastError.String
	u.Omitted = !m.Properties.Valid
	if u.Message = (models.Message{ID: messageID}); m.Number.Valid {
		u.Message = *m.Message(messageID)
	}
	return err
}

// scanUnpublishedRejected scans a rejected message. It distinguishes an empty key or value from a missing one by
// separate columns, because drivers differ in how they return an empty blob. Its headers are NULL if they are left out.
func scanUnpublishedRejected(rows *sql.Rows, u *store.UnpublishedRejected) error {
	var timestamp, rejectedAt store.Stamp
	var hasKey, hasValue bool
	var headers sql.NullString
	m := &u.RejectedMessage
	err := rows.Scan(&m.ID, &m.Channel, &m.Topic, &m.Partition, &m.Offset, &timestamp, &hasKey, &m.Key, &hasValue,
		&m.Value, &headers, &m.Reason, &rejectedAt)
	m.Timestamp, m.RejectedAt, m.Headers = timestamp.Time, rejectedAt.Time, headers.String
	u.Omitted = !headers.Valid
	if hasKey {
		m.Key = Filled(m.Key)
	}
	if hasValue && !u.Omitted {
		m.Value = Filled(m.Value)
	}
	return err
}

func (c Common) MarkPublished(ctx context.Context, ref store.UnpublishedRef, at time.Time) error {
	_, err := store.Exec(ctx, c.Pool(ctx), c.Text(c.sql.MarkStatus), ref.ID, ref.Version, c.form.Time(at))
	return Doing("mark what is published", err)
}

func (c Common) MarkRejectedPublished(ctx context.Context, ref store.UnpublishedRef, at time.Time) error {
	_, err := store.Exec(ctx, c.Pool(ctx), c.Text(c.sql.MarkRejected), ref.ID, c.form.Time(at))
	return Doing("mark what is published", err)
}
