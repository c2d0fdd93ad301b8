package ops

import (
	"context"
	"fmt"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/models"
)

// Markers returns the markers of a message ID: which handlers have processed the message inline, and when. An empty
// handlerKey or namespace means any. They are sorted by handler key and namespace, at most 1,000. Markers that a store
// outside the database keeps are not among them (contract 8.4, 11.1).
func (o messageViews) Markers(ctx context.Context, messageID, handlerKey, namespace string) ([]models.Marker, error) {
	if err := checkTexts(argument{"message ID", messageID, 1, columns.MaxMessageID},
		argument{"handler key", handlerKey, 0, columns.MaxMessageID},
		argument{"namespace", namespace, 0, columns.MaxMessageID}); err != nil {
		return nil, err
	}
	found, err := o.store.MarkersOf(ctx, o.pool(ctx), messageID, handlerKey, namespace, maxListed)
	if err != nil {
		return nil, fmt.Errorf("list markers of message %q: %w", messageID, err)
	}
	return found, nil
}
