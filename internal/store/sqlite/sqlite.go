// Package sqlite is the store on SQLite.
package sqlite

import (
	"context"
	"database/sql"
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
	s := &Store{Queries: operators.New(tables, operatorsForm)}
	s.Common = base.NewCommon(tables, s, statements, operatorsForm.Form)
	return s, nil
}

// statements are those of base.Common.
var statements = base.Statements{Publishing: publishingSQL, Rejected: rejectedSQL, Requests: requestsSQL,
	AddAudit: addAuditSQL, Siblings: siblingsSQL, AcceptKeys: acceptKeysSQL, AcceptDelete: acceptDeleteSQL,
	ReleaseWaiting: releaseWaitingSQL, DeleteMarkers: deleteMarkersSQL, DeleteAudit: deleteAuditSQL,
	DeleteRejected: deleteRejectedSQL, ExpiredSizes: expiredSizesSQL, ExpiredMessages: expiredMessagesSQL,
	ExpiredStatuses: expiredStatusesSQL, LeaseOwner: leaseOwnerSQL, ReleaseLease: releaseLeaseSQL, Paused: pausedSQL,
	SetPaused: setPausedSQL, FurthestBehind: furthestBehindSQL, ForgetPartitions: forgetPartitionsSQL,
	WorkerLives: workerLivesSQL, DeleteWorkers: deleteWorkersSQL}

// KeepSchema does nothing: SQLite has no search path.
func (s *Store) KeepSchema(context.Context, gorm.ConnPool) error { return nil }

func (s *Store) SingleWriter() bool { return true }

// CheckIsolation returns nothing: SQLite's transactions are serializable, and there is one writer.
func (s *Store) CheckIsolation(context.Context, sql.IsolationLevel) ([]store.Warning, error) {
	return nil, nil
}

// Notify does nothing: SQLite has no notifications.
func (s *Store) Notify(context.Context, ...string) error { return nil }

// NotifyTx does nothing: SQLite has no notifications.
func (s *Store) NotifyTx(context.Context, *gorm.DB, ...string) error { return nil }

func (s *Store) Listen(context.Context) (store.Listener, error) { return nil, store.ErrCannotListen }
