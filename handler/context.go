package handler

import (
	"context"

	"gorm.io/gorm"
)

type dbKey struct{}

// ContextWithDB returns ctx carrying an attempt's GORM session. The processor
// calls it; applications only do in tests of their handlers.
func ContextWithDB(ctx context.Context, db *gorm.DB) context.Context {
	return context.WithValue(ctx, dbKey{}, db)
}

// DB returns the attempt's own session on the inbox's database, bound to the
// attempt's context; nil outside an attempt. In a plain handler its writes
// are not part of the completion: use a transactional handler for that.
func DB(ctx context.Context) *gorm.DB {
	db, _ := ctx.Value(dbKey{}).(*gorm.DB)
	return db
}
