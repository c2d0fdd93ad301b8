package handlertx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/txcontrol"
)

var (
	errFailed   = errors.New("the statement failed")
	errDeadlock = errors.New("deadlock: the transaction was rolled back")
	syntax      = &txcontrol.Syntax{Boundaries: append(txcontrol.Boundaries, "CREATE"), Quotes: "'\"`", LineEnds: "\n"}
)

// kinds are databases by what an error does to a transaction.
var kinds = map[string]*dialect.Dialect{
	// A failed statement aborts the transaction, and the server refuses what follows: PostgreSQL.
	"aborting": {Syntax: &txcontrol.Syntax{Boundaries: syntax.Boundaries, Quotes: "'\"", LineEnds: "\n", Settings: []string{"SET"}}},
	// It may roll back the transaction, which only a BEGIN finds out: SQLite.
	"asking": {Syntax: syntax, RolledBack: func(_ error, run func(string) error) bool { return run("BEGIN") == nil }},
	// It rolls back the transaction if the error says so, and a BEGIN would commit: MySQL.
	"telling": {Syntax: syntax, RolledBack: func(failure error, _ func(string) error) bool { return errors.Is(failure, errDeadlock) }},
}

// database is a pretend server with one session. A statement does what its text says: "fail", "deadlock", or
// anything else. A query has two rows; one that says "late" does the rest instead of its second row.
type database struct {
	mu      sync.Mutex
	inTx    bool
	ran     []string // in the transaction
	strayed []string // outside of it, so committed by themselves
}

func (d *database) run(text string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case text == "BEGIN" && d.inTx:
		return errors.New("within a transaction")
	case text == "BEGIN":
		d.inTx = true
		return nil
	case strings.Contains(text, "deadlock"):
		d.inTx = false
		return errDeadlock
	case strings.Contains(text, "fail"):
		return errFailed
	case d.inTx:
		d.ran = append(d.ran, text)
	default:
		d.strayed = append(d.strayed, text)
	}
	return nil
}

// Connect implements driver.Connector.
func (d *database) Connect(context.Context) (driver.Conn, error) { return d, nil }

// Driver implements driver.Connector.
func (d *database) Driver() driver.Driver { return nil }

// Begin implements driver.Conn.
func (d *database) Begin() (driver.Tx, error) { return d, d.run("BEGIN") }

// Commit implements driver.Tx.
func (d *database) Commit() error { return nil }

// Rollback implements driver.Tx.
func (d *database) Rollback() error { return nil }

// Close implements driver.Conn.
func (d *database) Close() error { return nil }

// Prepare implements driver.Conn.
func (d *database) Prepare(string) (driver.Stmt, error) { return statement{}, nil }

// ExecContext implements driver.ExecerContext.
func (d *database) ExecContext(_ context.Context, text string, _ []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(1), d.run(text)
}

// QueryContext implements driver.QueryerContext.
func (d *database) QueryContext(_ context.Context, text string, _ []driver.NamedValue) (driver.Rows, error) {
	if strings.Contains(text, "late") {
		return &numbers{database: d, late: text}, nil
	}
	return &numbers{database: d}, d.run(text)
}

type statement struct{ driver.Stmt }

func (statement) Close() error  { return nil }
func (statement) NumInput() int { return -1 }

type numbers struct {
	*database
	late string
	read int
}

func (n *numbers) Columns() []string { return []string{"n"} }

func (n *numbers) Next(into []driver.Value) error {
	if n.read++; n.read == 2 && n.late != "" {
		if err := n.run(n.late); err != nil {
			return err
		}
	}
	if n.read > 2 {
		return io.EOF
	}
	into[0] = int64(n.read)
	return nil
}

// pretend returns a transaction of a pretend database.
func pretend(t *testing.T) (*database, *sql.Tx) {
	d := &database{}
	pool := sql.OpenDB(d)
	tx, err := pool.Begin()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = tx.Rollback(), pool.Close() })
	return d, tx
}

func guard(pool gorm.ConnPool, d *dialect.Dialect) *Guard {
	return &Guard{pool: pool, dialect: d, timeout: time.Minute}
}

