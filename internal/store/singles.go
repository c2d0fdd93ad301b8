package store

import (
	"context"
	"database/sql"
	"sync/atomic"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
)

// ReadCommitted begins our transactions on PostgreSQL, where the role or the database may have another default
// (default_transaction_isolation). All statements here are written for READ COMMITTED: one that has waited for a row's
// lock continues with the row as it is now. A transaction with a snapshot would fail instead (40001).
var ReadCommitted = &sql.TxOptions{Isolation: sql.LevelReadCommitted}

// Singles runs statements outside of transactions, for Query and Exec. The server runs such a statement as a
// transaction with the session's default isolation. If that is known not to be READ COMMITTED, each statement gets a
// transaction that states it, which costs two more round trips. It is known from StateIsolation, or from a
// serialization failure. The failed statement has done nothing and runs again at once, so no caller ever gets such a
// failure.
//
// We do not set the session's default instead, because the pool belongs to the application.
type Singles struct {
	db       *gorm.DB
	dialect  *dialect.Dialect
	state    *atomic.Bool // whether each statement states its isolation
	settings []string     // of each statement's transaction, see WithoutJIT
	within   func(ctx context.Context, statement func(context.Context) error) error
}

// NewSingles returns a runner of single statements on db.
func NewSingles(db *gorm.DB) Singles {
	d, err := dialects.Of(db)
	if err != nil { // a store refuses it
		d = &dialect.Dialect{}
	}
	return Singles{db: db, dialect: d, state: new(atomic.Bool)}
}

// StateIsolation records that the sessions' default is not READ COMMITTED.
func (s Singles) StateIsolation() { s.state.Store(true) }

// WithoutJIT returns a runner whose statements PostgreSQL does not compile. It is for statements that read thousands of
// rows. If such a limit is a parameter, the planner expects a tenth of all rows instead. The larger a table is, the
// more it is mistaken, until compiling seems worth it (jit, which is on by default): half a second for a statement of
// 10 ms. Each statement gets a transaction, which costs two more round trips.
func (s Singles) WithoutJIT() Singles {
	s.settings = s.dialect.WithoutJIT
	return s
}

// Within returns a runner that has run call each statement, as to limit it.
func (s Singles) Within(run func(ctx context.Context, statement func(context.Context) error) error) Singles {
	s.within = run
	return s
}

// Pool returns the pool to pass to Query and Exec.
func (s Singles) Pool(ctx context.Context) gorm.ConnPool {
	pool := s.db.WithContext(ctx).Statement.ConnPool
	if s.dialect.Stated == sql.LevelDefault && s.within == nil { // there is one level
		return pool
	}
	return single{ConnPool: pool, of: s}
}

// single is a pool that runs each statement by itself.
type single struct {
	gorm.ConnPool
	of Singles
}

func (s single) runAlone(ctx context.Context, statement func(context.Context, gorm.ConnPool) error) error {
	if len(s.of.settings) == 0 && !s.of.state.Load() {
		err := statement(ctx, s.ConnPool)
		if !has(err, dialect.Snapshot) {
			RenewSessions(s.of.db, err)
			return err
		}
		s.of.state.Store(true)
	}
	session := pgxtx.Session(s.of.db.WithContext(ctx), pgxtx.ByDeadline, s.of.settings...)
	err := session.Transaction(func(tx *gorm.DB) error {
		return statement(ctx, tx.Statement.ConnPool)
	}, &sql.TxOptions{Isolation: s.of.dialect.Stated})
	RenewSessions(s.of.db, err)
	return WithContextError(ctx, err)
}

// RunAlone runs one statement on any kind of pool. On a pool of Singles that may need a transaction.
func RunAlone(ctx context.Context, pool gorm.ConnPool, statement func(context.Context, gorm.ConnPool) error) error {
	own, ok := pool.(single)
	switch {
	case !ok:
		return statement(ctx, pool)
	case own.of.within == nil:
		return own.runAlone(ctx, statement)
	}
	return own.of.within(ctx, func(ctx context.Context) error { return own.runAlone(ctx, statement) })
}
