package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
)

// ErrWorkerReleased means that the worker was declared dead and its claims were released.
var ErrWorkerReleased = errors.New("worker was declared dead and its claims were released")

// ErrWorkerBusy means that a worker cannot be marked as released at the moment: a claim, or an accept that claims, of
// that worker is running or was left open.
var ErrWorkerBusy = errors.New("a statement of the worker that claims is open")

// ErrNoTransaction means that a method that works in the caller's transaction got a session without one.
var ErrNoTransaction = errors.New("no open transaction")

// ErrNotAudited means that an operator's action was undone because its audit row could not be written.
var ErrNotAudited = errors.New("the audit row could not be written, nothing was done")

// ErrGone means that a row is not to be published any more.
var ErrGone = errors.New("no such row to publish")

// ErrRejectedGone means that no rejected message has that ID, or no longer.
var ErrRejectedGone = errors.New("no such rejected message")

// ErrCannotListen means that a connection like the pool's cannot be opened outside of the pool: the pool's driver is
// not pgx, or hides it.
var ErrCannotListen = errors.New("the pool's driver is not pgx (github.com/jackc/pgx/v5/stdlib)")

// ErrNoNotifications means that the database, or the portable profile on PostgreSQL, has no notifications.
var ErrNoNotifications = errors.New("no notifications pass through this database")

// ErrLayoutChanged means that a statement was made for another layout of the tables than they have by now. It has done
// nothing, and the next one is made for the layout there is.
var ErrLayoutChanged = errors.New("the layout of the tables has changed")

// ErrKeepVanishing means that an accept has found messages and then could not lock them, again and again: cleanups have
// taken them, or the caller's transaction has a snapshot from before they were moved. Another transaction may succeed.
var ErrKeepVanishing = errors.New("messages keep vanishing")

// ErrNotReceived means that a Listener did not receive a notification that was sent through the pool.
var ErrNotReceived = errors.New("a notification sent through the pool did not arrive: " +
	"a pooler in transaction mode lets none through, and a busy database may be late with it")

// ErrSharedSession means that the Listener has no server session for itself.
var ErrSharedSession = errors.New("the listening connection has no session of its own: " +
	"a pooler in transaction mode gives it one for each transaction, and no notification passes")

// IsTransient reports whether the same call may succeed later without a change by anyone. Such errors are:
//
//   - connections that were lost, refused or exhausted
//   - a server that is starting, stopping or read-only after a failover
//   - deadlocks, serialization failures, lock and statement timeouts
//   - a busy SQLite file
//   - a layout of the tables that has changed, and messages that keep vanishing
//   - a context that ended
//
// After such an error it is unknown whether a commit took place.
func IsTransient(err error) bool {
	switch {
	case err == nil:
		return false
	case errors.Is(err, ErrLayoutChanged), errors.Is(err, ErrKeepVanishing), errors.Is(err, pgxtx.ErrUnconfirmed),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, driver.ErrBadConn),
		errors.Is(err, sql.ErrConnDone),
		// database/sql's error after a context has rolled the transaction back
		errors.Is(err, sql.ErrTxDone),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return true
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	if class, found := dialects.Classify(err); found {
		return class.Has(dialect.Transient)
	}
	// pgx has no types for these errors.
	return strings.Contains(err.Error(), "conn closed") || strings.Contains(err.Error(), "conn busy")
}

// IsDatabaseFault reports whether a statement of a handler failed because of the database and not of the statement, so
// that the same statement may succeed later. It is IsTransient without the errors that a handler itself can cause: the
// end of a context it made, a statement timeout, a limit or a file that concerns the statement alone, and a second
// query on a connection that is still being read from.
func IsDatabaseFault(err error) bool {
	if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, sql.ErrTxDone) {
		return false
	}
	if has(err, dialect.OfStatement) || strings.Contains(err.Error(), "conn busy") {
		return false
	}
	return IsTransient(err)
}

