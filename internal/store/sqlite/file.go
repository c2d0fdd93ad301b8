package sqlite

import (
	"context"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

const fileSQL = `SELECT coalesce(file, '') FROM pragma_database_list WHERE name = 'main'`

// InMemory reports whether db is a SQLite database without a file. Each connection to one sees a database of its own.
// With a shared cache, connections fail at random, because busy_timeout does not apply to its table locks. InMemory
// reads no table.
func InMemory(ctx context.Context, db *gorm.DB) (bool, error) {
	if db.Dialector.Name() != "sqlite" {
		return false, nil
	}
	pool := db.Session(&gorm.Session{NewDB: true, Context: ctx}).Statement.ConnPool
	files, err := store.Query(ctx, pool, fileSQL, store.Value[string])
	if err != nil {
		return false, base.Doing("read the path of the SQLite database", err)
	}
	return len(files) == 1 && files[0] == "", nil
}

// foreignKeysSQL reads a setting of the connection, which the DSN sets for all connections of a pool.
const foreignKeysSQL = `PRAGMA foreign_keys`

// ObeysForeignKeys reports whether deleting a message by hand deletes its statuses: always on PostgreSQL, and on SQLite
// if foreign keys are on.
func ObeysForeignKeys(ctx context.Context, db *gorm.DB) (bool, error) {
	if db.Dialector.Name() != "sqlite" {
		return true, nil
	}
	pool := db.Session(&gorm.Session{NewDB: true, Context: ctx}).Statement.ConnPool
	on, err := store.Query(ctx, pool, foreignKeysSQL, store.Value[bool])
	if err != nil {
		return false, base.Doing("ask whether foreign keys are obeyed", err)
	}
	return len(on) == 1 && on[0], nil
}