// ways are the ways in which a handler runs a statement.
var ways = map[string]func(g *Guard, text string) error{
	"Exec": func(g *Guard, text string) error {
		_, err := g.ExecContext(context.Background(), text)
		return err
	},
	"Query": func(g *Guard, text string) error { return readAll(g.QueryContext(context.Background(), text)) },
	"QueryRow": func(g *Guard, text string) error {
		return g.QueryRowContext(context.Background(), text).Scan(new(int))
	},
	"a prepared statement": func(g *Guard, text string) error {
		stmt, err := g.PrepareContext(context.Background(), text)
		if err != nil {
			return err
		}
		_, err = g.StmtContext(context.Background(), stmt).ExecContext(context.Background())
		return err
	},
	"a prepared query": func(g *Guard, text string) error {
		stmt, err := g.PrepareContext(context.Background(), text)
		if err != nil {
			return err
		}
		return readAll(g.StmtContext(context.Background(), stmt).QueryContext(context.Background()))
	},
}

func readAll(rows *sql.Rows, err error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
	}
	return rows.Err()
}

// each runs a test on each kind of database and in each way.
func each(t *testing.T, test func(t *testing.T, kind string, run func(g *Guard, text string) error)) {
	for kind := range kinds {
		for way, run := range ways {
			t.Run(kind+", by "+way, func(t *testing.T) { test(t, kind, run) })
		}
	}
}

func TestErrorIsSwallowedUnlessASavepointUndidIt(t *testing.T) {
	each(t, func(t *testing.T, kind string, run func(g *Guard, text string) error) {
		for script, swallowed := range map[string]bool{
			"insert":                           false,
			"fail":                             true,
			"fail, insert":                     true,
			"SAVEPOINT a, fail, ROLLBACK TO a": false,
			"savepoint A, fail, rollback to savepoint a":      false,
			"SAVEPOINT a, fail, RELEASE a":                    true,
			"SAVEPOINT a, fail, RELEASE a, ROLLBACK TO a":     true,
			"fail, SAVEPOINT a, ROLLBACK TO a":                true,
			"SAVEPOINT a, fail, SAVEPOINT a, ROLLBACK TO a":   true,
			"SAVEPOINT a, SAVEPOINT b, fail, ROLLBACK TO a":   false,
			"SAVEPOINT a, SAVEPOINT b, fail, ROLLBACK TO b":   false,
			"SAVEPOINT a, ROLLBACK TO a, fail, ROLLBACK TO a": false,
			"SAVEPOINT a, fail, ROLLBACK TO b":                true,
			"SAVEPOINT a; SAVEPOINT b, fail, ROLLBACK TO a":   false,
		} {
			d, tx := pretend(t)
			g := guard(tx, kinds[kind])
			var reached []string
			for _, text := range strings.Split(script, ", ") {
				if failed := run(g, text); text == "fail" {
					require.ErrorIs(t, failed, errFailed)
				} else {
					require.NoError(t, failed)
					reached = append(reached, text)
				}
			}
			require.Equal(t, reached, d.ran)
			if swallowed {
				require.ErrorIs(t, g.Swallowed(), errFailed, script)
				require.ErrorIs(t, g.Fault(nil, func(error) bool { return true }), errFailed)
			} else {
				require.NoError(t, g.Swallowed(), script)
			}
		}
	})
}

func TestErrorReturnedWithRowsIsRecorded(t *testing.T) {
	for kind := range kinds {
		if kind == "aborting" {
			continue // the server refuses to commit
		}
		for _, way := range []string{"Query", "a prepared query"} {
			_, tx := pretend(t)
			g := guard(tx, kinds[kind])
			require.ErrorIs(t, ways[way](g, "fail late"), errFailed)
			require.ErrorIs(t, g.Swallowed(), errFailed, "%s, by %s", kind, way)
		}
	}
}

