package handler

import (
	"context"

	"gorm.io/gorm"
)

type dbKey struct{}

// ContextWithDB returns a context that carries the database or transaction of an attempt, for DB. DB uses no scopes,
// conditions or settings of db. The processor calls it; applications need it only in tests of their handlers.
func ContextWithDB(ctx context.Context, db *gorm.DB) context.Context {
	return context.WithValue(ctx, dbKey{}, db)
}

// DB returns a new session on the inbox's database, bound to ctx; in a transactional handler the session is in its
// transaction. It returns nil outside of an attempt. Writes of a plain handler are not part of the completion: use a
// transactional handler for that. On an Inline channel that keeps its markers in the inbox's database a plain handler
// runs in a transaction, too.
func DB(ctx context.Context) *gorm.DB {
	db, _ := ctx.Value(dbKey{}).(*gorm.DB)
	if db == nil {
		return nil
	}
	return db.Session(&gorm.Session{NewDB: true, Context: ctx})
}
