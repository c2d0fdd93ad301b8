// Package gormstore remembers processed messages in a table of the application's own GORM database, in the same
// transaction that handles them (contract 8.2). The effects that a body has through that transaction happen exactly
// once, despite crashes and however often, or concurrently, a message is delivered.
//
// The marker of a message is written first. A duplicate that arrives during the run waits at the unique index. If the
// first run commits, the duplicate is skipped; if it rolls back, the duplicate runs.
//
// Only the body's writes through its transaction are covered. Mails, calls of other services and writes through other
// connections are not undone when the body fails, and happen again.
//
// The table is inbox_markers, one of an inbox's tables; an inbox that shares it can sweep it. Without an inbox, create
// the tables with models.Migrate:
//
//	err := models.Migrate(ctx, db, models.Naming{}, "")
//	store, err := gormstore.New(db)
//	err = store.Check(ctx) // at start
package gormstore

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/models"
)

// Store keeps markers in one database. It is safe for concurrent use.
type Store struct {
	db      *gorm.DB
	markers interface {
		store.Markers
		KeepSchema(ctx context.Context, pool gorm.ConnPool) error
		SingleWriter() bool
	}
	naming models.Naming
	opts   Options
	clock  idempotent.Clock
}

var _ idempotent.Store = (*Store)(nil)

// New returns a store on db, a PostgreSQL or SQLite database that the caller closes. Each function of configure may
// change the options, which start as DefaultOptions. New does not use the database: call Check at start. It returns an
// error for other dialects and for options out of range.
func New(db *gorm.DB, configure ...func(o *Options)) (*Store, error) {
	s := &Store{opts: DefaultOptions()}
	for _, set := range configure {
		if set != nil {
			set(&s.opts)
		}
	}
	if s.clock = s.opts.Clock; s.clock == nil {
		s.clock = clock.System{}
	}
	s.naming = models.Naming{Schema: s.opts.Schema, Prefix: s.opts.TablePrefix}
	var err error
	if s.markers, err = stores.New(db, s.naming, store.Options{TestClock: clock.IsTest(s.clock)}); err != nil {
		return nil, fmt.Errorf("gormstore: %w", err)
	}
	d, err := dialects.Of(db)
	if err == nil {
		err = s.opts.validate(d)
	}
	if err != nil {
		return nil, fmt.Errorf("gormstore: %w", err)
	}
	s.db = db.Session(&gorm.Session{NewDB: true})
	return s, nil
}

// Check returns nil if the tables exist and are as new as this module needs. Errors wrap models.ErrSchemaMissing or
// models.ErrSchemaOld and say what to run. Call it at start, so that a missing table is found before the first message.
// From then on no search path that a transaction sets leads to other tables.
func (s *Store) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	err := models.CheckTables(ctx, s.db, s.naming)
	if err == nil {
		err = s.markers.KeepSchema(ctx, s.db.Statement.ConnPool)
	}
	if err != nil {
		return fmt.Errorf("gormstore: %w", err)
	}
	return nil
}

// Processed reports whether the key has been processed: whether its marker exists and is committed, also on a
// synchronous standby if PostgreSQL has one. It asks the primary, outside of the caller's transaction.
func (s *Store) Processed(ctx context.Context, key idempotent.Key) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	found, err := s.markers.HasMarker(ctx, key.MessageID, key.HandlerKey, key.Namespace)
	if err != nil {
		return false, naming(key, err)
	}
	return found, nil
}

// Cleanup deletes the markers whose retention ended before olderThan, and on PostgreSQL also before now by the
// database's clock, and returns how many. It deletes batches of BatchSize, each in its own transaction. Markers that
// another transaction has locked stay until the next time. Any number of processes may call it at once. With an error
// it returns how many were deleted before.
//
// A message that is delivered again after its marker was deleted runs again.
func (s *Store) Cleanup(ctx context.Context, olderThan time.Time) (int64, error) {
	var sum int64
	for {
		deleted, err := s.cleanBatch(ctx, olderThan)
		sum += deleted
		if err != nil {
			return sum, fmt.Errorf("gormstore: %w", err)
		}
		if deleted < int64(s.opts.BatchSize) {
			return sum, nil
		}
	}
}

func (s *Store) cleanBatch(ctx context.Context, olderThan time.Time) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	return s.markers.DeleteMarkers(ctx, olderThan, s.opts.BatchSize)
}

// marker returns a run's marker. Its times are of the run's begin: if a body takes longer than Retention, the next
// sweep deletes its marker.
func (s *Store) marker(run idempotent.Run) models.Marker {
	now := s.clock.Now()
	if run.Retention == 0 {
		run.Retention = idempotent.DefaultRetention
	}
	return models.Marker{MessageID: run.Key.MessageID, HandlerKey: run.Key.HandlerKey, Namespace: run.Key.Namespace,
		MessageType: run.MessageType,
		ProcessedAt: now, ExpiresAt: now.Add(run.Retention)}
}

// naming adds the key to an error.
func naming(key idempotent.Key, err error) error {
	return fmt.Errorf("gormstore: message %q, handler key %q: %w", key.MessageID, key.HandlerKey, err)
}
