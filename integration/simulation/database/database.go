// Package database is a database in memory, for simulations inside a testing/synctest bubble. SQLite in Go runs the
// statements, one at a time. A layer above it gives concurrent transactions what they have on PostgreSQL at READ
// COMMITTED: each statement sees what is committed when it begins, rows and unique keys are locked until the
// transaction ends, a statement that meets a lock waits and runs again, and a cycle of waits is a deadlock.
//
// All waits are for channels and the clock, so that they are durable blocks in a bubble. It is nothing to run on:
// nothing is stored, and each statement of a transaction repeats the transaction's changes first.
//
// Statements that change the schema need a session without a transaction, or one that has run BEGIN IMMEDIATE: until
// its COMMIT or ROLLBACK no other session does anything. A lock taken after a savepoint is kept when the savepoint is
// rolled back. Only changes lock unique keys: an insert that meets a row which another transaction is deleting does not
// wait, unless its statement locks that row. A row's implicit ID is never given out twice.
package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"

	"github.com/gorm-inbox/inbox/internal/routine"
)

// LockFunction is the function with which a statement locks rows that it reads:
//
//	lock_row('statuses', rowid, mode, skip)
//
// It is true once the row is locked. If another transaction has the row, it is false where skip is true, and otherwise
// the statement waits. Call it in an outer query, on the rows that an inner one has found.
const LockFunction = "lock_row"

// The errors, with the SQLSTATE that PostgreSQL has for them.
var (
	ErrDeadlock   = &Error{"40P01", "deadlock detected"}
	ErrAborted    = &Error{"25P02", "the transaction is aborted, further statements are refused until its end"}
	ErrTerminated = &Error{"57P01", "the session was terminated"}
)

// Error is an error of the database itself. Those of SQLite pass as they are.
type Error struct{ State, Message string }

func (e *Error) Error() string { return fmt.Sprintf("%s (SQLSTATE %s)", e.Message, e.State) }

// SQLState returns State, as the errors of PostgreSQL's drivers do.
func (e *Error) SQLState() string { return e.State }

// Database has the tables. It is safe for concurrent use.
type Database struct {
	options Options
	ahead   atomic.Int64 // nanoseconds by which the clock differs
	waiting atomic.Int64 // sessions that wait for a lock

	turn     routine.Lock // held while the engine works; it guards everything below
	engine   engine
	prepared map[string]prepared
	tables   map[string]*table // what is known of the schema; nil after a change
	highest  map[string]int64  // of the row IDs that were given out in a table

	owners    map[lock]map[*transaction]Mode // of the locks
	listeners map[*Listener]struct{}
	loaded    *transaction   // whose changes the engine's transaction has; nil outside of one
	current   *transaction   // that the engine works for
	client    string         // whose statement or transaction the engine runs
	touched   map[lock]bool  // rows that the current statement has written; true if it has inserted them
	wanted    map[lock]Mode  // rows that the current statement locks
	notices   []notification // that the current statement sends
	blocker   *transaction   // that the current statement has met
}

// Options adjust a database.
type Options struct {
	// Sequences are the statements that take values from a sequence. They are committed at once, whatever becomes of
	// their transaction.
	Sequences *regexp.Regexp
	// SilentFor is the time after which the server ends a session whose connection was lost silently; 0 for never.
	SilentFor time.Duration
}

// engine is SQLite's connection.
type engine interface {
	driver.Conn
	driver.ExecerContext
	driver.QueryerContext
	RegisterPreUpdateHook(sqlite.PreUpdateHookFn)
}

