package operators

import (
	"context"
	"database/sql"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

// namesakes uses the messages' primary key. {ids} are the messages, or where these are partitioned a table of their
// IDs.
const namesakes = `
SELECT number, namespace FROM {ids} WHERE id = $1 AND (CAST($2 AS text) = '' OR namespace = $2) ORDER BY namespace LIMIT 10`

func (q Queries) Namesakes(ctx context.Context, pool gorm.ConnPool, id, namespace string) ([]models.Message, error) {
	return query(ctx, q, pool, namesakes, func(rows *sql.Rows, m *models.Message) error {
		return rows.Scan(&m.Number, &m.Namespace)
	}, id, namespace)
}

// loadMessage uses the unique index on the messages' numbers.
const loadMessage = `
SELECT id, namespace, number, transport_name, type, source, content, content_type, serialized_properties, ordering_key, ordering_key IS NOT NULL, received_at
FROM {messages} WHERE number = $1`

func (q Queries) LoadMessage(ctx context.Context, pool gorm.ConnPool, number int64) (*models.Message, error) {
	return one(ctx, q, pool, loadMessage, base.ScanMessage, number)
}

// previewMessage uses the unique index on the messages' numbers. It gets lengths without reading the bytes; on
// PostgreSQL it does not decompress them either.
const previewMessage = `
SELECT id, namespace, number, transport_name, type, source, content_type, received_at,
	length(content), CASE WHEN length(content) <= $2 THEN content WHEN $3 > 0 THEN substr(content, 1, $3) END,
	ordering_key IS NULL, length(ordering_key),
	CASE WHEN length(ordering_key) <= $4 THEN ordering_key WHEN $5 > 0 THEN substr(ordering_key, 1, $5) END,
	{octets}serialized_properties{/octets}, CASE WHEN {octets}serialized_properties{/octets} <= $6 THEN serialized_properties END
FROM {messages} WHERE number = $1`

func (q Queries) PreviewMessage(ctx context.Context, pool gorm.ConnPool, number int64, cuts store.PreviewCuts) (
	*store.MessagePreview, error,
) {
	return one(ctx, q, pool, previewMessage, func(rows *sql.Rows, m *store.MessagePreview) error {
		var received store.Stamp
		var properties sql.NullString
		var payloadSize, keySize, propertiesSize sql.NullInt64
		err := rows.Scan(&m.ID, &m.Namespace, &m.Number, &m.TransportName, &m.Type, &m.Source, &m.ContentType, &received,
			&payloadSize, &m.Payload.Bytes, &m.Key.IsNull, &keySize, &m.Key.Bytes, &propertiesSize, &properties)
		m.ReceivedAt, m.Payload.Size, m.Key.Size = received.Time, payloadSize.Int64, keySize.Int64
		m.SerializedProperties, m.PropertiesSize, m.PropertiesCut = properties.String, propertiesSize.Int64, !properties.Valid
		return err
	}, append([]any{number}, cutArguments(cuts)...)...)
}

// cutArguments returns the parameters $2 to $6 of a preview's statement.
func cutArguments(cuts store.PreviewCuts) []any {
	return []any{cuts.ContentWhole, cuts.ContentHead, cuts.KeyWhole, cuts.KeyHead, cuts.Properties}
}

// markersOf uses the markers' primary key, in its order.
const markersOf = `
SELECT message_id, handler_key, namespace, message_type, processed_at, expires_at FROM {markers}
WHERE message_id = $1 AND ($2 = '' OR handler_key = $2) AND ($3 = '' OR namespace = $3)
ORDER BY handler_key, namespace LIMIT $4`

func (q Queries) MarkersOf(ctx context.Context, pool gorm.ConnPool, messageID, handlerKey, namespace string,
	limit int) ([]models.Marker, error) {
	return query(ctx, q, pool, markersOf, func(rows *sql.Rows, m *models.Marker) error {
		var processed, expires store.Stamp
		err := rows.Scan(&m.MessageID, &m.HandlerKey, &m.Namespace, &m.MessageType, &processed, &expires)
		m.ProcessedAt, m.ExpiresAt = processed.Time, expires.Time
		return err
	}, messageID, handlerKey, namespace, limit)
}
