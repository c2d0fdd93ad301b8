package store

// postgres implements Store for PostgreSQL 13 and later. Lists go in as
// arrays: one prepared statement serves every batch size, and the 65,535
// parameters of a statement are no limit. Elements without an array type in
// the driver (uuid, tid) travel as text and are cast by the server.
type postgres struct{ database }

func newPostgres(tables database) *postgres { return &postgres{tables} }

func (p *postgres) SingleWriter() bool { return false }
