package base

import (
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// checkBatch refuses what a column cannot hold before any statement does. Its error names the
// field. SQLite would store anything, and with PostgreSQL's simple protocol a NUL causes an error
// that looks like a connection failure.
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
			{"message ID", m.ID, models.MaxMessageID},
			{"namespace", m.Namespace, models.MaxChannel},
			{"transport name", m.TransportName, models.MaxTransportName},
			{"type", m.Type, models.MaxType},
			{"source", m.Source, models.MaxSource},
			{"content type", m.ContentType, models.MaxContentType},
			{"properties", m.SerializedProperties, 0},
		} {
			if err := check(field.what, field.text, field.limit); err != nil {
				return err
			}
		}
		for _, h := range m.Handlers {
			if err := check("handler key", h.HandlerKey, models.MaxHandlerKey); err != nil {
				return err
			}
		}
	}
	for _, r := range batch.Rejected {
		if err := errors.Join(check("channel", r.Channel, models.MaxChannel),
			check("topic", r.Topic, models.MaxTopic)); err != nil {
			return err
		}
	}
	return nil
}
