package handlertx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"reflect"
	"sync"

	"github.com/gorm-inbox/inbox/internal/txcontrol"
)

// relay is a connection of database/sql on top of a transaction. Only database/sql can make Rows,
// Row and Stmt, which are structs. What a handler reads through this connection is read from the
// transaction's own rows, and errors on the way are noted. With SQLite they come with the first row
// at the earliest.
type relay struct {
	watched *WatchedTx
	conn    *sql.Conn

	preparing sync.Mutex
	next      *relayedStmt // the statement that the connection is to prepare
}

func newRelay(w *WatchedTx) *relay {
	r := &relay{watched: w}
	db := sql.OpenDB(r)
	r.conn, _ = db.Conn(context.Background()) // Connect does not fail
	// A connection in use outlives its pool, whose goroutine ends here. So there is nothing to
	// close after the transaction has ended.
	_ = db.Close()
	return r
}

// query is the single argument of a relayed query and describes it. It carries the context, so that
// only the transaction's own rows notice the context's end: the relay's rows would close without
// asking for an error.
type query struct {
	ctx  context.Context
	text string
	args []any
	// controls is what the text does with savepoints.
	controls []txcontrol.Control
	err      error // err is returned instead of running the query
}

func (r *relay) query(q *query) (*sql.Rows, error) {
	return r.conn.QueryContext(context.Background(), "", q)
}

func (r *relay) queryRow(q *query) *sql.Row {
	return r.conn.QueryRowContext(context.Background(), "", q)
}

func (r *relay) statement(s *relayedStmt) (*sql.Stmt, error) {
	r.preparing.Lock()
	defer r.preparing.Unlock()
	s.watched, r.next = r.watched, s
	return r.conn.PrepareContext(context.Background(), "")
}

// Connect implements driver.Connector.
func (r *relay) Connect(context.Context) (driver.Conn, error) { return relayConn{r}, nil }

// Driver implements driver.Connector.
func (r *relay) Driver() driver.Driver { return nil }

// relayConn is the driver's side of a relay.
type relayConn struct{ *relay }

// CheckNamedValue accepts every argument unchanged: the transaction converts it.
func (relayConn) CheckNamedValue(*driver.NamedValue) error { return nil }

// QueryContext implements driver.QueryerContext.
func (c relayConn) QueryContext(_ context.Context, _ string, args []driver.NamedValue) (driver.Rows, error) {
	q := args[0].Value.(*query)
	if q.err != nil {
		return nil, hidden(q.err)
	}
	rows, err := c.watched.ConnPool.QueryContext(q.ctx, q.text, q.args...)
	return c.watched.relayRows(q.controls, rows, err)
}

// Prepare returns the statement that relay.statement was called with.
func (c relayConn) Prepare(string) (driver.Stmt, error) { return c.next, nil }

// Close implements driver.Conn.
func (relayConn) Close() error { return nil }

// Begin implements driver.Conn. Nothing calls it.
func (relayConn) Begin() (driver.Tx, error) { return nil, errors.ErrUnsupported }

// hidden wraps the error of a lost connection. Otherwise a lost connection of the transaction would
// close the relay's connection, whose error would replace it.
func hidden(err error) error {
	if errors.Is(err, driver.ErrBadConn) {
		return lostConn{err}
	}
	return err
}

type lostConn struct{ error }

// relayedStmt is a prepared statement of the transaction, or the reason why there is none.
type relayedStmt struct {
	watched  *WatchedTx
	controls []txcontrol.Control // what it does with savepoints
	stmt     *sql.Stmt
	err      error
}

// Close implements driver.Stmt.
func (s *relayedStmt) Close() error {
	if s.stmt == nil {
		return nil
	}
	return s.stmt.Close()
}

// NumInput leaves counting arguments to the transaction.
func (s *relayedStmt) NumInput() int { return -1 }

// Exec implements driver.Stmt. ExecContext is called instead.
func (s *relayedStmt) Exec([]driver.Value) (driver.Result, error) { return nil, errors.ErrUnsupported }

