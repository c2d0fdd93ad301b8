// Package sqlite is the store on SQLite.
package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/operators"
	"github.com/gorm-inbox/inbox/models"
)

// Store implements store.Store for SQLite 3.35 and later, with any driver. It passes lists as JSON. Every transaction
// begins with a write, so that it waits for the write lock by busy_timeout. A transaction that reads first and writes
// later fails with SQLITE_BUSY_SNAPSHOT, for which no timeout helps.
//
// Parameters are numbered ?1, ?2, because drivers treat the other forms differently.
type Store struct {
	base.Common
	operators.Queries
}

// New returns a store for the tables of naming in db.
func New(db *gorm.DB, naming models.Naming, options store.Options) (*Store, error) {
	tables, err := base.NewDatabase(db, naming, nil, options)
	if err != nil {
		return nil, err
	}
	return newStore(tables), nil
}

func newStore(tables base.Database) *Store {
	s := &Store{Queries: operators.New(tables, OperatorsForm)}
	s.Common = base.NewCommon(tables, s, statements(), OperatorsForm.Form)
	return s
}

// Within returns a store whose statements are all part of a transaction that is open.
func (s *Store) Within(tx *gorm.DB) *Store { return newStore(s.Database.Within(tx)) }

// statements are those of base.Common. It is a function because the test of plans takes a statement that a variable
// contains for a part of another one.
func statements() base.Statements {
	return base.Statements{Publishing: publishingSQL, Rejected: rejectedSQL, Requests: requestsSQL,
		AddAudit: addAuditSQL, Siblings: siblingsSQL, AcceptKeys: acceptKeysSQL, AcceptDelete: acceptDeleteSQL,
		Lanes:          base.PartialLanes,
		ReleaseWaiting: releaseWaitingSQL, DeleteMarkers: deleteMarkersSQL, DeleteAudit: deleteAuditSQL,
		DeleteRejected: deleteRejectedSQL, ExpiredSizes: expiredSizesSQL, ExpiredMessages: expiredMessagesSQL,
		ExpiredStatuses: expiredStatusesSQL, LeaseOwners: leaseOwnersSQL, ReleaseLeases: releaseLeasesSQL,
		Paused: pausedSQL, SetPaused: setPausedSQL, SetLegacyKeys: setLegacyKeysSQL, FurthestBehind: furthestBehindSQL,
		ForgetPartitions: forgetPartitionsSQL, WorkerLives: workerLivesSQL, DeleteWorkers: deleteWorkersSQL}
}

// KeepSchema does nothing: SQLite has no search path.
func (s *Store) KeepSchema(context.Context, gorm.ConnPool) error { return nil }

func (s *Store) SingleWriter() bool { return true }

// CheckIsolation returns nothing: SQLite's transactions are serializable, and there is one writer.
func (s *Store) CheckIsolation(context.Context, sql.IsolationLevel) ([]store.Warning, error) {
	return nil, nil
}

const fileSQL = `SELECT coalesce(file, '') FROM pragma_database_list WHERE name = 'main'`

// foreignKeysSQL reads a setting of the connection, which the DSN sets for all connections of a pool.
const foreignKeysSQL = `PRAGMA foreign_keys`

// CheckSettings refuses a database without a file: each connection would see its own database, and with a shared cache
// connections fail at random, because busy_timeout does not apply to its table locks. It warns if deleting a message by
// hand would keep its statuses.
func (s *Store) CheckSettings(ctx context.Context, _ bool) ([]store.Warning, error) {
	files, err := store.Query(ctx, s.Pool(ctx), fileSQL, store.Value[string])
	if err != nil {
		return nil, base.Doing("read the path of the SQLite database", err)
	}
	if len(files) == 1 && files[0] == "" {
		return nil, errors.New("the SQLite database is in memory, where connections lock each other out or see a database each: use a file in WAL mode, with a DSN like " +
			"file:inbox.db?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)&_txlock=immediate (in tests fxtest.OpenDB), " +
			"for github.com/mattn/go-sqlite3 file:inbox.db?_journal_mode=WAL&_busy_timeout=10000&_txlock=immediate")
	}
	obeyed, err := store.Query(ctx, s.Pool(ctx), foreignKeysSQL, store.Value[bool])
	if err != nil {
		return nil, base.Doing("ask whether foreign keys are obeyed", err)
	}
	if len(obeyed) == 1 && obeyed[0] {
		return nil, nil
	}
	return []store.Warning{{Message: "inbox: SQLite's foreign keys are off: a message deleted by hand leaves its statuses behind, which can never run; " +
		"add _pragma=foreign_keys(1) to the DSN, or _foreign_keys=1 for github.com/mattn/go-sqlite3"}}, nil
}
