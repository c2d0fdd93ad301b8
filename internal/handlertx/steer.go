package handlertx

import (
	"context"
	"fmt"
	"strings"

	"gorm.io/gorm"
)

// Steer sends statements that steer tx's transaction, such as those about savepoints. It bypasses
// the application's GORM logger and GORM's cache of prepared statements, because two statements
// cannot be prepared as one.
func Steer(ctx context.Context, tx *gorm.DB, statements string) error {
	if err := steer(ctx, tx.Statement.ConnPool, statements); err != nil {
		return fmt.Errorf("%s: %w", strings.ToLower(statements), err)
	}
	return nil
}

// steer sends statements and notes them in each WatchedTx around the transaction.
func steer(ctx context.Context, pool gorm.ConnPool, statements string) error {
	switch pool := pool.(type) {
	case *gorm.PreparedStmtTX:
		return steer(ctx, pool.Tx, statements)
	case *WatchedTx:
		err := steer(ctx, pool.ConnPool, statements)
		pool.note(pool.dialect.Syntax.Find(statements), err)
		return err
	}
	_, err := pool.ExecContext(ctx, statements)
	return err
}
