package database

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"strings"
	"time"

	"modernc.org/sqlite"
)

// Link carries each call of a session to the database: "BEGIN", "COMMIT", "ROLLBACK" or a statement's text. It may wait
// before or after do, which does it, and may leave it out. If it returns another error than do's, the client has lost
// its connection; the server notices unless the error is ErrSilent.
//
// It must not wait for longer than ctx, and nor does the session for its turn. A statement's context ends with that of
// its transaction, too, and a ROLLBACK's has ended: another goroutine may wait for these calls by a mutex of
// database/sql, which is no durable block. For the same reason calls of a session that has the turn to itself do not
// pass its Link: all others wait for them.
type Link func(ctx context.Context, text string, do func() error) error

// ErrSilent is a Link's error for a connection that was lost without the server's notice: the session stays, with its
// transaction and its locks, until it is terminated or for Options.SilentFor.
var ErrSilent error = silence{}

// silence is a net.Error, as that of a connection which TCP has given up.
type silence struct{}

func (silence) Error() string   { return "the connection is silent" }
func (silence) Timeout() bool   { return true }
func (silence) Temporary() bool { return true }

type connector struct {
	database *Database
	client   string
	link     Link
}

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	s := &session{database: c.database, client: c.client, link: c.link, ended: make(chan struct{})}
	err := s.call(ctx, "CONNECT", func() error { return nil })
	return s, err
}

func (c connector) Driver() driver.Driver { return &sqlite.Driver{} }

// session is a client's connection. database/sql uses it from one goroutine at a time.
type session struct {
	database *Database
	client   string
	link     Link
	lost     bool            // the client's side
	silent   bool            // and the server has not noticed
	within   context.Context // of the transaction; nil outside of one

	// Guarded by the database's turn.
	tx         *transaction
	alone      bool // it has the turn until its transaction ends
	terminated bool
	ended      chan struct{} // closed when it is terminated
}

// transaction is one that a session has begun, or that a single statement is.
type transaction struct {
	session    *session
	changes    changes
	notices    []notification
	savepoints []savepoint
	locks      map[lock]bool
	aborted    bool
	waitsFor   *transaction
	ended      chan struct{}
}

type savepoint struct {
	name    string
	changes changes
	notices int // that were sent before
}

func newTransaction(s *session) *transaction {
	return &transaction{session: s, changes: changes{}, locks: map[lock]bool{}, ended: make(chan struct{})}
}

// awaits reports whether tx waits for another, directly or not.
func (tx *transaction) awaits(other *transaction) bool {
	for ; tx != nil; tx = tx.waitsFor {
		if tx == other {
			return true
		}
	}
	return false
}

// call passes a call through the link.
func (s *session) call(ctx context.Context, text string, do func() error) error {
	if s.lost {
		return driver.ErrBadConn
	}
	var done error
	link := s.link
	if s.alone {
		link = orDirect(nil)
	}
	err := link(ctx, text, func() error { done = do(); return done })
	if err != nil && !errors.Is(err, done) || errors.Is(done, ErrTerminated) {
		s.lost, s.silent = true, errors.Is(err, ErrSilent)
		if silence := s.database.options.SilentFor; s.silent && silence > 0 {
			time.AfterFunc(silence, func() { _ = s.onServer(func() error { s.terminate(); return nil }) })
		}
		return errors.Join(err, ctx.Err(), s.Close()) // drivers name the end of the context, too
	}
	return err
}

// onServer does something at the database's turn.
func (s *session) onServer(do func() error) error { return s.onServerUntil(context.Background(), do) }

func (s *session) onServerUntil(ctx context.Context, do func() error) error {
	if s.alone {
		return do()
	}
	if err := s.database.turn.Acquire(ctx); err != nil {
		return err
	}
	defer s.database.turn.Release()
	if s.terminated {
		return ErrTerminated
	}
	return do()
}

// terminate ends the session and its transaction. The caller has the turn.
func (s *session) terminate() {
	if s.terminated {
		return
	}
	s.terminated = true
	if s.alone {
		s.alone = false
		_ = s.database.execute("ROLLBACK") // it may have ended
		s.database.tables = nil
		defer s.database.turn.Release()
	}
	if s.tx != nil {
		s.database.end(s.tx)
		s.tx = nil
	}
	close(s.ended)
}

// onServerNow does something that must not wait for the turn, see Link. If another session has it, the client has lost
// its connection.
func (s *session) onServerNow(do func() error) error {
	err := s.onServerUntil(over, do)
	if errors.Is(err, context.Canceled) {
		s.lost = true
		return s.Close()
	}
	return err
}