func TestTransactionControlNeverReachesTheDatabase(t *testing.T) {
	each(t, func(t *testing.T, kind string, run func(g *Guard, text string) error) {
		for _, text := range []string{"COMMIT", "insert; rollback", "/* */ Begin", "create table t (n int)", "SAVEPOINT a; END"} {
			d, tx := pretend(t)
			g := guard(tx, kinds[kind])
			require.NoError(t, run(g, "SAVEPOINT a"))
			require.ErrorContains(t, run(g, text), "a handler must not begin or end the transaction it runs in")
			require.Error(t, run(g, "ROLLBACK TO a"), "nothing else is let through")
			require.Equal(t, []string{"SAVEPOINT a"}, d.ran)
			require.ErrorIs(t, g.Swallowed(), gorm.ErrInvalidTransaction)
		}
	})
	_, tx := pretend(t)
	for _, end := range []func(*Guard) error{(*Guard).Commit, (*Guard).Rollback} {
		g := guard(tx, kinds["telling"])
		require.Error(t, end(g))
		require.Error(t, g.Swallowed())
	}
}

func TestEndedTransactionSendsNothingToTheDatabase(t *testing.T) {
	each(t, func(t *testing.T, kind string, run func(g *Guard, text string) error) {
		if kind == "aborting" {
			return // the server itself refuses what follows
		}
		for _, deadlock := range []string{"deadlock", "deadlock late"} {
			d, tx := pretend(t)
			g := guard(tx, kinds[kind])
			require.NoError(t, run(g, "SAVEPOINT a"))
			way := run
			if deadlock == "deadlock late" {
				way = ways["Query"]
			}
			require.ErrorIs(t, way(g, deadlock), errDeadlock)
			for _, after := range ways {
				require.ErrorContains(t, after(g, "insert"), "was rolled back by a statement that failed")
				require.Error(t, after(g, "ROLLBACK TO a"))
			}
			require.Equal(t, []string{"SAVEPOINT a"}, d.ran)
			require.Empty(t, d.strayed)
			require.ErrorIs(t, g.Swallowed(), errDeadlock)
			require.ErrorIs(t, g.Fault(nil, func(error) bool { return true }), errDeadlock, "it decides the attempt")
		}
	})
}

func TestNoGoroutineWritesAfterARollback(t *testing.T) {
	for _, deadlock := range []func(*Guard) error{
		func(g *Guard) error { return ways["Exec"](g, "deadlock") },
		func(g *Guard) error { return ways["Query"](g, "deadlock late") },
	} {
		d, tx := pretend(t)
		other, begun := make(chan error, 1), make(chan bool)
		var g *Guard
		g = guard(tx, &dialect.Dialect{Syntax: syntax, RolledBack: func(error, func(string) error) bool {
			go func() {
				close(begun)
				other <- ways["Exec"](g, "insert")
			}()
			<-begun
			for range 1000 {
				runtime.Gosched()
			}
			return true
		}})
		require.ErrorIs(t, deadlock(g), errDeadlock)
		select {
		case err := <-other:
			require.ErrorIs(t, err, errDeadlock)
		case <-time.After(testenv.Patience):
			require.Fail(t, "the failure was not noted")
		}
		require.Empty(t, d.strayed)
	}
}

func TestJoinedRunsGuardAgreesWithTheOuterGuard(t *testing.T) {
	for kind, of := range kinds {
		d, tx := pretend(t)
		below := guard(tx, of)
		above := guard(below, of)
		require.NoError(t, ways["Exec"](below, "SAVEPOINT run"))
		require.ErrorIs(t, ways["Query"](above, "fail"), errFailed)
		require.ErrorIs(t, above.Swallowed(), errFailed)
		require.ErrorIs(t, below.Swallowed(), errFailed)
		require.NoError(t, ways["Exec"](below, "ROLLBACK TO run"))
		require.NoError(t, below.Swallowed(), "the run is undone, and its caller continues")

		require.Error(t, ways["Exec"](above, "COMMIT"))
		require.NoError(t, below.Swallowed(), "it did not reach the caller's guard")
		if kind == "aborting" {
			continue
		}
		require.ErrorIs(t, ways["Query"](guard(below, of), "deadlock late"), errDeadlock)
		require.ErrorIs(t, ways["Exec"](guard(below, of), "insert"), errDeadlock)
		require.ErrorIs(t, below.Swallowed(), errDeadlock)
		require.Empty(t, d.strayed)
	}
}

