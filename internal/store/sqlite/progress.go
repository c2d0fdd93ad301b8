package sqlite

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

// These statements use the primary key, or read the whole table, which has one row per partition.
const (
	// recordProgressSQL leaves rows alone of which it would only repeat the declaration.
	recordProgressSQL = `
INSERT INTO {partitions} (channel, group_id, topic, "partition", inline, caught_up_at, declared_at, undeclared_for, counted_at)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
	json_extract(value, '$[4]'), json_extract(value, '$[5]'), ?2, 0, ?2
FROM json_each(?1) WHERE true
ON CONFLICT (channel, group_id, topic, "partition") DO UPDATE SET inline = excluded.inline,
	caught_up_at = CASE WHEN caught_up_at > excluded.caught_up_at THEN caught_up_at ELSE COALESCE(excluded.caught_up_at, caught_up_at) END,
	declared_at = max(declared_at, excluded.declared_at), undeclared_for = 0, counted_at = max(counted_at, excluded.counted_at)
WHERE excluded.caught_up_at IS NOT NULL AND (caught_up_at IS NULL OR caught_up_at < excluded.caught_up_at)
	OR declared_at < ?3 OR undeclared_for > 0 OR inline <> excluded.inline`

	declareTopicsSQL = `
UPDATE {partitions} SET declared_at = ?2, undeclared_for = 0, counted_at = ?2
WHERE EXISTS (SELECT 1 FROM json_each(?1) WHERE channel = json_extract(value, '$[0]') AND group_id = json_extract(value, '$[1]')
		AND topic = json_extract(value, '$[2]') AND "partition" = COALESCE(json_extract(value, '$[3]'), "partition"))
	AND (declared_at < ?3 OR undeclared_for > 0)`

	countUndeclaredSQL = `
UPDATE {partitions} SET undeclared_for = undeclared_for + min(CAST(strftime('%s', ?1) AS integer) - CAST(strftime('%s', counted_at) AS integer), ?3),
	counted_at = ?1
WHERE declared_at <= ?2 AND counted_at <= ?2`

	furthestBehindSQL = `
SELECT ` + base.PartitionColumns + ` FROM {partitions} WHERE ?1 OR NOT inline
ORDER BY caught_up_at NULLS FIRST, channel, group_id, topic, "partition" LIMIT 1`

	forgetPartitionsSQL = `DELETE FROM {partitions} WHERE undeclared_for >= ?1 RETURNING ` + base.PartitionColumns
)

func (s *Store) RecordProgress(
	ctx context.Context, rows []models.Partition, unlisted []store.Unlisted, now time.Time,
) error {
	at, declared := store.SQLiteTime(now), store.SQLiteTime(now.Add(-store.DeclareEvery))
	var err error
	if len(rows) > 0 {
		list := make([][6]any, len(rows))
		for i, r := range rows {
			list[i] = [6]any{r.Channel, r.GroupID, r.Topic, r.Partition, r.Inline, storedTime(r.CaughtUpAt)}
		}
		_, err = store.Exec(ctx, s.Pool(ctx), s.Text(recordProgressSQL), base.JSONList(list), at, declared)
	}
	if len(unlisted) > 0 && err == nil {
		list := make([][4]any, len(unlisted))
		for i, t := range unlisted {
			list[i] = [4]any{t.Channel, t.GroupID, t.Topic, t.Partition}
		}
		_, err = store.Exec(ctx, s.Pool(ctx), s.Text(declareTopicsSQL), base.JSONList(list), at, declared)
	}
	if err == nil {
		_, err = store.Exec(ctx, s.Pool(ctx), s.Text(countUndeclaredSQL), at,
			store.SQLiteTime(now.Add(-store.CountUndeclaredEvery)), int64(2*store.CountUndeclaredEvery/time.Second))
	}
	return base.Doing("record what partitions have caught up to", err)
}
