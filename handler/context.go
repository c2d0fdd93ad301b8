package handler

import (
	"context"

	"gorm.io/gorm"
)

type dbKey struct{}

// ContextWithDB returns ctx carrying the database or transaction of an attempt,
// for DB, which keeps nothing else of it: no scopes, no conditions, no settings.
// The processor calls it; applications only do in tests of their handlers.
func ContextWithDB(ctx context.Context, db *gorm.DB) context.Context {
	return context.WithValue(ctx, dbKey{}, db)
}

// DB returns a new session on the inbox's database, bound to ctx, and in a
// transactional handler in its transaction; nil outside an attempt. In a plain
// handler its writes are not part of the completion: use a transactional handler
// for that. In an Inline channel that keeps its markers in the inbox's database a
// plain handler has its transaction, too.
func DB(ctx context.Context) *gorm.DB {
	db, _ := ctx.Value(dbKey{}).(*gorm.DB)
	if db == nil {
		return nil
	}
	return db.Session(&gorm.Session{NewDB: true, Context: ctx})
}