// IsConnectionLoss reports whether a database fault ended the connection: the network lost it, or the server process
// that served it ended.
func IsConnectionLoss(err error) bool {
	if class, found := dialects.Classify(err); found {
		return class.Has(dialect.Lost)
	}
	return !errors.Is(err, pgxtx.ErrUnconfirmed) && !errors.Is(err, ErrKeepVanishing) && IsDatabaseFault(err)
}

// IsCrashOfAnother reports whether PostgreSQL ended the connection because another server process crashed, or does not
// accept connections at the moment. Nothing on the connection is the cause.
func IsCrashOfAnother(err error) bool { return has(err, dialect.Crash) }

// IsBusy reports whether a SQLite file was locked by another connection.
func IsBusy(err error) bool { return has(err, dialect.Busy) }

// TimedOut reports whether a statement took too long, for its deadline or for a timeout of the server.
func TimedOut(err error) bool {
	return has(err, dialect.TimedOut) || errors.Is(err, context.DeadlineExceeded)
}

// IsWaiting reports whether a statement ended because it waited for too long, which on SQLite means for the file. The
// driver may wait longer (busy_timeout) than the statement's deadline allows. The error may then only say that the
// statement was interrupted.
func IsWaiting(err error) bool { return IsBusy(err) || TimedOut(err) }

// OutcomeUnknown reports whether a commit that returned err may nevertheless have taken place: the connection was lost
// or the context ended before the database answered, or the database answered before its synchronous standby had the
// commit. The outcome of a commit that the database itself refused is known.
func OutcomeUnknown(err error) bool {
	if class, found := dialects.Classify(err); found {
		return class.Has(dialect.Unknown)
	}
	return IsTransient(err) && !errors.Is(err, ErrKeepVanishing)
}

// FailedCommit marks an error of a transaction's commit, for MayBeCommitted.
func FailedCommit(err error) error { return &commitError{err} }

// commitError is an error of a transaction's commit, as opposed to one of an earlier statement.
type commitError struct{ error }

func (e *commitError) Unwrap() error { return e.error }

// MayBeCommitted reports whether the transaction of a Store's method, most notably Accept, may have been committed
// although the method returned err. A transaction that never reached its commit was certainly rolled back or never
// begun: the database refused a statement, the context ended or the connection was lost before the commit. So was one
// whose commit the server refused. Any other error of the commit counts.
func MayBeCommitted(err error) bool {
	_, atCommit := errors.AsType[*commitError](err)
	return atCommit && !has(err, dialect.Refused)
}

// IsData reports whether the data to store is at fault, so that retrying is useless: SQLSTATE classes 22, 23 and 54,
// SQLite's constraint, too-big and mismatch errors, and ErrUnstorable.
func IsData(err error) bool { return errors.Is(err, ErrUnstorable) || has(err, dialect.Data) }

// IsUniqueViolation reports whether a unique index or primary key refused a row, whether or not the user's GORM
// translates errors.
func IsUniqueViolation(err error) bool {
	return errors.Is(err, gorm.ErrDuplicatedKey) || has(err, dialect.Duplicate)
}

// Collided reports whether a transaction was rolled back because of a conflict with another one or a change of the
// layout, or found the SQLite file locked. Retry it at once.
func Collided(err error) bool {
	return IsSerialization(err) || IsBusy(err) || errors.Is(err, ErrLayoutChanged)
}

// IsSerialization reports whether the server rolled a transaction back because of a serialization failure or a
// deadlock. The whole transaction may succeed when it runs again.
func IsSerialization(err error) bool { return has(err, dialect.Serialization) }

func has(err error, what dialect.Class) bool {
	class, _ := dialects.Classify(err)
	return class.Has(what)
}

// PoolClosed reports whether an error means that the application has closed the pool. database/sql exports no error for
// that.
func PoolClosed(err error) bool {
	return err != nil && strings.Contains(err.Error(), "sql: database is closed")
}

// ErrMarkerBusy means that another transaction blocked a marker for longer than the wait. On PostgreSQL that is one
// that has inserted or is deleting the same marker, on SQLite any one that has written.
var ErrMarkerBusy = errors.New("another transaction is in the marker's way")
