package idempotent

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Identifier computes the keys by which the messages of one handler are remembered. It is for callers that use a Store
// themselves, such as gormstore.Store.Mark in their own transaction; Handle and Wrap have one built in. It is safe for
// concurrent use.
type Identifier[T any] struct {
	config     config
	handlerKey string
	keyBy      func(T) (string, error)
	recordBy   func(T) envelope.Record
	warned     sync.Once // logs messages without an ID once
}

// Identify returns an Identifier. The error joins everything that is wrong, see Handle.
func Identify[T any](handlerKey string, opts ...Option) (*Identifier[T], error) {
	c := config{Options: DefaultOptions()}.with(opts)
	i, err := newIdentifier[T](handlerKey, c)
	if c.Duplicates == LogDuplicates && c.Logger == nil {
		err = errors.Join(err, errNoLogger)
	}
	if err != nil {
		return nil, problems.Prefix(fmt.Sprintf("idempotent handler %q: ", handlerKey), err)
	}
	return i, nil
}

func newIdentifier[T any](handlerKey string, c config) (*Identifier[T], error) {
	i := &Identifier[T]{config: c, handlerKey: handlerKey}
	all := []error{registry.CheckKey(handlerKey), checkNamespace(cmp.Or(c.IDNamespace, c.Channel)), c.Validate()}
	if c.keyBy != nil {
		i.keyBy, _ = c.keyBy.(func(T) (string, error))
		if i.keyBy == nil {
			all = append(all, fmt.Errorf("option KeyBy is a %T or nil: must be a %T", c.keyBy, i.keyBy))
		}
	}
	if c.recordBy != nil {
		i.recordBy, _ = c.recordBy.(func(T) envelope.Record)
		if i.recordBy == nil {
			all = append(all, fmt.Errorf("option RecordBy is a %T or nil: must be a %T", c.recordBy, i.recordBy))
		}
	}
	if err := c.id.Err(); err != nil {
		all = append(all, fmt.Errorf("option IDFrom: %w", err))
	}
	all = append(all, i.typeProblem())
	for n, key := range c.legacyKeys {
		err := registry.CheckKey(key)
		if err == nil && (key == handlerKey || slices.Contains(c.legacyKeys[:n], key)) {
			err = errors.New("the handler has it already")
		}
		if err != nil {
			all = append(all, fmt.Errorf("legacy key %q: %w", key, err))
		}
	}
	return i, errors.Join(all...)
}

// Run returns the Run to pass to a store. If the message has no usable ID the error is an *IDError. If it has none but
// AllowMissingID lets it pass, the MessageID of the key is empty: nothing can remember it, which is logged once.
func (i *Identifier[T]) Run(message T) (Run, error) {
	id, err := i.find(message)
	if err == nil {
		err = envelope.CheckID(id)
	}
	if errors.Is(err, ErrMissingID) && i.config.AllowMissingID {
		id, err = "", nil
		i.warned.Do(func() {
			i.config.log.Warn("inbox: message without ID, the handler runs each time it comes; logged once",
				zap.String(telemetry.FieldHandlerKey, i.handlerKey), zap.String(telemetry.FieldChannel, i.config.Channel),
				zap.String(telemetry.FieldMessageType, typeOf(message)))
		})
	}
	if err != nil {
		return Run{}, &IDError{HandlerKey: i.handlerKey, Err: err}
	}
	key := Key{MessageID: id, HandlerKey: i.handlerKey, Namespace: cmp.Or(i.config.IDNamespace, i.config.Channel)}
	run := Run{Key: key, MessageType: storable(typeOf(message)), Retention: i.config.Retention}
	if !i.config.composite {
		run.LegacyKeys = i.config.legacyKeys
	}
	return run, nil
}

// Duplicate returns the result for a message that a store has processed: nil, with a line in the log under
// LogDuplicates, or a *DuplicateError under FailDuplicates.
func (i *Identifier[T]) Duplicate(run Run) error {
	switch i.config.Duplicates {
	case FailDuplicates:
		return &DuplicateError{Key: run.Key}
	case LogDuplicates:
		i.config.log.Info("inbox: duplicate skipped", zap.String(telemetry.FieldMessageID, run.Key.MessageID),
			zap.String(telemetry.FieldHandlerKey, run.Key.HandlerKey),
			zap.String(telemetry.FieldMessageType, run.MessageType), zap.String(telemetry.FieldChannel, i.config.Channel))
	}
	return nil
}

// CheckStore returns what is wrong with a store: ErrNoStore for nil under RequireStore, or that it is a nil pointer.
func (i *Identifier[T]) CheckStore(s Store) error { return i.config.checkStore(s) }

// FindsIDs reports whether the options say where the ID of a message comes from, or that one without an ID may pass. If
// not, the ID that the transport found counts, and messages without one can be refused before any handler runs.
func (i *Identifier[T]) FindsIDs() bool {
	c := i.config
	return c.AllowMissingID || c.hasID || c.keyBy != nil || c.recordBy != nil
}

// storable makes a message type fit a store's column. No message is refused for its type: nothing is looked up by it.
func storable(s string) string {
	return brief.Characters(strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd"), columns.MaxType)
}

// described is implemented by handler.Message, handler.Delivery and types that embed one of them.
type described interface{ Meta() handler.Metadata }

// typeProblem returns why no message of the type can have an ID. For an interface type it depends on the message.
func (i *Identifier[T]) typeProblem() error {
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
func (i *Identifier[T]) find(message T) (string, error) {
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
func (i *Identifier[T]) fallbackID(message T) (string, error) {
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

func (i *Identifier[T]) ofRecord(r envelope.Record) (string, error) {
	return i.config.id.Find(cmp.Or(i.prefix(handler.Properties{}), r.Topic), r)
}

func (i *Identifier[T]) ofRaw(m *handler.RawMessage) (string, error) {
	switch {
	case !i.config.hasID && m.IDErr != nil:
		// It may have an ID nevertheless, but one that it shares with others.
		return "", m.IDErr
	case !i.config.hasID:
		return m.ID, nil
	}
	return i.config.id.FindIn(cmp.Or(i.prefix(m.Properties), m.Channel), *m)
}

// prefix returns the prefix of IDs that are unique only within it.
func (i *Identifier[T]) prefix(p handler.Properties) string {
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
