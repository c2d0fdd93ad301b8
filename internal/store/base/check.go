package base

import (
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// checkBatch refuses values that a column cannot hold, before any statement does. Its error names the field. SQLite
// would store anything, and with PostgreSQL's simple protocol a NUL causes an error that looks like a connection
// failure.
func checkBatch(batch store.AcceptBatch) error {
	check := func(what, text string, limit int) error {
		if err := store.CheckText(text, limit); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}
	for _, m := range batch.Messages {
		for _, field := range []struct {
			what, text string
			limit      int
		}{
			{"message ID", m.ID, columns.MaxMessageID},
			{"namespace", m.Namespace, columns.MaxChannel},
			{"transport name", m.TransportName, columns.MaxTransportName},
			{"type", m.Type, columns.MaxType},
			{"source", m.Source, columns.MaxSource},
			{"content type", m.ContentType, columns.MaxContentType},
			{"properties", m.SerializedProperties, 0},
		} {
			if err := check(field.what, field.text, field.limit); err != nil {
				return err
			}
		}
		for _, h := range m.Handlers {
			if err := check("handler key", h.HandlerKey, columns.MaxHandlerKey); err != nil {
				return err
			}
		}
	}
	for _, r := range batch.Rejected {
		if err := errors.Join(check("channel", r.Channel, columns.MaxChannel),
			check("topic", r.Topic, columns.MaxTopic)); err != nil {
			return err
		}
	}
	return nil
}

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
