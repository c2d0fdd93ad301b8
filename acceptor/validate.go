package acceptor

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

const defaultTransport = "publish"

// check converts a routed message into what the store persists. It never alters a value to fit a column.
func (a *Acceptor) check(m handler.RawMessage, handlers []*handler.Handler) (store.NewMessage, error) {
	transport := cmp.Or(m.Transport, defaultTransport)
	err := m.IDErr
	if err == nil {
		err = envelope.CheckID(m.ID)
	}
	if err != nil {
		return store.NewMessage{}, &InvalidError{MessageID: named(m.ID), Reason: reasonOfID(err), Err: err}
	}
	if err := checkText(m.ID, "transport", transport, columns.MaxTransportName); err != nil {
		return store.NewMessage{}, err
	}
	m.Properties.Channel = m.Channel
	properties, err := properties.Serialize(m.Properties)
	if err != nil {
		return store.NewMessage{}, &InvalidError{MessageID: m.ID, Reason: reasonBadProperties, Err: err}
	}
	content := m.Content
	if content == nil {
		content = []byte{} // the column is not null; a nil body decodes like an empty one
	}
	row := store.NewMessage{Message: models.Message{ID: m.ID, Namespace: cmp.Or(a.cfg.Namespaces[m.Channel], m.Channel),
		TransportName: transport, Type: m.Type, Source: m.Source, Content: content, ContentType: m.ContentType,
		SerializedProperties: properties, OrderingKey: m.OrderingKey}}
	row.Handlers = make([]store.NewStatus, 0, len(handlers))
	for _, h := range handlers {
		key, err := orderingKey(h, m)
		if err != nil {
			return store.NewMessage{}, &InvalidError{MessageID: m.ID, Reason: reasonBadOrderingKey,
				Detail: fmt.Sprintf("handler %q", h.Key()), Err: err}
		}
		row.Handlers = append(row.Handlers, store.NewStatus{HandlerKey: h.Key(), LegacyKeys: h.LegacyKeys(),
			Retention: cmp.Or(h.Retention(), a.cfg.Retention), Lane: store.LaneOf(h.LaneKey(), key)})
	}
	return row, nil
}

// checkNames checks the fields of a message that routing and logs read. It precedes routing: an unrouted type is
// remembered, and a producer may make it as long as a record.
func checkNames(m handler.RawMessage) error {
	for _, field := range []struct {
		name, value string
		limit       int
	}{
		{"type", m.Type, columns.MaxType},
		{"source", m.Source, columns.MaxSource},
		{"content type", m.ContentType, columns.MaxContentType},
	} {
		if err := checkText(m.ID, field.name, field.value, field.limit); err != nil {
			return err
		}
	}
	return nil
}

func checkText(messageID, name, value string, limit int) error {
	err := store.CheckText(value, limit)
	if err == nil {
		return nil
	}
	reason := reasonTooLong
	if store.CheckText(value, 0) != nil {
		reason = reasonBadText
	}
	return &InvalidError{MessageID: named(messageID), Reason: reason, Detail: "its " + name, Err: err}
}

// named returns the ID for an error's text. It cuts a text that is too long for an ID, because errors are kept.
func named(id string) string { return strings.Clone(brief.Characters(id, columns.MaxMessageID)) }

// orderingKey asks the handler for the message's ordering key. A panic of the user's function makes
// only this message invalid, not the others in its batch.
func orderingKey(h *handler.Handler, m handler.RawMessage) (key []byte, err error) {
	err = routine.Protect("its ordering key", func() error {
		key = h.OrderingKey(m)
		return nil
	})
	return key, err
}

// reasonOfID classifies what is wrong with an ID.
func reasonOfID(err error) string {
	switch {
	case errors.As(err, new(*envelope.IDTooLongError)):
		return reasonIDTooLong
	case errors.Is(err, envelope.ErrMissingID):
		return reasonMissingID
	default:
		return reasonBadID
	}
}
