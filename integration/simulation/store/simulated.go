// Package simulated is a dialect for simulations inside a testing/synctest bubble: the store of an inbox on package
// database. Its SQL is SQLite's, and its transactions, locks, clock and notifications are like PostgreSQL's.
//
// It is nothing to run on: nothing outlives the process, and each statement may cost what its transaction has written
// before. It is also no proof of PostgreSQL's own statements, plans or settings. What differs on purpose:
//
//   - A claim, and what skips locked rows, are several statements in a transaction.
//   - A statement takes its locks together, not one by one, so that accepts never deadlock.
//   - Times of creation and completion are read before the statement is sent; heartbeats and leases when it runs.
//   - The actions of operators lock nothing but messages before they write.
//   - There is no synchronous standby, and no isolation but READ COMMITTED.
package simulated

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"time"

	"github.com/google/uuid"
	driver "gorm.io/driver/sqlite"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/integration/simulation/database"
	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/operators"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgdialect"
	"github.com/gorm-inbox/inbox/internal/store/sqlite"
	"github.com/gorm-inbox/inbox/internal/store/sqlite/sqlitedialect"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/models"
)

// Dialect has SQLite's schema and the errors of both. A statement that fails aborts its transaction.
var Dialect = &dialect.Dialect{
	Title:          "the simulation's database",
	Name:           "simulated",
	Classify:       classify,
	Isolations:     []sql.IsolationLevel{sql.LevelReadCommitted},
	Stated:         sql.LevelDefault,
	Migrations:     sqlitedialect.Dialect.Migrations,
	BeginMigration: sqlitedialect.Dialect.BeginMigration,
	ColumnsSQL:     sqlitedialect.Dialect.ColumnsSQL,
	Syntax:         sqlitedialect.Dialect.Syntax,
}

func init() {
	stores.Register(Dialect, newStore)
}

func classify(err error) (dialect.Class, bool) {
	if class, found := pgdialect.Dialect.Classify(err); found {
		return class, true
	}
	return sqlitedialect.Dialect.Classify(err)
}

// sequences are the statements that advance the counters of message numbers and of the order of acceptance. On SQLite
// these are rows of a table, which accepts would lock until they commit.
var sequences = regexp.MustCompile(`(?s)^\s*(UPDATE|INSERT INTO) "\w*meta".*(COALESCE\(max\(|'sequence')`)

// NewDatabase makes an empty database for inboxes. It ends a silent session after 40 seconds, as PostgreSQL does by the
// settings of the inbox's transactions.
func NewDatabase() (*database.Database, error) {
	return database.New(database.Options{Sequences: sequences, SilentFor: 40 * time.Second})
}

// Dialector opens the sessions of one process with gorm.Open.
type Dialector struct {
	driver.Dialector
	database *database.Database
	link     database.Link
}

// Open returns the dialector of a process, which the database calls client. Its calls pass link; nil passes everything.
// Call it inside the bubble.
func Open(d *database.Database, client string, link database.Link) Dialector {
	return Dialector{driver.Dialector{Conn: pool{d.Open(client, link)}}, d, link}
}

// pool returns how many rows a statement has affected without its connection. database/sql locks the connection for
// that, while another goroutine may already wait in a call of it: not a durable block.
type pool struct{ *sql.DB }

// GetDBConn implements gorm.GetDBConnector.
func (p pool) GetDBConn() (*sql.DB, error) { return p.DB, nil }

// ExecContext implements gorm.ConnPool.
func (p pool) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	conn, err := p.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	result, err := conn.ExecContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	affected, err := result.RowsAffected()
	return sqldriver.RowsAffected(affected), err
}

// Name returns the dialect's name.
func (Dialector) Name() string { return Dialect.Name }

// Store implements store.Store. What it does not do itself is SQLite's statement.
type Store struct {
	*sqlite.Store
	operators.Queries

	database  *database.Database
	link      database.Link
	table     string // of the statuses
	origin    string // of notifications, so that its own Listener ignores them
	testClock bool
}

func newStore(db *gorm.DB, naming models.Naming, options store.Options) (store.Store, error) {
	opened, ok := db.Dialector.(Dialector)
	if !ok {
		return nil, errors.New("store: the database was not opened by Open")
	}
	base, err := sqlite.New(db, naming, options)
	if err != nil {
		return nil, fmt.Errorf("simulated %w", err)
	}
	s := &Store{Store: base, database: opened.database, link: opened.link, table: naming.HandlerStatuses(),
		origin: uuid.NewString(), testClock: options.TestClock}
	base.Common = base.For(s)
	form := sqlite.OperatorsForm
	form.WritesFirst = false
	form.Parts = maps.Clone(form.Parts)
	form.Parts["clock"] = `clock(0)`
	if !options.TestClock {
		form.Parts["at"] = `min(?2, clock(0))`
	}
	s.Queries = operators.New(base.Database, form)
	return s, nil
}

// SingleWriter returns false.
func (s *Store) SingleWriter() bool { return false }

// latest limits a time to the database's clock, unless a test's clock counts.
func (s *Store) latest(t time.Time) time.Time {
	if now := s.database.Now(); !s.testClock && now.Before(t) {
		return now
	}
	return t
}

// now is the time by the database's clock, or by a test's.
func (s *Store) now(test time.Time) time.Time {
	if s.testClock {
		return test
	}
	return s.database.Now()
}

// reach is the end of the range in which statuses are due, by the later of the two clocks.
func (s *Store) reach(now time.Time) time.Time {
	if ours := s.database.Now(); ours.After(now) {
		return ours
	}
	return now
}
