package base

import (
	"database/sql"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// PartitionColumns are the columns that ScanPartition scans.
const PartitionColumns = `channel, group_id, topic, "partition", inline, caught_up_at, declared_at, undeclared_for, counted_at`

// ScanPartition scans a partition's progress.
func ScanPartition(rows *sql.Rows, p *models.Partition) error {
	var caughtUp, declared, counted store.Stamp
	err := rows.Scan(&p.Channel, &p.GroupID, &p.Topic, &p.Partition, &p.Inline, &caughtUp, &declared, &p.UndeclaredFor,
		&counted)
	p.CaughtUpAt, p.DeclaredAt, p.CountedAt = caughtUp.Pointer(), declared.Time, counted.Time
	return err
}

// FirstPartition returns the only row of a statement that returns one at most.
func FirstPartition(rows []models.Partition) (p models.Partition, ok bool) {
	if len(rows) == 0 {
		return p, false
	}
	return rows[0], true
}
