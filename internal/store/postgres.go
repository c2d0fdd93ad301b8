package store

import (
	"context"
	"database/sql"

	"github.com/google/uuid"
	"gorm.io/gorm"
)

// postgres implements Store for PostgreSQL 13 and later. Lists go in as
// arrays: one prepared statement serves every batch size, and the 65,535
// parameters of a statement are no limit. Elements without an array type in
// the driver (uuid, tid) travel as text and are cast by the server.
type postgres struct {
	database
	// origin is whom its announcements come from, so that its own Listener
	// leaves them out; not valid if it announces nothing.
	origin sql.NullString
	large  int // contents, in bytes, for which an accept speaks to pgx itself
}

func newPostgres(tables database) *postgres {
	return &postgres{database: tables, large: largeContents, origin: sql.NullString{String: uuid.NewString(), Valid: tables.announces}}
}

func (p *postgres) SingleWriter() bool { return false }

// confirmed locks rows and commits. What a statement without a lock shows may be
// there on this server alone: a commit whose client did not wait for the
// synchronous standby becomes visible before the standby has it, and a failover
// undoes it. A lock is written to the log, behind that commit, so our own commit is
// not answered before the standby has both. Whoever is told that something is
// stored, and acknowledges for that, is told so by this, or by another transaction
// that writes.
func confirmed(ctx context.Context, p *postgres, lock string, args ...any) (locked []int, err error) {
	err = p.transaction(ctx, func(pool gorm.ConnPool) error {
		locked, err = Query(ctx, pool, p.text(lock), Value[int], args...)
		return err
	})
	return locked, err
}
