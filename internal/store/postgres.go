package store

import (
	"database/sql"

	"github.com/google/uuid"
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
