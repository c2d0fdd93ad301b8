package inboxtest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

// Endless records statements whose context has no end. A database that does not answer would block
// them without limit.
type Endless struct {
	driver driver.Driver
	dsn    string

	mu         sync.Mutex
	statements []string
}

// OnEndless opens a pool on a new SQLite file. e records the statements that run on it without an
// end.
func OnEndless(t testing.TB) (d *Database, e *Endless) {
	t.Helper()
	e = &Endless{dsn: testenv.SQLiteDSN(t)}
	bare, err := sql.Open(testenv.SQLiteDriver(), e.dsn)
	require.NoError(t, err)
	e.driver = bare.Driver()
	require.NoError(t, bare.Close())
	pool := sql.OpenDB(e)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	db, err := gorm.Open(sqlite.Dialector{Conn: pool}, &gorm.Config{Logger: logger.Discard})
	require.NoError(t, err)
	return &Database{Dialect: "sqlite", DB: db, dsn: e.dsn}, e
}

// During returns the recorded statements that ran while work ran.
func (e *Endless) During(work func()) []string {
	e.mu.Lock()
	before := len(e.statements)
	e.mu.Unlock()
	work()
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.statements[before:])
}

func (e *Endless) saw(ctx context.Context, statement string) {
	if ctx.Done() != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.statements = append(e.statements, statement)
}

// Connect implements driver.Connector.
func (e *Endless) Connect(context.Context) (driver.Conn, error) {
	c, err := e.driver.Open(e.dsn)
	return &endlessConn{c, e}, err
}

// Driver implements driver.Connector.
func (e *Endless) Driver() driver.Driver { return e.driver }

type endlessConn struct {
	driver.Conn
	seen *Endless
}

func (c *endlessConn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	c.seen.saw(ctx, "begin a transaction")
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, options)
}

func (c *endlessConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	c.seen.saw(ctx, text)
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, text, args)
}

func (c *endlessConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	c.seen.saw(ctx, text)
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, text, args)
}

func (c *endlessConn) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	c.seen.saw(ctx, text)
	return c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, text)
}