// Query implements driver.Stmt. QueryContext is called instead.
func (s *relayedStmt) Query([]driver.Value) (driver.Rows, error) { return nil, errors.ErrUnsupported }

// ExecContext implements driver.StmtExecContext.
func (s *relayedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if s.err != nil {
		return nil, s.err
	}
	result, err := s.stmt.ExecContext(ctx, plain(args)...)
	s.watched.note(s.controls, err)
	return result, hidden(err)
}

// QueryContext implements driver.StmtQueryContext.
func (s *relayedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if s.err != nil {
		return nil, s.err
	}
	rows, err := s.stmt.QueryContext(ctx, plain(args)...)
	return s.watched.relayRows(s.controls, rows, err)
}

// plain converts a driver's arguments to those of database/sql.
func plain(args []driver.NamedValue) []any {
	values := make([]any, len(args))
	for i, arg := range args {
		values[i] = arg.Value
		if arg.Name != "" {
			values[i] = sql.Named(arg.Name, arg.Value)
		}
	}
	return values
}

// textOf returns the text of a prepared statement, which database/sql does not export. A statement
// of another transaction cannot be used without it.
func textOf(stmt *sql.Stmt) (string, error) {
	if field := reflect.ValueOf(stmt).Elem().FieldByName("query"); field.Kind() == reflect.String {
		return field.String(), nil
	}
	return "", errors.New("this version of Go does not tell the text of a prepared statement: do without PrepareStmt")
}

// relayRows passes rows on, and notes an error that prevents or ends them.
func (w *WatchedTx) relayRows(controls []txcontrol.Control, rows *sql.Rows, err error) (driver.Rows, error) {
	w.note(controls, err)
	if err != nil {
		return nil, hidden(err)
	}
	columns, err := rows.Columns()
	if err != nil {
		return nil, errors.Join(err, rows.Close())
	}
	r := &relayedRows{watched: w, rows: rows, columns: columns, values: make([]any, len(columns)),
		targets: make([]any, len(columns))}
	for i := range r.values {
		r.targets[i] = &r.values[i]
	}
	return r, nil
}

type relayedRows struct {
	watched *WatchedTx
	rows    *sql.Rows
	columns []string
	values  []any
	targets []any
	types   []*sql.ColumnType // of the row read last: SQLite has types per value
}

// Columns implements driver.Rows.
func (r *relayedRows) Columns() []string { return r.columns }

// Next implements driver.Rows.
func (r *relayedRows) Next(into []driver.Value) error {
	r.types = nil
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			r.watched.note(nil, err)
			return hidden(err)
		}
		return io.EOF
	}
	if err := r.rows.Scan(r.targets...); err != nil {
		r.watched.note(nil, err)
		return err
	}
	for i, value := range r.values {
		into[i] = value
	}
	return nil
}

// Close implements driver.Rows.
func (r *relayedRows) Close() error {
	err := r.rows.Close()
	if err != nil {
		r.watched.note(nil, err)
	}
	return err
}

func (r *relayedRows) column(i int) *sql.ColumnType {
	if r.types == nil {
		r.types, _ = r.rows.ColumnTypes()
	}
	if i >= len(r.types) {
		return new(sql.ColumnType)
	}
	return r.types[i]
}

// ColumnTypeDatabaseTypeName implements driver.RowsColumnTypeDatabaseTypeName.
func (r *relayedRows) ColumnTypeDatabaseTypeName(i int) string { return r.column(i).DatabaseTypeName() }

// ColumnTypeLength implements driver.RowsColumnTypeLength.
func (r *relayedRows) ColumnTypeLength(i int) (int64, bool) { return r.column(i).Length() }

// ColumnTypeNullable implements driver.RowsColumnTypeNullable.
func (r *relayedRows) ColumnTypeNullable(i int) (nullable, ok bool) { return r.column(i).Nullable() }

// ColumnTypePrecisionScale implements driver.RowsColumnTypePrecisionScale.
func (r *relayedRows) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	return r.column(i).DecimalSize()
}

// ColumnTypeScanType implements driver.RowsColumnTypeScanType.
func (r *relayedRows) ColumnTypeScanType(i int) reflect.Type { return r.column(i).ScanType() }
