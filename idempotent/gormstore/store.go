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
	"database/sql"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/settings"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/models"
)

// Options configure a Store. Start from DefaultOptions: zero values are values.
type Options struct {
	// Schema is the table's schema, or on MySQL and MariaDB its database. Do not set it on SQLite, which has none.
	// Default "", the connection's search path or database.
	Schema string `yaml:"schema" env:"SCHEMA"`
	// TablePrefix begins the table's name. Do not change it while messages may be delivered again: their markers stay
	// under the old name. Default "", which is "inbox_".
	TablePrefix string `yaml:"table_prefix" env:"TABLE_PREFIX"`
	// LockTimeout is how long a run waits for another one of the same key before it returns ErrInProgress, and on
	// SQLite for any writer; less if its context ends before. Do not set it above the time that your transport gives a
	// handler: the wait is part of that. Each call that waits holds a connection of the pool; do not set it long where
	// the pool is small. 1 ms to 24 h; default 10 s.
	LockTimeout time.Duration `yaml:"lock_timeout" env:"LOCK_TIMEOUT"`
	// StatementTimeout bounds each database call of the store, without the wait for locks: begin, marker, commit,
	// rollback, Processed, a batch of Cleanup. The body's calls are bounded by its context alone. Do not lower it below
	// the time of a commit on a busy day: the store has to look up the outcome of a commit that timed out. At most 24
	// h; default 10 s.
	StatementTimeout time.Duration `yaml:"statement_timeout" env:"STATEMENT_TIMEOUT"`
	// BatchSize is how many markers one statement of Cleanup deletes. Do not raise it far: on SQLite all other writers
	// wait for it. Default 1,000.
	BatchSize int `yaml:"batch_size" env:"BATCH_SIZE"`
	// Isolation is the level of the transactions that the store begins and the body runs in: sql.LevelDefault,
	// LevelReadCommitted, LevelRepeatableRead or LevelSerializable. LevelDefault is READ COMMITTED, under any
	// default_transaction_isolation of the role or the database. Do not set it where the body does not need it: above
	// READ COMMITTED runs that get in each other's way begin again, see MaxAttempts. SQLite's transactions are always
	// serializable: LevelDefault and LevelSerializable alone are allowed there. In an inbox's Inline channel the
	// transactions are the inbox's, see TxIsolation of processor.Options. It has no text form: code sets it, not a
	// file. Default sql.LevelDefault (contract 8.2).
	Isolation sql.IsolationLevel `yaml:"-" env:"-"`
	// MaxAttempts is how often a body runs at most in one call of Run: a server may roll its transaction back for a
	// deadlock or a serialization failure, and then it is run again. Set 1 where a body has effects that no rollback
	// undoes and the transport should set the pace of redelivery; do not change it for any other reason. Default 5.
	MaxAttempts int `yaml:"max_attempts" env:"MAX_ATTEMPTS"`
	// Clock replaces the system clock, which markers' times are taken from, for tests. Do not use it to shift time in
	// production. Default nil, the system's.
	Clock idempotent.Clock `yaml:"-" env:"-"`
}

// DefaultOptions returns the defaults.
func DefaultOptions() Options {
	return Options{LockTimeout: 10 * time.Second, StatementTimeout: 10 * time.Second, BatchSize: 1000, MaxAttempts: 5}
}

// maxTimeout is longer than anybody waits, and below PostgreSQL's 24 days, above which every marker would fail.
const maxTimeout = 24 * time.Hour

// validate reports every option that is out of range, by name, with its value and what is allowed.
func (o Options) validate(of *dialect.Dialect) error {
	var problems []error
	refuse := func(name string, value any, allowed string) {
		problems = append(problems, fmt.Errorf("option %s = %v: must be %s", name, value, allowed))
	}
	if o.LockTimeout < time.Millisecond || o.LockTimeout > maxTimeout {
		refuse("LockTimeout", o.LockTimeout, "1ms to 24h")
	}
	if o.StatementTimeout <= 0 || o.StatementTimeout > maxTimeout {
		refuse("StatementTimeout", o.StatementTimeout, "more than 0, to 24h")
	}
	if o.BatchSize < 1 {
		refuse("BatchSize", o.BatchSize, "1 or more")
	}
	if o.MaxAttempts < 1 {
		refuse("MaxAttempts", o.MaxAttempts, "1 or more")
	}
	if allowed := of.RefusedIsolation(o.Isolation); allowed != "" {
		refuse("Isolation", o.Isolation, allowed+" on "+of.Name)
	}
	return errors.Join(problems...)
}

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

// New returns a store on db, a database that the caller closes. Each function of configure may
// change the options, which start as DefaultOptions. New does not use the database: call Check at start. It returns an
// error for a database other than PostgreSQL, MySQL, MariaDB or SQLite, and for options out of range.
func New(db *gorm.DB, configure ...func(o *Options)) (*Store, error) {
	s := &Store{opts: settings.With(DefaultOptions(), configure)}
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

// Cleanup deletes the markers whose retention ended before olderThan, and on servers also before now by their
// clock, and returns how many. It deletes batches of BatchSize, each in its own transaction. Markers that
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
		MessageType: run.MessageType, ProcessedAt: now, ExpiresAt: now.Add(run.Retention)}
}

// naming adds the key to an error.
func naming(key idempotent.Key, err error) error {
	return fmt.Errorf("gormstore: message %q, handler key %q: %w", key.MessageID, key.HandlerKey, err)
}
