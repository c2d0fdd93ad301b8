package handlertx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"reflect"
	"sync"
)

// relay is a connection of database/sql whose driver reads from a guarded transaction. Rows, Row and Stmt are structs
// that only database/sql can make, so this is how the guard notes an error that comes with rows, or from a prepared
// statement. With SQLite errors come with the first row at the earliest.
//
// A wrapper around the driver's connection would see as much, but a transaction that the application has begun gives no
// access to it.
type relay struct {
	guard *Guard
	conn  *sql.Conn

	preparing sync.Mutex
	next      *relayedStmt // the statement that the connection is to prepare
}

func newRelay(g *Guard) *relay {
	r := &relay{guard: g}
	db := sql.OpenDB(r)
	r.conn, _ = db.Conn(context.Background()) // Connect does not fail
	// A connection in use outlives its pool, whose goroutine ends here. So there is nothing to close after the
	// transaction has ended.
	_ = db.Close()
	return r
}

// source is the single argument of a relayed query: the rows to read, or an error.
type source struct {
	rows *sql.Rows
	err  error
}

// The relay queries without the caller's context, so that only the transaction's rows notice its end: the relay's rows
// would close without asking for an error.

func (r *relay) rows(rows *sql.Rows) (*sql.Rows, error) {
	return r.conn.QueryContext(context.Background(), "", source{rows: rows})
}

func (r *relay) row(rows *sql.Rows, err error) *sql.Row {
	return r.conn.QueryRowContext(context.Background(), "", source{rows, err})
}

// statement returns a statement that runs a text, or one that fails with err.
func (r *relay) statement(text string, err error) *sql.Stmt {
	r.preparing.Lock()
	defer r.preparing.Unlock()
	r.next = &relayedStmt{relay: r, text: text, err: err}
	stmt, _ := r.conn.PrepareContext(context.Background(), "") // which cannot fail
	return stmt
}

// Connect and Driver implement driver.Connector.
func (r *relay) Connect(context.Context) (driver.Conn, error) { return relayConn{r}, nil }
func (r *relay) Driver() driver.Driver                        { return nil }

// relayConn is the driver's side of a relay, a driver.Conn. Nothing calls its Begin.
type relayConn struct{ *relay }

func (relayConn) Close() error              { return nil }
func (relayConn) Begin() (driver.Tx, error) { return nil, errors.ErrUnsupported }

// CheckNamedValue accepts every argument unchanged: the transaction converts it.
func (relayConn) CheckNamedValue(*driver.NamedValue) error { return nil }

// QueryContext implements driver.QueryerContext.
func (c relayConn) QueryContext(_ context.Context, _ string, args []driver.NamedValue) (driver.Rows, error) {
	from := args[0].Value.(source)
	return c.read(from.rows, from.err)
}

// Prepare returns the statement of relay.statement.
func (c relayConn) Prepare(string) (driver.Stmt, error) { return c.next, nil }

// hidden wraps the error of a lost connection. Otherwise a lost connection of the transaction would close the relay's
// connection, whose error would replace it.
func hidden(err error) error {
	if errors.Is(err, driver.ErrBadConn) {
		return lostConn{err}
	}
	return err
}

type lostConn struct{ error }

// relayedStmt runs a text through the guard each time, or fails with err. It is a driver.Stmt whose ExecContext and
// QueryContext are called instead of Exec and Query.
type relayedStmt struct {
	*relay
	text string
	err  error
}

func (*relayedStmt) Close() error                               { return nil }
func (*relayedStmt) NumInput() int                              { return -1 } // the transaction counts arguments
func (*relayedStmt) Exec([]driver.Value) (driver.Result, error) { return nil, errors.ErrUnsupported }
func (*relayedStmt) Query([]driver.Value) (driver.Rows, error)  { return nil, errors.ErrUnsupported }

// ExecContext implements driver.StmtExecContext.
func (s *relayedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if s.err != nil {
		return nil, s.err
	}
	result, err := s.guard.ExecContext(ctx, s.text, plain(args)...)
	return result, hidden(err)
}

// QueryContext implements driver.StmtQueryContext.
func (s *relayedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if s.err != nil {
		return nil, s.err
	}
	return s.read(s.guard.query(ctx, s.text, plain(args)))
}

// plain converts a driver's arguments to database/sql's.
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

// textOf returns the text of a prepared statement, which database/sql does not export.
func textOf(stmt *sql.Stmt) (string, error) {
	if field := reflect.ValueOf(stmt).Elem().FieldByName("query"); field.Kind() == reflect.String {
		return field.String(), nil
	}
	return "", errors.New("this version of Go does not tell the text of a prepared statement: do without PrepareStmt")
}

// read returns rows of the transaction as a driver's rows.
func (r *relay) read(rows *sql.Rows, err error) (driver.Rows, error) {
	if err != nil {
		return nil, hidden(err)
	}
	columns, err := rows.Columns()
	if err != nil {
		return nil, errors.Join(err, rows.Close())
	}
	read := &relayedRows{guard: r.guard, rows: rows, columns: columns, values: make([]any, len(columns)),
		targets: make([]any, len(columns))}
	for i := range read.values {
		read.targets[i] = &read.values[i]
	}
	return read, nil
}

// relayedRows has the guard note an error that ends the rows.
type relayedRows struct {
	guard   *Guard
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
	switch more, err := r.read(); {
	case err != nil:
		return hidden(err)
	case !more:
		return io.EOF
	}
	for i, value := range r.values {
		into[i] = value
	}
	return nil
}

func (r *relayedRows) read() (more bool, err error) {
	r.guard.enter()
	defer r.guard.leave()
	if more = r.rows.Next(); more {
		err = r.rows.Scan(r.targets...)
	} else {
		err = r.rows.Err()
	}
	r.guard.note(nil, err)
	return more, err
}

// Close implements driver.Rows.
func (r *relayedRows) Close() error {
	r.guard.enter()
	defer r.guard.leave()
	err := r.rows.Close()
	r.guard.note(nil, err)
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

// These implement the interfaces of package driver that are named like them, with Rows in front.

func (r *relayedRows) ColumnTypeDatabaseTypeName(i int) string      { return r.column(i).DatabaseTypeName() }
func (r *relayedRows) ColumnTypeLength(i int) (int64, bool)         { return r.column(i).Length() }
func (r *relayedRows) ColumnTypeNullable(i int) (nullable, ok bool) { return r.column(i).Nullable() }
func (r *relayedRows) ColumnTypeScanType(i int) reflect.Type        { return r.column(i).ScanType() }
func (r *relayedRows) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	return r.column(i).DecimalSize()
}
