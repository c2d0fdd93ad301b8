package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
)

// WithContextError adds the context's error to an error that hides it, such as "transaction has already been committed
// or rolled back".
func WithContextError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("%w: %w", ctx.Err(), err)
}

// Query returns the rows of a statement. We do not use QueryRowContext: with PrepareStmt, GORM's version returns a row
// that panics if preparing fails.
func Query[T any](
	ctx context.Context, pool gorm.ConnPool, statement string, scan func(*sql.Rows, *T) error, args ...any,
) (found []T, err error) {
	err = RunAlone(ctx, pool, func(ctx context.Context, pool gorm.ConnPool) error {
		found = nil // also of a try before
		rows, err := pool.QueryContext(ctx, statement, args...)
		if err != nil {
			return WithContextError(ctx, err)
		}
		defer rows.Close()
		for rows.Next() {
			var row T
			if err := scan(rows, &row); err != nil {
				return err
			}
			found = append(found, row)
		}
		if err := rows.Err(); err != nil {
			return WithContextError(ctx, err)
		}
		return WithContextError(ctx, rows.Close())
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Value scans a row of one column.
func Value[T any](rows *sql.Rows, into *T) error { return rows.Scan(into) }

// Exec returns how many rows a statement affected.
func Exec(ctx context.Context, pool gorm.ConnPool, statement string, args ...any) (affected int64, err error) {
	err = runAlone(ctx, pool, true, func(ctx context.Context, pool gorm.ConnPool) error {
		result, err := pool.ExecContext(ctx, statement, args...)
		if err == nil {
			affected, err = result.RowsAffected()
		}
		return WithContextError(ctx, err)
	})
	if err != nil {
		return 0, err
	}
	return affected, nil
}

// ReadCommitted begins our transactions on servers, where sessions may have another default. All statements here are
// written for READ COMMITTED: one that has waited for a row's lock continues with the row as it is now. A transaction
// with a snapshot would fail instead (40001), or on MySQL lock what it does not find.
var ReadCommitted = &sql.TxOptions{Isolation: sql.LevelReadCommitted}

// Singles runs statements outside of transactions, for Query and Exec. The server runs such a statement as a
// transaction with the session's default isolation. If that is known not to be READ COMMITTED, each statement gets a
// transaction that states it, which costs two more round trips. It is known from StateIsolation, or from a
// serialization failure. The failed statement has done nothing and runs again at once, so no caller ever gets such a
// failure. Nor does anyone get a deadlock, unless the statement meets several in a row.
//
// Where the default locks more than the rows that a statement changes (see dialect.GapLocks), each statement that
// changes rows states its isolation.
//
// We do not set the session's default instead, because the pool belongs to the application.
type Singles struct {
	db       *gorm.DB
	dialect  *dialect.Dialect
	state    *atomic.Bool // whether each statement states its isolation
	settings []string     // of each statement's transaction, see WithoutJIT
	unknown  *atomic.Bool // whether the server refuses the settings
	within   func(ctx context.Context, statement func(context.Context) error) error
	layouts  Layouts
}

// Layouts is a store of tables that can have several layouts.
type Layouts interface {
	// Layout returns the layout for which the store makes its statements at the moment.
	Layout() string
	// Look finds out the layout at first, and now and then.
	Look(ctx context.Context)
	// Follow reads the tables' layout if a statement that was made for a layout has failed as one for another layout
	// does. If they have another one, all later statements are made for that, and it returns ErrLayoutChanged.
	Follow(ctx context.Context, layout string, failure error) error
}

// NewSingles returns a runner of single statements on db.
func NewSingles(db *gorm.DB) Singles {
	d, err := dialects.Of(db)
	if err != nil { // a store refuses it
		d = &dialect.Dialect{}
	}
	return Singles{db: d.Session(db), dialect: d, state: new(atomic.Bool), unknown: new(atomic.Bool)}
}

// StateIsolation records that the sessions' default is not READ COMMITTED.
func (s Singles) StateIsolation() { s.state.Store(true) }

// WithoutJIT returns a runner whose statements PostgreSQL does not compile. It is for statements that read thousands of
// rows. If such a limit is a parameter, the planner expects a tenth of all rows instead. The larger a table is, the
// more it is mistaken, until compiling seems worth it (jit, which is on by default): half a second for a statement of
// 10 ms. Each statement gets a transaction, which costs two more round trips. A server that does not know the setting,
// and so is not PostgreSQL, refuses it once.
func (s Singles) WithoutJIT() Singles {
	s.settings = s.dialect.WithoutJIT
	return s
}

// Within returns a runner that has run call each statement, as to limit it.
func (s Singles) Within(run func(ctx context.Context, statement func(context.Context) error) error) Singles {
	s.within = run
	return s
}

// Following returns a runner of the statements that a store makes. Call Pool before the statement's text is made.
func (s Singles) Following(layouts Layouts) Singles {
	s.layouts = layouts
	return s
}

// Followed runs work, which makes statements, and makes the store follow the layout if they were for another one.
func (s Singles) Followed(ctx context.Context, work func() error) error {
	layout := s.layout()
	return s.follow(ctx, layout, work())
}

func (s Singles) layout() string {
	if s.layouts == nil {
		return ""
	}
	return s.layouts.Layout()
}

func (s Singles) follow(ctx context.Context, layout string, err error) error {
	if err == nil || s.layouts == nil || errors.Is(err, ErrLayoutChanged) {
		return err
	}
	return s.layouts.Follow(ctx, layout, err)
}

// Pool returns the pool to pass to Query and Exec.
func (s Singles) Pool(ctx context.Context) gorm.ConnPool {
	if s.layouts != nil {
		s.layouts.Look(ctx)
	}
	pool := s.db.WithContext(ctx).Statement.ConnPool
	if s.dialect.Stated == sql.LevelDefault && s.within == nil && s.layouts == nil { // there is one level
		return pool
	}
	return single{ConnPool: pool, of: s, layout: s.layout()}
}

// single is a pool that runs each statement by itself.
type single struct {
	gorm.ConnPool
	of     Singles
	layout string // for which the statement was made
}

// collidingTries bounds how often a statement runs whose transaction the server ends because of others.
const collidingTries = 10

func (s single) run(ctx context.Context, changes bool, statement func(context.Context, gorm.ConnPool) error) error {
	for try := 1; ; try++ {
		err := s.runOnce(ctx, changes, statement)
		if !IsSerialization(err) || try == collidingTries || ctx.Err() != nil {
			return err
		}
	}
}

func (s single) runOnce(ctx context.Context, changes bool, statement func(context.Context, gorm.ConnPool) error) error {
	settings := s.of.settings
	if s.of.unknown.Load() {
		settings = nil
	}
	states := len(settings) > 0 || s.of.state.Load() || s.of.dialect.GapLocks && changes
	if !states {
		err := statement(ctx, s.ConnPool)
		if !has(err, dialect.Snapshot) {
			RenewSessions(s.of.db, err)
			return err
		}
		s.of.state.Store(true)
	}
	began, err := s.runIn(ctx, settings, statement)
	if len(settings) > 0 && !began && ctx.Err() == nil && !IsTransient(err) {
		if began, err = s.runIn(ctx, nil, statement); began {
			s.of.unknown.Store(true)
		}
	}
	RenewSessions(s.of.db, err)
	return WithContextError(ctx, err)
}

// runIn runs a statement in a transaction with settings. If the transaction did not begin, the statement did not run.
func (s single) runIn(
	ctx context.Context, settings []string, statement func(context.Context, gorm.ConnPool) error,
) (began bool, err error) {
	session := pgxtx.Session(s.of.db.WithContext(ctx), pgxtx.ByDeadline, settings...)
	err = session.Transaction(func(tx *gorm.DB) error {
		began = true
		return statement(ctx, tx.Statement.ConnPool)
	}, &sql.TxOptions{Isolation: s.of.dialect.Stated})
	return began, err
}

// RunAlone runs one statement that returns rows, on any kind of pool. On a pool of Singles that may need a transaction.
func RunAlone(ctx context.Context, pool gorm.ConnPool, statement func(context.Context, gorm.ConnPool) error) error {
	return runAlone(ctx, pool, false, statement)
}

func runAlone(
	ctx context.Context, pool gorm.ConnPool, changes bool, statement func(context.Context, gorm.ConnPool) error,
) error {
	own, ok := pool.(single)
	if !ok {
		return statement(ctx, pool)
	}
	run := func(ctx context.Context) error { return own.run(ctx, changes, statement) }
	if own.of.within == nil {
		return own.of.follow(ctx, own.layout, run(ctx))
	}
	return own.of.follow(ctx, own.layout, own.of.within(ctx, run))
}

// renewals are when RenewSessions last closed connections of a pool, in Unix seconds. Entries of earlier seconds are
// dropped.
var renewals = struct {
	sync.Mutex
	at map[weak.Pointer[sql.DB]]int64
}{at: map[weak.Pointer[sql.DB]]int64{}}

// RenewSessions closes the pool's idle connections, at most once a second, if a statement has failed because its
// session is read-only. Such a session may stay read-only after the database no longer is: it keeps the default
// (default_transaction_read_only) that it began with, and after a failover it may be the standby's. Sessions in use are
// renewed when one of their statements fails.
func RenewSessions(db *gorm.DB, err error) {
	if !has(err, dialect.ReadOnly) {
		return
	}
	pool, err := db.DB()
	if err != nil || !renewsNow(pool) { // it may be no pool of database/sql
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for n := pool.Stats().Idle; n > 0; n-- {
		conn, err := pool.Conn(ctx)
		if err != nil {
			return
		}
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		_ = conn.Close()
	}
}

// renewsNow reports whether the pool's connections were not closed in this second, and counts them as closed.
func renewsNow(pool *sql.DB) bool {
	renewals.Lock()
	defer renewals.Unlock()
	now := time.Now().Unix()
	maps.DeleteFunc(renewals.at, func(_ weak.Pointer[sql.DB], at int64) bool { return at != now })
	if _, closed := renewals.at[weak.Make(pool)]; closed {
		return false
	}
	renewals.at[weak.Make(pool)] = now
	return true
}
