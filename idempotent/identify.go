package idempotent

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
)

// described is implemented by handler.Message, handler.Delivery and types that embed one of them.
type described interface{ Meta() handler.Metadata }

// identity finds the ID of messages of type T for one handler.
type identity[T any] struct {
	config     config
	handlerKey string
	keyBy      func(T) (string, error)
	recordBy   func(T) envelope.Record
}

func identityOf[T any](c config, handlerKey string) (identity[T], error) {
	i := identity[T]{config: c, handlerKey: handlerKey}
	var problems []error
	if c.keyBy != nil {
		i.keyBy, _ = c.keyBy.(func(T) (string, error))
		if i.keyBy == nil {
			problems = append(problems, fmt.Errorf("option KeyBy is a %T or nil: must be a %T", c.keyBy, i.keyBy))
		}
	}
	if c.recordBy != nil {
		i.recordBy, _ = c.recordBy.(func(T) envelope.Record)
		if i.recordBy == nil {
			problems = append(problems, fmt.Errorf("option RecordBy is a %T or nil: must be a %T", c.recordBy, i.recordBy))
		}
	}
	if err := c.id.Err(); err != nil {
		problems = append(problems, fmt.Errorf("option IDFrom: %w", err))
	}
	problems = append(problems, i.typeProblem())
	return i, errors.Join(problems...)
}

// typeProblem returns why no message of the type can have an ID. For an interface type it depends on the message.
func (i *identity[T]) typeProblem() error {
	t := reflect.TypeFor[T]()
	if t.Kind() == reflect.Interface || i.config.recordBy != nil {
		return nil
	}
	var zero T
	if _, ok := any(zero).(Identified); ok && !i.config.hasID {
		return nil
	}
	switch any(zero).(type) {
	case envelope.Record, *envelope.Record, handler.RawMessage, *handler.RawMessage:
		return nil
	case described:
		if i.config.hasID && i.config.id.NeedsData() {
			return fmt.Errorf("option IDFrom is the ID strategy %s, which needs a record and not a %s: use KeyBy", i.config.id, t)
		}
		return nil
	}
	switch {
	case i.config.hasID:
		return fmt.Errorf("option IDFrom is the ID strategy %s, which finds nothing in a %s: use KeyBy, or RecordBy", i.config.id, t)
	case i.config.keyBy == nil:
		return fmt.Errorf("messages are of type %s, which has no ID: use KeyBy, or RecordBy", t)
	default:
		return nil
	}
}

// find returns the message's ID, unchecked.
func (i *identity[T]) find(message T) (string, error) {
	if i.keyBy == nil {
		return i.fallbackID(message)
	}
	id, err := i.keyBy(message)
	switch {
	case err != nil && !errors.Is(err, ErrMissingID):
		return "", fmt.Errorf("option KeyBy: %w", err)
	case err == nil && id != "":
		return id, nil
	default:
		return i.fallbackID(message)
	}
}

// fallbackID finds the ID if KeyBy is not set or returns none.
func (i *identity[T]) fallbackID(message T) (string, error) {
	if i.recordBy != nil {
		return i.ofRecord(i.recordBy(message))
	}
	if identified, ok := any(message).(Identified); ok && !i.config.hasID {
		return identified.MessageID(), nil
	}
	switch m := any(message).(type) {
	case envelope.Record:
		return i.ofRecord(m)
	case *envelope.Record:
		return i.ofRecord(*m)
	case handler.RawMessage:
		return i.ofRaw(&m)
	case *handler.RawMessage:
		return i.ofRaw(m)
	case described:
		meta := m.Meta()
		if !i.config.hasID {
			return meta.ID, nil
		}
		if i.config.id.NeedsData() { // it would find the same ID for all messages, as it gets no data
			return "", fmt.Errorf("the ID strategy %s needs a record, and there is none", i.config.id)
		}
		return i.config.id.FindIn(i.prefix(meta.Properties), handler.RawMessage{Properties: meta.Properties})
	default:
		return "", fmt.Errorf("%w: a %T has none", ErrMissingID, message)
	}
}

// typeOf returns the message's type; empty if it has none.
func typeOf(message any) string {
	switch m := message.(type) {
	case Typed:
		return m.MessageType()
	case handler.RawMessage:
		return m.Type
	case *handler.RawMessage:
		return m.Type
	case described:
		return m.Meta().Type
	default:
		return ""
	}
}

func (i *identity[T]) ofRecord(r envelope.Record) (string, error) {
	channel := i.prefix(handler.Properties{})
	if channel == "" {
		channel = r.Topic
	}
	return i.config.id.Find(channel, r)
}

func (i *identity[T]) ofRaw(m *handler.RawMessage) (string, error) {
	switch {
	case !i.config.hasID && m.IDErr != nil:
		// It may have an ID nevertheless, but one that it shares with others.
		return "", m.IDErr
	case !i.config.hasID:
		return m.ID, nil
	}
	channel := i.prefix(m.Properties)
	if channel == "" {
		channel = m.Channel
	}
	return i.config.id.FindIn(channel, *m)
}

// prefix returns the prefix of IDs that are unique only within it.
func (i *identity[T]) prefix(p handler.Properties) string {
	switch {
	case i.config.composite:
		return i.handlerKey
	case i.config.Channel != "":
		return i.config.Channel
	case p.Channel == "" && p.Kafka != nil:
		return p.Kafka.Topic
	default:
		return p.Channel
	}
}
