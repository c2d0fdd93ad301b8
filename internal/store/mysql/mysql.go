// Package mysql is the store on MySQL and MariaDB.
package mysql

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"sync/atomic"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
	"github.com/gorm-inbox/inbox/internal/store/operators"
	"github.com/gorm-inbox/inbox/models"
)

// Store implements store.Store for MySQL 8.0.19 or later and MariaDB 10.6 or later. Each transaction states READ
// COMMITTED: above it, what a statement does not find is locked, too, and accepts and claims deadlock. No statement
// returns the rows that it has changed. So rows are first read and locked, in one order and by an index that is forced,
// and then changed by their IDs.
//
// A forced index serves ranges where statistics are stale, and where a scan of a small table would wait for rows of
// others. MySQL may still read the whole of an index that has all columns of a statement. So such statements have a
// condition on one more column that is always true, or look up each row of a query that comes first.
//
// Statements are those of all databases, see mysqldialect.Translating.
type Store struct {
	base.Common
	operators.Queries
	layouts base.Layouts
	layout  sync.Mutex // is held while the layout is changed here
	// partitioned says for which layout statements are made, and known that it was read once.
	partitioned, known atomic.Bool
	// droppable are the numbers in partitions that had expired when a cleanup last looked: from and below.
	droppable atomic.Pointer[[2]int64]
}

// New returns a store for the tables of naming in db.
func New(db *gorm.DB, naming models.Naming, options store.Options) (*Store, error) {
	tables, err := base.NewDatabase(db, naming, store.ReadCommitted, options)
	if err != nil {
		return nil, err
	}
	s := &Store{}
	s.layouts = base.Layouts{Refresh: s.refreshLayout, Current: s.Layout, Failed: forAnotherLayout}
	tables.SetWords(plainWords...)
	tables.Singles = tables.Singles.Following(s)
	s.Queries = operators.New(tables, operatorsForm)
	s.Common = base.NewCommon(tables, s, statements(), operatorsForm.Form)
	return s, nil
}

func statements() base.Statements {
	return base.Statements{Publishing: publishingSQL, Rejected: rejectedSQL, Requests: requestsSQL,
		AddAudit: addAuditSQL, Siblings: siblingsSQL, AcceptKeys: acceptKeysSQL,
		DeleteAudit: deleteAuditSQL, ExpiredSizes: expiredSizesSQL, ExpiredMessages: expiredMessagesSQL,
		ExpiredStatuses: expiredStatusesSQL, LeaseOwners: leaseOwnersSQL, ReleaseLeases: releaseLeasesSQL,
		Paused: pausedSQL, SetPaused: setPausedSQL, SetLegacyKeys: setLegacyKeysSQL, FurthestBehind: furthestBehindSQL,
		WorkerLives: workerLivesSQL, Lanes: lanesSQL}
}

// KeepSchema names the session's database: the application may change it with USE, and the pool keeps the session so.
func (s *Store) KeepSchema(ctx context.Context, pool gorm.ConnPool) error {
	if err := s.refreshLayout(ctx, mysqldialect.Translating(pool)); err != nil {
		return err
	}
	return s.Database.KeepSchema(ctx, pool, `SELECT COALESCE(DATABASE(), '')`)
}

// collidingTries bounds how often a transaction is tried that meets others.
const collidingTries = 10

// retrying runs work in a transaction, and again after a deadlock or a duplicate of a concurrent transaction.
func (s *Store) retrying(ctx context.Context, work func(gorm.ConnPool) error) error {
	for try := 1; ; try++ {
		err := s.Transaction(ctx, work)
		if err == nil || try == collidingTries || ctx.Err() != nil ||
			!store.Collided(err) && !store.IsUniqueViolation(err) {
			return err
		}
	}
}

// longestList is how many values a list may have: MariaDB makes a join of one with 1,000, and a prepared statement has
// at most 65,535 arguments.
const longestList = 500

// queryAll runs a query for the parts of a list, its first argument, and joins what it returns.
func queryAll[T, E any, L ~[]E](ctx context.Context, s *Store, pool gorm.ConnPool, statement string,
	scan func(*sql.Rows, *T) error, list L, args ...any,
) (all []T, err error) {
	for part := range slices.Chunk(list, longestList) {
		found, err := store.Query(ctx, pool, s.Text(statement), scan, append([]any{part}, args...)...)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// execAll runs a statement for the parts of a list, its first argument, and returns how many rows it affected.
func execAll[E any, L ~[]E](ctx context.Context, s *Store, pool gorm.ConnPool, statement string, list L, args ...any) (
	affected int64, err error,
) {
	for part := range slices.Chunk(list, longestList) {
		n, err := store.Exec(ctx, pool, s.Text(statement), append([]any{part}, args...)...)
		if err != nil {
			return 0, err
		}
		affected += n
	}
	return affected, nil
}

// listOf returns an argument for {list ?}.
func listOf[T any](values []T) mysqldialect.List {
	list := make(mysqldialect.List, len(values))
	for i, value := range values {
		list[i] = value
	}
	return list
}
