package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

// These statements use the primary key, or read the whole table, which has one row per partition. Rows are written in
// the order of the key, or skipped where another process writes them, so that no two processes deadlock.
const (
	// recordProgressSQL leaves rows alone of which it would only repeat the declaration. It takes assignments one after
	// the other, so that those which read a column come before those which change it.
	recordProgressSQL = `
INSERT INTO {partitions} (channel, group_id, topic, "partition", inline, caught_up_at, declared_at, undeclared_for, counted_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?7)
ON DUPLICATE KEY UPDATE inline = VALUES(inline),
	caught_up_at = CASE WHEN caught_up_at > VALUES(caught_up_at) THEN caught_up_at ELSE COALESCE(VALUES(caught_up_at), caught_up_at) END,
	declared_at = GREATEST(declared_at, VALUES(declared_at)), undeclared_for = 0, counted_at = GREATEST(counted_at, VALUES(counted_at))`

	partitionsSQL = `SELECT ` + base.PartitionColumns + ` FROM {partitions}`

	declareTopicSQL = `
UPDATE {partitions} SET declared_at = ?4, undeclared_for = 0, counted_at = ?4
WHERE channel = ?1 AND group_id = ?2 AND topic = ?3 AND "partition" = COALESCE(?6, "partition")
	AND (declared_at < ?5 OR undeclared_for > 0)`

	undeclaredSQL = `
SELECT channel, group_id, topic, "partition" FROM {partitions} WHERE declared_at <= ?1 AND counted_at <= ?1 FOR UPDATE SKIP LOCKED`

	countUndeclaredSQL = `
UPDATE {partitions} SET undeclared_for = undeclared_for + LEAST(TIMESTAMPDIFF(SECOND, counted_at, ?5), ?6), counted_at = ?5
WHERE channel = ?1 AND group_id = ?2 AND topic = ?3 AND "partition" = ?4`

	furthestBehindSQL = `
SELECT ` + base.PartitionColumns + ` FROM {partitions} WHERE ?1 OR NOT inline
ORDER BY caught_up_at, channel, group_id, topic, "partition" LIMIT 1`

	forgottenSQL = partitionsSQL + ` WHERE undeclared_for >= ?1 ORDER BY channel, group_id, topic, "partition" FOR UPDATE`

	forgetPartitionSQL = `DELETE FROM {partitions} WHERE channel = ?1 AND group_id = ?2 AND topic = ?3 AND "partition" = ?4`
)

func (s *Store) RecordProgress(ctx context.Context, rows []models.Partition, unlisted []store.Unlisted,
	now time.Time,
) error {
	err := s.retrying(ctx, func(pool gorm.ConnPool) error {
		known, err := store.Query(ctx, pool, s.Text(partitionsSQL), base.ScanPartition)
		if err != nil {
			return err
		}
		declared := now.Add(-store.DeclareEvery)
		rows = slices.Clone(rows)
		slices.SortFunc(rows, func(a, b models.Partition) int {
			return cmp.Or(cmp.Compare(a.Channel, b.Channel), cmp.Compare(a.GroupID, b.GroupID), cmp.Compare(a.Topic, b.Topic),
				cmp.Compare(a.Partition, b.Partition))
		})
		for _, r := range rows {
			if slices.ContainsFunc(known, func(k models.Partition) bool { return repeats(k, r, declared) }) {
				continue
			}
			if _, err := store.Exec(ctx, pool, s.Text(recordProgressSQL), r.Channel, r.GroupID, r.Topic, r.Partition, r.Inline,
				r.CaughtUpAt, now); err != nil {
				return err
			}
		}
		for _, t := range unlisted {
			if _, err := store.Exec(ctx, pool, s.Text(declareTopicSQL), t.Channel, t.GroupID, t.Topic, now,
				declared, t.Partition); err != nil {
				return err
			}
		}
		undeclared, err := store.Query(ctx, pool, s.Text(undeclaredSQL), func(rows *sql.Rows, p *models.Partition) error {
			return rows.Scan(&p.Channel, &p.GroupID, &p.Topic, &p.Partition)
		}, now.Add(-store.CountUndeclaredEvery))
		if err != nil {
			return err
		}
		for _, p := range undeclared {
			if _, err := store.Exec(ctx, pool, s.Text(countUndeclaredSQL), p.Channel, p.GroupID, p.Topic, p.Partition, now,
				int64(2*store.CountUndeclaredEvery/time.Second)); err != nil {
				return err
			}
		}
		return nil
	})
	return base.Doing("record what partitions have caught up to", err)
}

// repeats reports whether a row says nothing new of a known one, whose declaration is young.
func repeats(known, row models.Partition, declared time.Time) bool {
	return known.Channel == row.Channel && known.GroupID == row.GroupID && known.Topic == row.Topic &&
		known.Partition == row.Partition && known.Inline == row.Inline && known.UndeclaredFor == 0 &&
		!known.DeclaredAt.Before(declared) &&
		(row.CaughtUpAt == nil || known.CaughtUpAt != nil && !known.CaughtUpAt.Before(*row.CaughtUpAt))
}

func (s *Store) ForgetPartitions(ctx context.Context, undeclaredFor time.Duration) (
	forgotten []models.Partition, err error,
) {
	err = s.retrying(ctx, func(pool gorm.ConnPool) (err error) {
		forgotten, err = store.Query(ctx, pool, s.Text(forgottenSQL), base.ScanPartition, int64(undeclaredFor/time.Second))
		for _, p := range forgotten {
			if err == nil {
				_, err = store.Exec(ctx, pool, s.Text(forgetPartitionSQL), p.Channel, p.GroupID, p.Topic, p.Partition)
			}
		}
		return err
	})
	return forgotten, base.Doing("forget removed partitions", err)
}
