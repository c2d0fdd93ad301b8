package store

import (
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox/models"
)

// ErrMarkerBusy says that another transaction was in the way of a marker and
// had not ended when waiting did: on PostgreSQL one that has inserted or is
// deleting the same, on SQLite any that has written.
var ErrMarkerBusy = errors.New("another transaction is in the marker's way")

// checkMarker reports what a marker's columns cannot hold unaltered.
func checkMarker(m models.Marker) error {
	for _, column := range []struct {
		name, text  string
		least, most int
	}{
		{"message ID", m.MessageID, 1, models.MaxMessageID},
		{"handler key", m.HandlerKey, 1, models.MaxHandlerKey},
		{"namespace", m.Namespace, 0, models.MaxChannel},
		{"message type", m.MessageType, 0, models.MaxType},
	} {
		if len(column.text) < column.least {
			return fmt.Errorf("%w: %s: empty", ErrUnstorable, column.name)
		}
		if err := CheckText(column.text, column.most); err != nil {
			return fmt.Errorf("%s: %w", column.name, err)
		}
	}
	return nil
}