// prepared is a statement of the engine.
type prepared interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// New makes an empty database. Close it.
func New(options Options) (*Database, error) {
	d := &Database{options: options, turn: routine.NewLock(), prepared: map[string]prepared{}, highest: map[string]int64{},
		owners: map[lock]map[*transaction]Mode{}, listeners: map[*Listener]struct{}{}}
	own := &sqlite.Driver{}
	for name, function := range map[string]struct {
		arguments int32
		call      func([]driver.Value) (driver.Value, error)
	}{LockFunction: {4, d.lockRow}, NotifyFunction: {2, d.notify}, ClockFunction: {1, d.clock},
		ClientFunction: {0, d.clientName}} {
		err := own.RegisterFunction(name, &sqlite.FunctionImpl{NArgs: function.arguments,
			Scalar: func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) { return function.call(args) }})
		if err != nil {
			return nil, err
		}
	}
	conn, err := own.Open(":memory:")
	if err != nil {
		return nil, err
	}
	d.engine = conn.(engine)
	d.engine.RegisterPreUpdateHook(func(change sqlite.SQLitePreUpdateData) {
		if d.touched == nil {
			return
		}
		const deletion, insertion = 9, 18 // SQLITE_DELETE, SQLITE_INSERT
		row := change.NewRowID
		if change.Op == deletion {
			row = change.OldRowID
		}
		at := lock{change.TableName, fmt.Sprint(row)}
		d.touched[at] = d.touched[at] || change.Op == insertion
	})
	return d, d.execute("PRAGMA foreign_keys = ON")
}

// ClockFunction is the time by the database's clock, so many microseconds from now:
//
//	clock(-1000000)
const ClockFunction = "clock"

// clock is ClockFunction.
func (d *Database) clock(args []driver.Value) (driver.Value, error) {
	from, ok := args[0].(int64)
	if !ok {
		return nil, fmt.Errorf("%s: bad argument %v", ClockFunction, args[0])
	}
	at := d.Now().Add(time.Duration(from) * time.Microsecond)
	return at.UTC().Format("2006-01-02 15:04:05.000000") + "+00:00", nil
}

// ClientFunction is the name of the client that a statement comes from, for triggers:
//
//	client()
const ClientFunction = "client"

// clientName is ClientFunction.
func (d *Database) clientName([]driver.Value) (driver.Value, error) { return d.client, nil }

// Now returns the time by the database's clock.
func (d *Database) Now() time.Time { return time.Now().Add(time.Duration(d.ahead.Load())) }

// SetAhead sets the database's clock ahead of the machine's, or behind it.
func (d *Database) SetAhead(by time.Duration) { d.ahead.Store(int64(by)) }

// Open returns a client's pool of sessions. Each call of a session passes link; nil passes everything.
func (d *Database) Open(client string, link Link) *sql.DB {
	return sql.OpenDB(connector{d, client, orDirect(link)})
}

// orDirect returns a link that passes everything for nil.
func orDirect(link Link) Link {
	if link == nil {
		return func(_ context.Context, _ string, do func() error) error { return do() }
	}
	return link
}

// Close frees the memory.
func (d *Database) Close() error { return errors.Join(d.forget(), d.engine.Close()) }

// Terminate ends the sessions that hold a lock on one of these rows of a table, and returns how many. With idle set, it
// spares those that wait for a lock themselves.
func (d *Database) Terminate(ctx context.Context, idle bool, table string, rows ...string) (ended int, err error) {
	if err := d.turn.Acquire(ctx); err != nil {
		return 0, err
	}
	defer d.turn.Release()
	for _, row := range rows {
		for owner := range d.owners[lock{table, row}] {
			if !idle || owner.waitsFor == nil {
				owner.session.terminate()
				ended++
			}
		}
	}
	return ended, nil
}

// Waiting returns how many sessions wait for a lock.
func (d *Database) Waiting() int { return int(d.waiting.Load()) }

// statement is one call of a session.
type statement struct {
	text string
	args []driver.NamedValue
	rows bool // it returns rows
}

// result is what a statement returns.
type result struct {
	columns, types []string
	rows           [][]driver.Value
	affected       int64
}

// LastInsertId is not supported, as on PostgreSQL.
func (r *result) LastInsertId() (int64, error) { return 0, errors.ErrUnsupported }
func (r *result) RowsAffected() (int64, error) { return r.affected, nil }

// run runs a statement for a session, once nothing that it needs is locked.
func (d *Database) run(ctx context.Context, s *session, st statement) (*result, error) {
	for {
		if err := d.turn.Acquire(ctx); err != nil {
			return nil, err
		}
		found, blocker, err := d.attempt(s, st)
		d.turn.Release()
		if blocker == nil {
			return found, err
		}
		d.waiting.Add(1)
		select {
		case <-blocker.ended:
		case <-s.ended:
		case <-ctx.Done():
		}
		d.waiting.Add(-1)
		if ctx.Err() != nil {
			return nil, errors.Join(ctx.Err(), s.abort())
		}
	}
}

