package ops

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// Markers returns the markers of a message ID: which handlers have processed the message inline, and when. An empty
// handlerKey or namespace means any. They are sorted by handler key and namespace, at most 1,000. Markers that a store
// outside the database keeps are not among them (contract 8.4, 11.1).
func (o *Ops) Markers(ctx context.Context, messageID, handlerKey, namespace string) ([]models.Marker, error) {
	for _, each := range []struct {
		name, text string
		least      int
	}{{"message ID", messageID, 1}, {"handler key", handlerKey, 0}, {"namespace", namespace, 0}} {
		if err := checkText(each.name, each.text, each.least, columns.MaxMessageID); err != nil {
			return nil, err
		}
	}
	found, err := readRows(ctx, o, markersOf, func(rows *sql.Rows, m *models.Marker) error {
		var processed, expires store.Stamp
		err := rows.Scan(&m.MessageID, &m.HandlerKey, &m.Namespace, &m.MessageType, &processed, &expires)
		m.ProcessedAt, m.ExpiresAt = processed.Time, expires.Time
		return err
	}, messageID, handlerKey, namespace, maxListed)
	if err != nil {
		return nil, fmt.Errorf("list markers of message %q: %w", messageID, err)
	}
	return found, nil
}

// markersOf uses the markers' primary key, in its order.
const markersOf = `
SELECT message_id, handler_key, namespace, message_type, processed_at, expires_at FROM {markers}
WHERE message_id = $1 AND ($2 = '' OR handler_key = $2) AND ($3 = '' OR namespace = $3)
ORDER BY handler_key, namespace LIMIT $4`
