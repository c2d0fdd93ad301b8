package ops

import (
	"context"
	"slices"

	"github.com/gorm-inbox/inbox/internal/store"
)

// These use the index on poisoned rows, the due index and the one on waiting rows, with one step
// per key (a loose index scan), however many rows each key has.
const (
	poisonedKeys = `
WITH RECURSIVE keys(handler_key, number) AS (
	SELECT (SELECT handler_key FROM {statuses} WHERE is_poisoned AND completed_at IS NULL ORDER BY handler_key LIMIT 1), 1
	UNION ALL
	SELECT (SELECT s.handler_key FROM {statuses} s WHERE s.is_poisoned AND s.completed_at IS NULL AND s.handler_key > k.handler_key
		ORDER BY s.handler_key LIMIT 1), k.number + 1
	FROM keys k WHERE k.handler_key IS NOT NULL AND k.number < $1
)
SELECT handler_key FROM keys WHERE handler_key IS NOT NULL`

	dueKeys = `
WITH RECURSIVE keys(handler_key, number) AS (
	SELECT (SELECT handler_key FROM {statuses} WHERE ` + isOpen + ` ORDER BY handler_key LIMIT 1), 1
	UNION ALL
	SELECT (SELECT s.handler_key FROM {statuses} s WHERE s.completed_at IS NULL AND NOT s.is_poisoned AND NOT s.is_waiting
		AND s.handler_key > k.handler_key ORDER BY s.handler_key LIMIT 1), k.number + 1
	FROM keys k WHERE k.handler_key IS NOT NULL AND k.number < $1
)
SELECT handler_key FROM keys WHERE handler_key IS NOT NULL`

	waitingKeys = `
WITH RECURSIVE keys(handler_key, number) AS (
	SELECT (SELECT handler_key FROM {statuses} WHERE is_waiting ORDER BY handler_key LIMIT 1), 1
	UNION ALL
	SELECT (SELECT s.handler_key FROM {statuses} s WHERE s.is_waiting AND s.handler_key > k.handler_key
		ORDER BY s.handler_key LIMIT 1), k.number + 1
	FROM keys k WHERE k.handler_key IS NOT NULL AND k.number < $1
)
SELECT handler_key FROM keys WHERE handler_key IS NOT NULL`
)

// failingKeys uses the index on failures in the same way.
const failingKeys = `
WITH RECURSIVE keys(handler_key, number) AS (
	SELECT (SELECT handler_key FROM {statuses} WHERE ` + isGrouped + ` ORDER BY handler_key LIMIT 1), 1
	UNION ALL
	SELECT (SELECT s.handler_key FROM {statuses} s WHERE ` + isGrouped + ` AND s.handler_key > k.handler_key
		ORDER BY s.handler_key LIMIT 1), k.number + 1
	FROM keys k WHERE k.handler_key IS NOT NULL AND k.number < $1
)
SELECT handler_key FROM keys WHERE handler_key IS NOT NULL`

// openKeys returns the handler keys that have rows of a stage.
func (o *Ops) openKeys(ctx context.Context, st stage) ([]string, error) {
	statement := map[stage]string{byPoisoned: poisonedKeys, byDue: dueKeys, byWaiting: waitingKeys,
		byGroup: failingKeys}[st]
	return readRows(ctx, o, statement, store.Value[string], mostKeys)
}

// allOpenKeys returns the handler keys that have rows of any stage.
func (o *Ops) allOpenKeys(ctx context.Context) ([]string, error) {
	var all []string
	for _, st := range []stage{byPoisoned, byDue, byWaiting} {
		keys, err := o.openKeys(ctx, st)
		if err != nil {
			return nil, err
		}
		all = append(all, keys...)
	}
	return distinct(all), nil
}

// distinct returns the keys sorted and without duplicates. It does not change its argument.
func distinct(keys []string) []string {
	sorted := slices.Sorted(slices.Values(keys))
	return slices.Compact(sorted)
}