// runAlone runs a statement of a session that has the turn until its COMMIT or ROLLBACK.
func (d *Database) runAlone(ctx context.Context, s *session, st statement) (*result, error) {
	if !s.alone {
		if err := d.turn.Acquire(ctx); err != nil {
			return nil, err
		}
		s.alone = true
		if err := d.unload(); err != nil {
			return nil, err
		}
	}
	found, err := d.ask(st)
	if ends := strings.ToUpper(strings.TrimRight(strings.TrimSpace(st.text), ";")); ends == "COMMIT" && err == nil || ends == "ROLLBACK" {
		s.alone, d.tables = false, nil
		d.turn.Release()
	}
	return found, err
}

// dataCommand leaves the schema as it is.
var dataCommand = regexp.MustCompile(`(?i)^\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b`)

// pragmaCommand has no effect within a transaction.
var pragmaCommand = regexp.MustCompile(`(?i)^\s*PRAGMA\b`)

// attempt runs a statement on top of its transaction's changes. It returns the transaction that it has to wait for, if
// there is one; then nothing has changed.
func (d *Database) attempt(s *session, st statement) (found *result, blocker *transaction, err error) {
	if s.terminated {
		return nil, nil, ErrTerminated
	}
	if s.tx != nil && s.tx.aborted {
		return nil, nil, ErrAborted
	}
	if s.tx == nil && pragmaCommand.MatchString(st.text) {
		if err := d.unload(); err != nil {
			return nil, nil, err
		}
		found, err := d.ask(st)
		return found, nil, err
	}
	tx := s.tx
	if tx == nil || d.options.Sequences != nil && d.options.Sequences.MatchString(st.text) {
		tx = newTransaction(s)
	}
	tx.waitsFor = nil
	if err := d.begin(tx); err != nil {
		return nil, nil, err
	}
	found, written, blocker, err := d.attemptOn(tx, st)
	switch {
	case blocker != nil && blocker.awaits(tx):
		blocker, err = nil, ErrDeadlock
	case blocker != nil:
		tx.waitsFor = blocker
	case err == nil && s.tx != tx:
		if !dataCommand.MatchString(st.text) {
			d.tables = nil
		}
		if err = d.execute("COMMIT"); err == nil {
			d.loaded = nil
			d.deliver(d.notices)
			return found, nil, nil
		}
	case err == nil:
		maps.Copy(tx.changes, written)
		tx.notices = append(tx.notices, d.notices...)
		return found, nil, nil
	}
	if err != nil && s.tx != nil {
		s.tx.aborted = true
	}
	return found, blocker, errors.Join(err, d.unload())
}