// over is a context that has ended.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// abort makes the transaction refuse all but its end.
func (s *session) abort() error {
	return s.onServerNow(func() error {
		if s.tx != nil {
			s.tx.aborted, s.tx.waitsFor = true, nil
		}
		return nil
	})
}

// Close ends the session as if the client had closed its connection. A silent one stays. If another session has the
// turn, the server notices later.
func (s *session) Close() error {
	if s.silent {
		return nil
	}
	end := func() error { s.terminate(); return nil }
	err := s.onServerUntil(over, end)
	if errors.Is(err, context.Canceled) {
		go func() { _ = s.onServer(end) }()
	}
	if errors.Is(err, ErrTerminated) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (s *session) IsValid() bool { return !s.lost }
func (s *session) Begin() (driver.Tx, error) {
	return s.BeginTx(context.Background(), driver.TxOptions{})
}
func (s *session) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }

func (s *session) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	err := s.call(ctx, "BEGIN", func() error {
		return s.onServer(func() error { s.tx = newTransaction(s); return nil })
	})
	s.within = ctx
	return ending{s}, err
}

// ending ends a session's transaction.
type ending struct{ *session }

func (s ending) Commit() error {
	return s.end(s.within, "COMMIT", s.onServer, s.database.commit)
}

func (s ending) Rollback() error {
	return s.end(over, "ROLLBACK", s.onServerNow, func(tx *transaction) error { s.database.end(tx); return nil })
}

func (s ending) end(
	ctx context.Context, text string, onServer func(func() error) error, how func(*transaction) error,
) error {
	s.within = nil
	return s.call(ctx, text, func() error {
		return onServer(func() error {
			tx := s.tx
			s.tx = nil
			return how(tx)
		})
	})
}

func (s *session) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	return s.statement(ctx, statement{text, args, false})
}

func (s *session) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	found, err := s.statement(ctx, statement{text, args, true})
	if err != nil {
		return nil, err
	}
	return &rows{result: found}, nil
}

func (s *session) statement(ctx context.Context, st statement) (found *result, err error) {
	if s.within != nil {
		both, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.within, cancel)()
		ctx = both
	}
	err = s.call(ctx, st.text, func() (err error) {
		if command := savepointCommand.FindStringSubmatch(st.text); command != nil {
			found = &result{}
			return s.onServerUntil(ctx, func() error { return s.save(strings.ToUpper(command[1]), command[2]) })
		}
		if exclusiveCommand.MatchString(st.text) || s.alone {
			found, err = s.database.runAlone(ctx, s, st)
		} else {
			found, err = s.database.run(ctx, s, st)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

var savepointCommand = regexp.MustCompile(`(?i)^\s*(SAVEPOINT|RELEASE(?:\s+SAVEPOINT)?|ROLLBACK\s+TO(?:\s+SAVEPOINT)?)\s+"?(\w+)"?\s*;?\s*$`)

// exclusiveCommand begins a transaction during which no other session does anything. It may change the schema.
var exclusiveCommand = regexp.MustCompile(`(?i)^\s*BEGIN\s+(IMMEDIATE|EXCLUSIVE)\b`)

// save makes a savepoint, forgets one, or goes back to one.
func (s *session) save(command, name string) error {
	if s.tx == nil {
		return &Error{"25P01", "there is no transaction"}
	}
	if command == "SAVEPOINT" {
		if s.tx.aborted {
			return ErrAborted
		}
		s.tx.savepoints = append(s.tx.savepoints, savepoint{name, maps.Clone(s.tx.changes), len(s.tx.notices)})
		return nil
	}
	for i := len(s.tx.savepoints) - 1; i >= 0; i-- {
		if s.tx.savepoints[i].name != name {
			continue
		}
		if strings.HasPrefix(command, "RELEASE") {
			if s.tx.aborted {
				return ErrAborted
			}
			s.tx.savepoints = s.tx.savepoints[:i]
			return nil
		}
		if err := s.database.unload(); err != nil {
			return err
		}
		s.tx.changes, s.tx.aborted = maps.Clone(s.tx.savepoints[i].changes), false
		s.tx.notices = s.tx.notices[:s.tx.savepoints[i].notices]
		s.tx.savepoints = s.tx.savepoints[:i+1]
		return nil
	}
	return &Error{"3B001", fmt.Sprintf("there is no savepoint %q", name)}
}

// rows are a statement's result, read as a whole.
type rows struct {
	*result
	next int
}

func (r *rows) Columns() []string                       { return r.columns }
func (r *rows) ColumnTypeDatabaseTypeName(i int) string { return r.types[i] }
func (r *rows) Close() error                            { return nil }
func (r *rows) Next(dest []driver.Value) error {
	if r.next == len(r.rows) {
		return io.EOF
	}
	copy(dest, r.rows[r.next])
	r.next++
	return nil
}
