package shared

import (
	"database/sql"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// Filled makes empty content empty rather than NULL.
func Filled(content []byte) []byte {
	if content == nil {
		return []byte{}
	}
	return content
}

// Sanitized is SanitizeError of a text that may be NULL.
func Sanitized(text *string) *string {
	if text == nil {
		return nil
	}
	clean := store.SanitizeError(*text)
	return &clean
}

// StoredMessage is the message's half of a claim, all NULL if its row is gone.
type StoredMessage struct {
	Number                                                                 sql.NullInt64
	Namespace, TransportName, MessageType, Source, ContentType, Properties sql.NullString
	Content, OrderingKey                                                   []byte
	ReceivedAt                                                             store.Stamp
}

// Message is nil if the row is gone.
func (m StoredMessage) Message(id string) *models.Message {
	if !m.Number.Valid {
		return nil
	}
	return &models.Message{
		ID: id, Namespace: m.Namespace.String, Number: models.MessageNumber(m.Number.Int64), TransportName: m.TransportName.String, Type: m.MessageType.String, Source: m.Source.String,
		Content: Filled(m.Content), ContentType: m.ContentType.String, SerializedProperties: m.Properties.String,
		OrderingKey: m.OrderingKey, ReceivedAt: m.ReceivedAt.Time,
	}
}