func TestUndoneErrorCountsIfTheHandlerReturnsIt(t *testing.T) {
	_, tx := pretend(t)
	g := guard(tx, kinds["telling"])
	any := func(error) bool { return true }
	for _, text := range []string{"SAVEPOINT a", "fail", "ROLLBACK TO a"} {
		_ = ways["Exec"](g, text)
	}
	require.NoError(t, g.Fault(errors.New("another"), any))
	require.ErrorIs(t, g.Fault(errors.Join(errFailed), any), errFailed)
	require.NoError(t, g.Fault(errFailed, func(error) bool { return false }))
}

func TestCommitNotifiesOnlyWorkNotUndone(t *testing.T) {
	_, tx := pretend(t)
	g := guard(tx, kinds["asking"])
	session := &gorm.DB{Statement: &gorm.Statement{ConnPool: &gorm.PreparedStmtTX{Tx: g}}}
	var called []string
	wait := func(name string) { require.True(t, AfterCommit(session, func() { called = append(called, name) })) }
	wait("first")
	require.NoError(t, ways["Exec"](g, "SAVEPOINT a"))
	wait("undone")
	require.NoError(t, Steer(t.Context(), session, "ROLLBACK TO a; RELEASE a"))
	wait("last")
	g.Committed()
	g.Committed()
	require.Equal(t, []string{"first", "last"}, called)
	session.Statement.ConnPool = tx
	require.False(t, AfterCommit(session, nil))
}

// Contract 5.11: what the inbox has taken back for a failed call is not the handler's to swallow.
func TestFailureThatWasTakenBackIsNotSwallowed(t *testing.T) {
	_, tx := pretend(t)
	g := guard(tx, kinds["telling"])
	session := &gorm.DB{Statement: &gorm.Statement{ConnPool: &gorm.PreparedStmtTX{Tx: g}}}
	require.NoError(t, ways["Exec"](g, "SAVEPOINT own"))
	require.NoError(t, ways["Exec"](g, "SAVEPOINT inbox"))
	require.Error(t, ways["Exec"](g, "fail"))
	require.NoError(t, ways["Exec"](g, "ROLLBACK TO SAVEPOINT inbox"))
	require.NoError(t, g.Swallowed())
	Failed(session, errFailed)
	require.ErrorIs(t, g.Swallowed(), errFailed)
	require.NoError(t, Steer(t.Context(), session, "ROLLBACK TO own"))
	require.NoError(t, g.Swallowed(), "the handler has undone the call")
	session.Statement.ConnPool = tx
	Failed(session, errFailed)
}

func TestSettingsAreDetected(t *testing.T) {
	for text, sets := range map[string]bool{"SET a = 1": true, "insert; set b = 2": true, "UPDATE t SET a = 1": false} {
		for kind := range kinds {
			_, tx := pretend(t)
			g := guard(tx, kinds[kind])
			require.NoError(t, ways["Exec"](g, text))
			require.Equal(t, sets && kind == "aborting", g.Sets(), "%s: %s", kind, text)
		}
	}
}

func TestLostConnectionIsReportedByEveryStatement(t *testing.T) {
	for _, way := range []string{"QueryRow", "a prepared query"} {
		g := guard(lost{}, kinds["telling"])
		for _, text := range []string{"first", "second"} {
			err := ways[way](g, text)
			require.ErrorContains(t, err, driver.ErrBadConn.Error(), way)
			require.NotErrorIs(t, err, sql.ErrConnDone)
		}
	}
}

// lost is a transaction whose connection is lost.
type lost struct{ gorm.ConnPool }

func (lost) PrepareContext(context.Context, string) (*sql.Stmt, error) { return new(sql.Stmt), nil }

func (lost) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	return nil, driver.ErrBadConn
}
