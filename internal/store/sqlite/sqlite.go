// Package sqlite is the store on SQLite.
package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/operators"
	"github.com/gorm-inbox/inbox/models"
)

// Store implements store.Store for SQLite 3.35 and later, with any driver. It passes lists as JSON. Every transaction
// begins with a write, so that it waits for the write lock by busy_timeout. A transaction that reads first and writes
// later fails with SQLITE_BUSY_SNAPSHOT, for which no timeout helps.
//
// Parameters are numbered ?1, ?2, because drivers treat the other forms differently.
type Store struct {
	base.Database
	operators.Queries
}

// New returns a store for the tables of naming in db.
func New(db *gorm.DB, naming models.Naming, options store.Options) (*Store, error) {
	tables, err := base.NewDatabase(db, naming, nil, options)
	if err != nil {
		return nil, err
	}
	return &Store{tables, operators.New(tables, operatorsForm)}, nil
}

// KeepSchema does nothing: SQLite has no search path.
func (s *Store) KeepSchema(context.Context, gorm.ConnPool) error { return nil }

func (s *Store) SingleWriter() bool { return true }

// CheckIsolation returns nothing: SQLite's transactions are serializable, and there is one writer.
func (s *Store) CheckIsolation(context.Context, sql.IsolationLevel) ([]store.Warning, error) {
	return nil, nil
}

// jsonList encodes an argument for json_each. Text must have passed CheckText, because JSON would replace invalid
// UTF-8.
func jsonList(list any) (string, error) {
	text, err := json.Marshal(list)
	if err != nil {
		return "", fmt.Errorf("encode arguments: %w", err)
	}
	return string(text), nil
}

// Notify does nothing: SQLite has no notifications.
func (s *Store) Notify(context.Context, ...string) error { return nil }

// NotifyTx does nothing: SQLite has no notifications.
func (s *Store) NotifyTx(context.Context, *gorm.DB, ...string) error { return nil }

func (s *Store) Listen(context.Context) (store.Listener, error) { return nil, store.ErrCannotListen }
