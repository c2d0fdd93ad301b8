package ops

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/models"
)

// Markers returns the markers of a message ID: which handlers have processed the message inline, and when. An empty
// handlerKey or namespace means any. They are sorted by handler key and namespace, at most 1,000. Markers that a store
// outside the database keeps are not among them (contract 8.4, 11.1).
func (o messageViews) Markers(ctx context.Context, messageID, handlerKey, namespace string) ([]models.Marker, error) {
	for _, each := range []struct {
		name, text string
		least      int
	}{{"message ID", messageID, 1}, {"handler key", handlerKey, 0}, {"namespace", namespace, 0}} {
		if err := checkText(each.name, each.text, each.least, columns.MaxMessageID); err != nil {
			return nil, err
		}
	}
	found, err := read(ctx, o.access, func(ctx context.Context, pool gorm.ConnPool) ([]models.Marker, error) {
		return o.store.MarkersOf(ctx, pool, messageID, handlerKey, namespace, maxListed)
	})
	if err != nil {
		return nil, fmt.Errorf("list markers of message %q: %w", messageID, err)
	}
	return found, nil
}
