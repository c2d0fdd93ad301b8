package sqlite

import (
	"context"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/shared"
)

// A setting of the connection: the DSN gives it to all of a pool.
const foreignKeysSQL = `PRAGMA foreign_keys`

// ObeysForeignKeys says whether deleting a message by hand takes its statuses
// with it: always on PostgreSQL, where it is switched on on SQLite.
func ObeysForeignKeys(ctx context.Context, db *gorm.DB) (bool, error) {
	if db.Dialector.Name() != "sqlite" {
		return true, nil
	}
	pool := db.Session(&gorm.Session{NewDB: true, Context: ctx}).Statement.ConnPool
	on, err := store.Query(ctx, pool, foreignKeysSQL, store.Value[bool])
	if err != nil {
		return false, shared.Doing("ask whether foreign keys are obeyed", err)
	}
	return len(on) == 1 && on[0], nil
}
