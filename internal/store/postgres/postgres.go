// Package postgres is the store on PostgreSQL.
package postgres

import (
	"context"
	"database/sql"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

// Store implements store.Store for PostgreSQL 13 and later. Lists go in as
// arrays: one prepared statement serves every batch size, and the 65,535
// parameters of a statement are no limit. Elements without an array type in
// the driver (uuid, tid) travel as text and are cast by the server.
type Store struct {
	base.Database
	// origin is whom its announcements come from, so that its own Listener
	// leaves them out; not valid if it announces nothing.
	origin sql.NullString
	large  int // contents, in bytes, for which an accept speaks to pgx itself
}

// New makes a store.
func New(db *gorm.DB, naming models.Naming, options store.Options) (*Store, error) {
	tables, err := base.NewDatabase(db, naming, store.ReadCommitted, options)
	if err != nil {
		return nil, err
	}
	return &Store{Database: tables, large: largeContents,
		origin: sql.NullString{String: uuid.NewString(), Valid: options.Announces}}, nil
}

func (p *Store) SingleWriter() bool { return false }

// confirmed locks rows and commits. What a statement without a lock shows may be
// there on this server alone: a commit whose client did not wait for the
// synchronous standby becomes visible before the standby has it, and a failover
// undoes it. A lock is written to the log, behind that commit, so our own commit is
// not answered before the standby has both. Each answer that lets a caller acknowledge
// a message comes from this, or from another transaction that writes.
func confirmed(ctx context.Context, p *Store, lock string, args ...any) (locked []int, err error) {
	err = p.Transaction(ctx, func(pool gorm.ConnPool) error {
		locked, err = store.Query(ctx, pool, p.Text(lock), store.Value[int], args...)
		return err
	})
	return locked, err
}

// Changes nothing, reads no table.
const defaultIsolationSQL = `
SELECT current_user, current_database(), setting, source FROM pg_settings WHERE name = 'default_transaction_isolation'`

func (p *Store) DefaultIsolation(ctx context.Context) (found store.DefaultIsolation, other bool, err error) {
	all, err := store.Query(ctx, p.Pool(ctx), defaultIsolationSQL, func(rows *sql.Rows, d *store.DefaultIsolation) error {
		return rows.Scan(&d.Role, &d.Database, &d.Level, &d.Source)
	})
	if err != nil || len(all) == 0 || all[0].Level == "read committed" {
		return store.DefaultIsolation{}, false, base.Doing("read the default isolation", err)
	}
	p.Singles.StateIsolation()
	return all[0], true, nil
}