// attemptOn runs a statement in the engine's transaction, and takes its locks unless another transaction has one.
func (d *Database) attemptOn(tx *transaction, st statement) (
	found *result, written changes, blocker *transaction, err error,
) {
	d.current, d.touched, d.wanted, d.notices, d.blocker = tx, map[lock]bool{}, map[lock]Mode{}, nil, nil
	found, err = d.ask(st)
	touched := d.touched
	d.current, d.touched = nil, nil
	if d.blocker != nil {
		return nil, nil, d.blocker, nil
	}
	if err == nil {
		written, err = d.changesOf(touched)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	for key, mode := range d.wanted {
		if other := d.ownerOf(key, mode, tx); other != nil {
			return nil, nil, other, nil
		}
	}
	if tx.session.tx == tx {
		for key, mode := range d.wanted {
			d.take(key, mode, tx)
		}
	}
	return found, written, nil, nil
}

// begin begins a transaction of the engine with the changes of tx, unless it has them from the statement before.
func (d *Database) begin(tx *transaction) error {
	d.client = tx.session.client
	if d.loaded == tx {
		return nil
	}
	if err := errors.Join(d.unload(), d.execute("BEGIN")); err != nil {
		return err
	}
	d.loaded = tx
	if len(tx.changes) == 0 {
		return nil
	}
	// Among the changes a row may come before the one that it refers to.
	if err := d.execute("PRAGMA defer_foreign_keys = ON"); err != nil {
		return err
	}
	for key, row := range tx.changes {
		if err := d.apply(key, row); err != nil {
			return errors.Join(fmt.Errorf("repeat the changes of %s %s: %w", key.table, key.key, err), d.unload())
		}
	}
	return d.execute("PRAGMA defer_foreign_keys = OFF")
}

// unload ends the engine's transaction, if there is one.
func (d *Database) unload() error {
	if d.loaded == nil {
		return nil
	}
	d.loaded = nil
	return d.execute("ROLLBACK")
}

// commit stores the changes of tx and ends it.
func (d *Database) commit(tx *transaction) error {
	defer d.end(tx)
	if tx.aborted {
		return ErrAborted
	}
	if len(tx.changes) > 0 {
		if err := d.begin(tx); err != nil {
			return err
		}
		if err := d.execute("COMMIT"); err != nil {
			return errors.Join(err, d.unload())
		}
		d.loaded = nil
	}
	d.deliver(tx.notices)
	return nil
}

// end gives up the locks of tx and wakes those that wait for it.
func (d *Database) end(tx *transaction) {
	for key := range tx.locks {
		delete(d.owners[key], tx)
		if len(d.owners[key]) == 0 {
			delete(d.owners, key)
		}
	}
	tx.locks, tx.changes = nil, nil
	if d.loaded == tx {
		_ = d.unload() // nothing of it is stored
	}
	select {
	case <-tx.ended:
	default:
		close(tx.ended)
	}
}

// maxPrepared bounds how many statements the engine keeps prepared.
const maxPrepared = 1000

// prepare returns a statement with parameters, prepared. Most of the time of a small statement would go to its parsing.
func (d *Database) prepare(text string) (prepared, error) {
	if kept, ok := d.prepared[text]; ok {
		return kept, nil
	}
	if len(d.prepared) == maxPrepared {
		if err := d.forget(); err != nil {
			return nil, err
		}
	}
	made, err := d.engine.Prepare(text)
	if err != nil {
		return nil, err
	}
	d.prepared[text] = made.(prepared)
	return d.prepared[text], nil
}

// forget closes all that is prepared.
func (d *Database) forget() (err error) {
	for _, kept := range d.prepared {
		err = errors.Join(err, kept.Close())
	}
	clear(d.prepared)
	return err
}

// ask gives a statement to the engine. It passes no context: the engine would start a goroutine for it.
func (d *Database) ask(st statement) (*result, error) {
	ctx := context.Background()
	execute := func() (driver.Result, error) { return d.engine.ExecContext(ctx, st.text, st.args) }
	query := func() (driver.Rows, error) { return d.engine.QueryContext(ctx, st.text, st.args) }
	if len(st.args) > 0 {
		p, err := d.prepare(st.text)
		if err != nil {
			return nil, err
		}
		execute = func() (driver.Result, error) { return p.ExecContext(ctx, st.args) }
		query = func() (driver.Rows, error) { return p.QueryContext(ctx, st.args) }
	}
	if !st.rows {
		done, err := execute()
		if err != nil {
			return nil, err
		}
		affected, err := done.RowsAffected()
		return &result{affected: affected}, err
	}
	rows, err := query()
	if err != nil {
		return nil, err
	}
	found := &result{columns: rows.Columns()}
	for i := range found.columns {
		found.types = append(found.types, rows.(driver.RowsColumnTypeDatabaseTypeName).ColumnTypeDatabaseTypeName(i))
	}
	for {
		row := make([]driver.Value, len(found.columns))
		if err = rows.Next(row); err != nil {
			break
		}
		found.rows = append(found.rows, row)
	}
	if err == io.EOF {
		err = nil
	}
	return found, errors.Join(err, rows.Close())
}

func (d *Database) execute(text string) error {
	_, err := d.engine.ExecContext(context.Background(), text, nil)
	return err
}

// texts returns the rows of a query as texts.
func (d *Database) texts(text string, args ...driver.Value) ([][]string, error) {
	named := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: arg}
	}
	found, err := d.ask(statement{text: text, args: named, rows: true})
	if err != nil {
		return nil, err
	}
	var all [][]string
	for _, row := range found.rows {
		var texts []string
		for _, value := range row {
			if value == nil {
				value = ""
			}
			texts = append(texts, fmt.Sprint(value))
		}
		all = append(all, texts)
	}
	return all, nil
}
