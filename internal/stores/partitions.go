package stores

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// repartitioner is a store whose tables can be partitioned.
type repartitioner interface {
	Partition(ctx context.Context) error
	Unpartition(ctx context.Context) error
}

// Partition gives an inbox's tables the partitioned layout (contract 6.8).
func Partition(ctx context.Context, db *gorm.DB, tables models.Naming) error {
	return repartition(ctx, db, tables, repartitioner.Partition)
}

// Unpartition gives partitioned tables the plain layout again, or returns store.ErrPartitionsLeft.
func Unpartition(ctx context.Context, db *gorm.DB, tables models.Naming) error {
	return repartition(ctx, db, tables, repartitioner.Unpartition)
}

func repartition(
	ctx context.Context, db *gorm.DB, tables models.Naming, change func(repartitioner, context.Context) error,
) error {
	if err := models.CheckTables(ctx, db, tables); err != nil {
		return fmt.Errorf("partitions: %w", err)
	}
	st, err := New(db, tables, store.Options{})
	if err != nil {
		return fmt.Errorf("partitions: %w", err)
	}
	able, ok := st.(repartitioner)
	if !ok {
		return errors.New("partitions: SQLite has none")
	}
	if err := change(able, ctx); err != nil {
		return fmt.Errorf("partitions: %w", err)
	}
	return nil
}
