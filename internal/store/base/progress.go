package base

import (
	"context"
	"database/sql"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// PartitionColumns are the columns that scanPartition scans.
const PartitionColumns = `channel, group_id, topic, "partition", inline, caught_up_at, declared_at, undeclared_for, counted_at`

// scanPartition scans a partition's progress.
func scanPartition(rows *sql.Rows, p *models.Partition) error {
	var caughtUp, declared, counted store.Stamp
	err := rows.Scan(&p.Channel, &p.GroupID, &p.Topic, &p.Partition, &p.Inline, &caughtUp, &declared, &p.UndeclaredFor,
		&counted)
	p.CaughtUpAt, p.DeclaredAt, p.CountedAt = caughtUp.Pointer(), declared.Time, counted.Time
	return err
}

func (c Common) FurthestBehind(ctx context.Context, inline bool) (p models.Partition, ok bool, err error) {
	rows, err := store.Query(ctx, c.Pool(ctx), c.Text(c.sql.FurthestBehind), scanPartition, inline)
	if err != nil || len(rows) == 0 {
		return p, false, Doing("find the partition that is furthest behind", err)
	}
	return rows[0], true, nil
}

func (c Common) ForgetPartitions(ctx context.Context, undeclaredFor time.Duration) ([]models.Partition, error) {
	forgotten, err := store.Query(ctx, c.Pool(ctx), c.Text(c.sql.ForgetPartitions), scanPartition,
		int64(undeclaredFor/time.Second))
	return forgotten, Doing("forget removed partitions", err)
}
