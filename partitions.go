package inbox

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/models"
)

// Partition gives an inbox's tables the partitioned layout, in which cleanup drops whole partitions instead of deleting
// rows (contract 6.8). It needs PostgreSQL, tables that exist, and a role that owns them. Programs may use the tables
// meanwhile if they have this version of the module: they follow within a heartbeat, and a call of AcceptTx in between
// may fail once. Reading all IDs takes long on large tables; then it waits for a moment without long transactions,
// until ctx ends. Repeat it after an error: it goes on. Tables that have this layout stay as they are. Do not use it
// where a handler keeps its statuses forever, or beside transactions that always last longer than half a second.
func Partition(ctx context.Context, db *gorm.DB, tables models.Naming) error {
	return repartition(ctx, db, tables, repartitioner.Partition)
}

// Unpartition gives partitioned tables the plain layout again, under the same conditions. It copies few rows, so it
// needs all but the newest partition to be gone: set option PartitionInterval to 0 for the time of the Retention, so
// that no partition begins, and cleanup drops the others. Until then it is an error that says how many are left.
func Unpartition(ctx context.Context, db *gorm.DB, tables models.Naming) error {
	return repartition(ctx, db, tables, repartitioner.Unpartition)
}

// repartitioner is a store whose tables can be partitioned.
type repartitioner interface {
	Partition(ctx context.Context) error
	Unpartition(ctx context.Context) error
}

func repartition(
	ctx context.Context, db *gorm.DB, tables models.Naming, change func(repartitioner, context.Context) error,
) error {
	if err := models.CheckTables(ctx, db, tables); err != nil {
		return fmt.Errorf("partitions: %w", err)
	}
	st, err := stores.New(db, tables, store.Options{})
	if err != nil {
		return fmt.Errorf("partitions: %w", err)
	}
	able, ok := st.(repartitioner)
	if !ok {
		return errors.New("partitions: only PostgreSQL has them")
	}
	if err := change(able, ctx); err != nil {
		return fmt.Errorf("partitions: %w", err)
	}
	return nil
}
