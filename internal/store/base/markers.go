package base

import (
	"fmt"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// CheckMarker reports what a marker's columns cannot hold unaltered.
func CheckMarker(m models.Marker) error {
	for _, column := range []struct {
		name, text  string
		least, most int
	}{
		{"message ID", m.MessageID, 1, columns.MaxMessageID},
		{"handler key", m.HandlerKey, 1, columns.MaxHandlerKey},
		{"namespace", m.Namespace, 0, columns.MaxChannel},
		{"message type", m.MessageType, 0, columns.MaxType},
	} {
		if len(column.text) < column.least {
			return fmt.Errorf("%w: %s: empty", store.ErrUnstorable, column.name)
		}
		if err := store.CheckText(column.text, column.most); err != nil {
			return fmt.Errorf("%s: %w", column.name, err)
		}
	}
	return nil
}
