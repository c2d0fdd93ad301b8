package store

import (
	"context"
	"database/sql"
	"sync/atomic"

	"gorm.io/gorm"
)

// ReadCommitted is how our transactions begin on PostgreSQL, whose default may be another,
// by the role's or the database's default_transaction_isolation. Everything here is written
// for it: a statement that has waited for a row's lock goes on with the row as it is now. A
// transaction with a snapshot fails instead (40001).
var ReadCommitted = &sql.TxOptions{Isolation: sql.LevelReadCommitted}

// Singles runs statements outside any transaction, for Query and Exec. Such a statement is a
// transaction of the session's default isolation. Where that is known not to be READ
// COMMITTED, each gets a transaction that states it, which costs three round trips more. It is
// known from StateIsolation, or from a serialization failure: the statement, which has done
// nothing, then runs again at once, so that none ever reaches a caller.
//
// We don't set the session's default instead: the pool is the application's.
type Singles struct {
	db    *gorm.DB
	state *atomic.Bool // each statement states its isolation
}

// NewSingles returns a runner of single statements on db.
func NewSingles(db *gorm.DB) Singles { return Singles{db: db, state: new(atomic.Bool)} }

// StateIsolation says that the sessions' default is not READ COMMITTED.
func (s Singles) StateIsolation() { s.state.Store(true) }

// Pool is what Query and Exec take.
func (s Singles) Pool(ctx context.Context) gorm.ConnPool {
	pool := s.db.WithContext(ctx).Statement.ConnPool
	if s.db.Dialector.Name() != "postgres" {
		return pool
	}
	return single{ConnPool: pool, of: s}
}

// boundSingle has the server end the transaction of a single statement whose client has
// vanished before the COMMIT. It holds locks that others wait for (a lease), and nothing
// else would end it before TCP gives the connection up. Reads no table.
const boundSingle = `SET LOCAL idle_in_transaction_session_timeout = '10s'`

// single is a pool whose statements stand alone.
type single struct {
	gorm.ConnPool
	of Singles
}

// run runs one statement, on the pool or in a transaction.
func (s single) run(ctx context.Context, statement func(gorm.ConnPool) error) error {
	if !s.of.state.Load() {
		err := statement(s.ConnPool)
		if SQLState(err) != serializationFailure {
			return err
		}
		s.of.state.Store(true)
	}
	err := s.of.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec(boundSingle).Error; err != nil {
			return err
		}
		return statement(tx.Statement.ConnPool)
	}, ReadCommitted)
	return WithContextError(ctx, err)
}

// RunAlone runs one statement on whatever pool it is given.
func RunAlone(ctx context.Context, pool gorm.ConnPool, statement func(gorm.ConnPool) error) error {
	if s, ok := pool.(single); ok {
		return s.run(ctx, statement)
	}
	return statement(pool)
}

// DefaultIsolation is the isolation of transactions that do not state theirs.
type DefaultIsolation struct {
	Role, Database string
	Level          string // as PostgreSQL writes it
	// Source is where it was set, as PostgreSQL names it: user, database, database
	// user, configuration file, client.
	Source string
}
