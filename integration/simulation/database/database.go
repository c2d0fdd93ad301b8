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
// wait, unless its statement locks that row.
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

// Database has the tables. It is safe for concurrent use.
type Database struct {
	turn   routine.Lock // held while the engine works; it guards everything below
	engine engine
	tables map[string]*table // what is known of the schema; nil after a change

	sessions map[*session]struct{}
	owners   map[lock]map[*transaction]Mode // of the locks
	current  *transaction                   // that the engine works for
	touched  map[lock]bool                  // rows that the current statement has written
	wanted   map[lock]Mode                  // rows that the current statement locks
	blocker  *transaction                   // that the current statement has met
}

// engine is SQLite's connection.
type engine interface {
	driver.Conn
	driver.ExecerContext
	driver.QueryerContext
	RegisterPreUpdateHook(sqlite.PreUpdateHookFn)
}

// New makes an empty database. Close it.
func New() (*Database, error) {
	d := &Database{turn: routine.NewLock(), sessions: map[*session]struct{}{}, owners: map[lock]map[*transaction]Mode{}}
	own := &sqlite.Driver{}
	err := own.RegisterFunction(LockFunction, &sqlite.FunctionImpl{NArgs: 4,
		Scalar: func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) { return d.lockRow(args) }})
	if err != nil {
		return nil, err
	}
	conn, err := own.Open(":memory:")
	if err != nil {
		return nil, err
	}
	d.engine = conn.(engine)
	d.engine.RegisterPreUpdateHook(func(change sqlite.SQLitePreUpdateData) {
		if d.touched != nil {
			d.touched[lock{change.TableName, fmt.Sprint(rowOf(change))}] = true
		}
	})
	return d, d.execute("PRAGMA foreign_keys = ON")
}

// rowOf returns the row that a change leaves, or the one that it deletes.
func rowOf(change sqlite.SQLitePreUpdateData) int64 {
	const deletion = 9 // SQLITE_DELETE
	if change.Op == deletion {
		return change.OldRowID
	}
	return change.NewRowID
}

// Open returns a pool of sessions. Each call of a session passes link; nil passes everything.
func (d *Database) Open(link Link) *sql.DB {
	if link == nil {
		link = func(_ context.Context, _ string, do func() error) error { return do() }
	}
	return sql.OpenDB(connector{d, link})
}

// Close frees the memory.
func (d *Database) Close() error { return d.engine.Close() }

// Terminate ends the sessions that hold a lock on one of these rows of a table, and returns how many.
func (d *Database) Terminate(ctx context.Context, table string, rows ...int64) (ended int, err error) {
	if err := d.turn.Acquire(ctx); err != nil {
		return 0, err
	}
	defer d.turn.Release()
	for _, row := range rows {
		for owner := range d.owners[lock{table, fmt.Sprint(row)}] {
			owner.session.terminate()
			ended++
		}
	}
	return ended, nil
}

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
		select {
		case <-blocker.ended:
		case <-s.ended:
		case <-ctx.Done():
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

// attempt runs a statement on top of its transaction's changes. It returns the transaction that it has to wait for, if
// there is one; then nothing has changed.
func (d *Database) attempt(s *session, st statement) (found *result, blocker *transaction, err error) {
	if s.terminated {
		return nil, nil, ErrTerminated
	}
	tx := s.tx
	if tx == nil {
		tx = newTransaction(s)
	}
	if tx.aborted {
		return nil, nil, ErrAborted
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
	case err == nil && s.tx == nil:
		if !dataCommand.MatchString(st.text) {
			d.tables = nil
		}
		if err = d.execute("COMMIT"); err == nil {
			return found, nil, nil
		}
	case err == nil:
		maps.Copy(tx.changes, written)
	}
	if err != nil {
		tx.aborted = true
	}
	return found, blocker, errors.Join(err, d.execute("ROLLBACK"))
}

// attemptOn runs a statement in the engine's transaction, and takes its locks unless another transaction has one.
func (d *Database) attemptOn(tx *transaction, st statement) (
	found *result, written changes, blocker *transaction, err error,
) {
	d.current, d.touched, d.wanted, d.blocker = tx, map[lock]bool{}, map[lock]Mode{}, nil
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

// begin begins a transaction of the engine with the changes of tx.
func (d *Database) begin(tx *transaction) error {
	if err := d.execute("BEGIN"); err != nil {
		return err
	}
	if len(tx.changes) == 0 {
		return nil
	}
	// Among the changes a row may come before the one that it refers to.
	if err := d.execute("PRAGMA defer_foreign_keys = ON"); err != nil {
		return err
	}
	for key, row := range tx.changes {
		if err := d.apply(key, row); err != nil {
			return errors.Join(fmt.Errorf("repeat the changes of %s %s: %w", key.table, key.key, err), d.execute("ROLLBACK"))
		}
	}
	return d.execute("PRAGMA defer_foreign_keys = OFF")
}

// commit stores the changes of tx and ends it.
func (d *Database) commit(tx *transaction) error {
	defer d.end(tx)
	if tx.aborted {
		return ErrAborted
	}
	if len(tx.changes) == 0 {
		return nil
	}
	if err := d.begin(tx); err != nil {
		return err
	}
	if err := d.execute("COMMIT"); err != nil {
		return errors.Join(err, d.execute("ROLLBACK"))
	}
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
	select {
	case <-tx.ended:
	default:
		close(tx.ended)
	}
}

// ask gives a statement to the engine. It passes no context: the engine would start a goroutine for it.
func (d *Database) ask(st statement) (*result, error) {
	ctx := context.Background()
	if !st.rows {
		done, err := d.engine.ExecContext(ctx, st.text, st.args)
		if err != nil {
			return nil, err
		}
		affected, err := done.RowsAffected()
		return &result{affected: affected}, err
	}
	rows, err := d.engine.QueryContext(ctx, st.text, st.args)
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

// texts returns the first column of a query as texts.
func (d *Database) texts(text string) ([][]string, error) {
	found, err := d.ask(statement{text: text, rows: true})
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
