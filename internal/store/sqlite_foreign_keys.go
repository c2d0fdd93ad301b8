package store

import (
	"context"

	"gorm.io/gorm"
)

// A setting of the connection: the DSN gives it to all of a pool.
const sqliteForeignKeys = `PRAGMA foreign_keys`

// ObeysForeignKeys says whether deleting a message by hand takes its statuses
// with it: always on PostgreSQL, where it is switched on on SQLite.
func ObeysForeignKeys(ctx context.Context, db *gorm.DB) (bool, error) {
	if db.Dialector.Name() != "sqlite" {
		return true, nil
	}
	pool := db.Session(&gorm.Session{NewDB: true, Context: ctx}).Statement.ConnPool
	on, err := Query(ctx, pool, sqliteForeignKeys, Value[bool])
	if err != nil {
		return false, doing("ask whether foreign keys are obeyed", err)
	}
	return len(on) == 1 && on[0], nil
}
