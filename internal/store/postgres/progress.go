package postgres

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

// These statements use partitions_pkey, or read the whole table, which has one row per partition. Rows are written in
// the order of the key, or skipped where another process writes them, so that no two processes deadlock.
const (
	// recordProgressSQL leaves rows alone of which it would only repeat the declaration.
	recordProgressSQL = `
INSERT INTO {partitions} AS p (channel, group_id, topic, "partition", inline, caught_up_at, declared_at, undeclared_for, counted_at)
SELECT r.channel, r.group_id, r.topic, r."partition", r.inline, r.caught_up_at, $7::timestamptz, 0, $7::timestamptz
FROM unnest($1::text[], $2::text[], $3::text[], $4::integer[], $5::boolean[], $6::timestamptz[])
	AS r(channel, group_id, topic, "partition", inline, caught_up_at)
ORDER BY r.channel, r.group_id, r.topic, r."partition"
ON CONFLICT (channel, group_id, topic, "partition") DO UPDATE SET inline = EXCLUDED.inline,
	caught_up_at = GREATEST(p.caught_up_at, EXCLUDED.caught_up_at), declared_at = GREATEST(p.declared_at, EXCLUDED.declared_at),
	undeclared_for = 0, counted_at = GREATEST(p.counted_at, EXCLUDED.counted_at)
WHERE EXCLUDED.caught_up_at IS NOT NULL AND (p.caught_up_at IS NULL OR p.caught_up_at < EXCLUDED.caught_up_at)
	OR p.declared_at < $8::timestamptz OR p.undeclared_for > 0 OR p.inline <> EXCLUDED.inline`

	declareTopicsSQL = `
WITH old AS MATERIALIZED (
	SELECT {partition} FROM {partitions} p
	JOIN unnest($1::text[], $2::text[], $3::text[], $4::integer[]) AS t(channel, group_id, topic, "partition")
		ON p.channel = t.channel AND p.group_id = t.group_id AND p.topic = t.topic
			AND p."partition" = COALESCE(t."partition", p."partition")
	WHERE p.declared_at < $6::timestamptz OR p.undeclared_for > 0
	FOR UPDATE OF p SKIP LOCKED
)
UPDATE {partitions} SET declared_at = $5::timestamptz, undeclared_for = 0, counted_at = $5::timestamptz WHERE {partition old}`

	countUndeclaredSQL = `
WITH old AS MATERIALIZED (
	SELECT {partition} FROM {partitions} p
	WHERE declared_at <= $2::timestamptz AND counted_at <= $2::timestamptz FOR UPDATE SKIP LOCKED
)
UPDATE {partitions} SET undeclared_for = undeclared_for + LEAST(extract(epoch FROM $1::timestamptz - counted_at)::bigint, $3::bigint),
	counted_at = $1::timestamptz
WHERE {partition old}`

	furthestBehindSQL = `
SELECT ` + base.PartitionColumns + ` FROM {partitions} WHERE $1::boolean OR NOT inline
ORDER BY caught_up_at NULLS FIRST, channel, group_id, topic, "partition" LIMIT 1`

	forgetPartitionsSQL = `DELETE FROM {partitions} WHERE undeclared_for >= $1::bigint RETURNING ` + base.PartitionColumns
)

func (p *Store) RecordProgress(
	ctx context.Context, rows []models.Partition, unlisted []store.Unlisted, now time.Time,
) error {
	now = now.UTC()
	declared := now.Add(-store.DeclareEvery)
	var err error
	if n := len(rows); n > 0 {
		channels, groups, topics := make([]string, n), make([]string, n), make([]string, n)
		partitions, inline, caughtUp := make([]int32, n), make([]bool, n), make([]*time.Time, n)
		for i, r := range rows {
			channels[i], groups[i], topics[i], partitions[i], inline[i] = r.Channel, r.GroupID, r.Topic, r.Partition, r.Inline
			caughtUp[i] = inUTC(r.CaughtUpAt)
		}
		_, err = store.Exec(ctx, p.Pool(ctx), p.Text(recordProgressSQL), channels, groups, topics, partitions, inline,
			caughtUp, now, declared)
	}
	if n := len(unlisted); n > 0 && err == nil {
		channels, groups, topics, partitions := make([]string, n), make([]string, n), make([]string, n), make([]*int32, n)
		for i, t := range unlisted {
			channels[i], groups[i], topics[i], partitions[i] = t.Channel, t.GroupID, t.Topic, t.Partition
		}
		_, err = store.Exec(ctx, p.Pool(ctx), p.Text(declareTopicsSQL), channels, groups, topics, partitions, now, declared)
	}
	if err == nil {
		_, err = store.Exec(ctx, p.Pool(ctx), p.Text(countUndeclaredSQL), now, now.Add(-store.CountUndeclaredEvery),
			int64(2*store.CountUndeclaredEvery/time.Second))
	}
	return base.Doing("record what partitions have caught up to", err)
}
