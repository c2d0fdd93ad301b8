package inline

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/inplace"
)

// marking is a store that can add its marker to a transaction of the handlers'
// database; *gormstore.Store is one.
type marking interface {
	idempotent.Store
	// Joins reports whether it can, for transactions of db.
	Joins(db *gorm.DB) bool
	Mark(ctx context.Context, tx *gorm.DB, run idempotent.Run) (duplicate bool, err error)
}

// adapt puts what a channel needs before a store.
func adapt(db *gorm.DB, store idempotent.Store) idempotent.Store {
	if store == nil {
		return nil
	}
	if v := reflect.ValueOf(store); v.Kind() == reflect.Pointer && v.IsNil() {
		return store // idempotent.New refuses it
	}
	if m, ok := store.(marking); ok && m.Joins(db) {
		return joined{m}
	}
	return around{store}
}

// joined has the markers written first in the transaction that the handler runs
// in: both are committed, or neither.
type joined struct{ marking }

func (s joined) Run(ctx context.Context, run idempotent.Run, body func(ctx context.Context) error) (duplicate bool, err error) {
	a, err := underWay(ctx)
	if err != nil {
		return false, err
	}
	a.id = run.Key.MessageID
	a.first = func(ctx context.Context, tx *gorm.DB) error {
		a.marking = s.mark(ctx, tx, run, a.legacyKeys)
		return a.marking
	}
	err = body(ctx)
	switch {
	case errors.Is(err, inplace.ErrDone):
		return true, nil
	case a.marking != nil && !errors.Is(a.marking, inplace.ErrDone): // the handler was not called
		return false, a.marking
	default:
		return false, err
	}
}

// mark adds a marker for each of the handler's keys, the newest first, or returns
// inplace.ErrDone. While a rename is rolled out the old program marks the old key alone:
// whichever of the two comes second waits for the first, and finds its marker.
// Neither waits for the other with a key the other wants, as long as all list
// their keys in one order.
func (s joined) mark(ctx context.Context, tx *gorm.DB, run idempotent.Run, legacyKeys []string) error {
	keys := append([]string{run.Key.HandlerKey}, legacyKeys...)
	for _, key := range keys {
		run.Key.HandlerKey = key
		switch duplicate, err := s.Mark(ctx, tx, run); {
		case err != nil:
			return err
		case duplicate:
			return inplace.ErrDone
		}
	}
	return nil
}

// around is any other store: its claim is there before the attempt begins, and
// its marker after the attempt's end. A panic of its own is its trouble; those of
// the attempt do not come this far.
type around struct{ idempotent.Store }

func (s around) Run(ctx context.Context, run idempotent.Run, body func(ctx context.Context) error) (duplicate bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			duplicate, err = false, fmt.Errorf("the store %T panicked: %v\n\n%s", s.Store, v, debug.Stack())
		}
	}()
	a, err := underWay(ctx)
	if err != nil {
		return false, err
	}
	a.id = run.Key.MessageID
	for _, key := range a.legacyKeys {
		old := run.Key
		old.HandlerKey = key
		done, err := s.Processed(ctx, old)
		if err != nil || done {
			return done, err
		}
	}
	return s.Store.Run(ctx, run, body)
}
