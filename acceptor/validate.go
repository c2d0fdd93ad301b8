package acceptor

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

const defaultTransport = "publish"

// check turns a routed message into what the store persists. Nothing is ever
// altered to fit a column (contract 3.6, 4.4).
func (a *Acceptor) check(m handler.RawMessage, handlers []*handler.Handler) (store.NewMessage, error) {
	transport := m.Transport
	if transport == "" {
		transport = defaultTransport
	}
	if m.IDErr != nil {
		return store.NewMessage{}, &InvalidError{MessageID: m.ID, Reason: reasonOfID(m.IDErr), Err: m.IDErr}
	}
	if m.ID == "" {
		return store.NewMessage{}, &InvalidError{Reason: ReasonMissingID, Detail: "a message ID has 1 to 200 characters"}
	}
	if n := utf8.RuneCountInString(m.ID); n > models.MaxMessageID {
		return store.NewMessage{}, &InvalidError{MessageID: m.ID, Reason: ReasonIDTooLong,
			Detail: fmt.Sprintf("the ID has %d characters, allowed are 1 to %d", n, models.MaxMessageID)}
	}
	for _, field := range []struct {
		name, value string
		limit       int
	}{
		{"ID", m.ID, models.MaxMessageID},
		{"type", m.Type, models.MaxType},
		{"source", m.Source, models.MaxSource},
		{"content type", m.ContentType, models.MaxContentType},
		{"transport", transport, models.MaxTransportName},
	} {
		if !utf8.ValidString(field.value) || strings.ContainsRune(field.value, 0) {
			return store.NewMessage{}, &InvalidError{MessageID: m.ID, Reason: ReasonBadText,
				Detail: fmt.Sprintf("its %s is not valid UTF-8 without NUL", field.name)}
		}
		if n := utf8.RuneCountInString(field.value); n > field.limit {
			return store.NewMessage{}, &InvalidError{MessageID: m.ID, Reason: ReasonTooLong,
				Detail: fmt.Sprintf("its %s has %d characters, allowed are %d", field.name, n, field.limit)}
		}
	}
	m.Properties.Channel = m.Channel
	properties, err := m.Properties.Serialize()
	if err != nil {
		return store.NewMessage{}, &InvalidError{MessageID: m.ID, Reason: ReasonBadProperties, Err: err}
	}
	content := m.Content
	if content == nil {
		content = []byte{} // the column is not null; a nil body decodes like an empty one
	}
	row := store.NewMessage{Message: models.Message{
		ID: m.ID, TransportName: transport, Type: m.Type, Source: m.Source, Content: content, ContentType: m.ContentType,
		SerializedProperties: properties, OrderingKey: m.OrderingKey,
	}}
	for _, h := range handlers {
		row.Handlers = append(row.Handlers, store.NewStatus{HandlerKey: h.Key(), LegacyKeys: h.LegacyKeys(), Retention: a.opts.Retention})
	}
	return row, nil
}

// reasonOfID classifies what a decoder said of an ID.
func reasonOfID(err error) Reason {
	var long *envelope.IDTooLongError
	switch {
	case errors.As(err, &long):
		return ReasonIDTooLong
	case errors.Is(err, envelope.ErrMissingID):
		return ReasonMissingID
	default:
		return ReasonBadID
	}
}
