// Package migrating is the code of docs/migrating.md.
package migrating

import (
	"context"
	"fmt"
	"io"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// migrate is a step of a deploy, under a database user who may create tables.
func migrate(ctx context.Context, db *gorm.DB) error {
	return models.Migrate(ctx, db, models.Naming{}, "orders")
}

// check says whether a start without Migrate would find what it needs.
func check(ctx context.Context, db *gorm.DB) error {
	return models.CheckSchema(ctx, db, models.Naming{}, "orders")
}

// printSQL writes a dialect's migrations, for a tool of one's own.
func printSQL(out io.Writer, dialect string, naming models.Naming) error {
	migrations, err := models.SQL(dialect, naming) // "postgres" or "sqlite"
	if err != nil {
		return err
	}
	for _, m := range migrations {
		if _, err := fmt.Fprintf(out, "-- %s\n%s\n", m.Name, m.SQL); err != nil {
			return err
		}
	}
	return nil
}

// autoMigrate is for those whose other tables are made so.
func autoMigrate(ctx context.Context, db *gorm.DB) error {
	if err := db.WithContext(ctx).AutoMigrate(models.All()...); err != nil {
		return err
	}
	return models.Migrate(ctx, db, models.Naming{}, "orders") // notes the version
}
