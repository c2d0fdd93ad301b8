package idempotent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/telemetry"

	"go.uber.org/zap"
)

// Identifier computes the keys by which the messages of one handler are remembered. It is for callers that use a Store
// themselves, such as gormstore.Store.Mark in their own transaction; Handle and Wrap have one built in. It is safe for
// concurrent use.
type Identifier[T any] struct {
	identity[T]
	warned sync.Once // logs messages without an ID once
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
	i, err := identityOf[T](c, handlerKey)
	all := []error{registry.CheckKey(handlerKey), checkNamespace(cmp.Or(c.IDNamespace, c.Channel)), c.Validate(), err}
	for n, key := range c.legacyKeys {
		err := registry.CheckKey(key)
		if err == nil && (key == handlerKey || slices.Contains(c.legacyKeys[:n], key)) {
			err = errors.New("the handler has it already")
		}
		if err != nil {
			all = append(all, fmt.Errorf("legacy key %q: %w", key, err))
		}
	}
	return &Identifier[T]{identity: i}, errors.Join(all...)
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

// CheckStore returns what is wrong with a store: ErrNoStore for nil under RequireStore, or an error for a nil pointer
// stored in the interface.
func (i *Identifier[T]) CheckStore(s Store) error { return i.config.checkStore(s) }

// FindsIDs reports whether the options say where the ID of a message comes from, or that one without an ID may pass. If
// not, the ID that the transport found counts, and messages without one can be refused before any handler runs.
func (i *Identifier[T]) FindsIDs() bool {
	c := i.config
	return c.AllowMissingID || c.hasID || c.keyBy != nil || c.recordBy != nil
}

// storable makes a message type fit a store's column. No message is refused because of its type: nothing is looked up
// by it.
func storable(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
	if len(s) > columns.MaxType {
		if runes := []rune(s); len(runes) > columns.MaxType {
			s = string(runes[:columns.MaxType])
		}
	}
	return s
}
