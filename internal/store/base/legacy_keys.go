package base

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
)

// LegacyKeysSQL reads a whole table, which has only a few rows.
const LegacyKeysSQL = `SELECT handler_key, legacy_keys FROM {handlers} WHERE legacy_keys <> ''`

// LegacyKeys returns the legacy keys that programs have declared, by handler key. Other text than JSON is an error:
// without its keys, a message could run twice.
func (d Database) LegacyKeys(ctx context.Context, pool gorm.ConnPool) (map[string][]string, error) {
	type row struct {
		key    string
		legacy []string
	}
	rows, err := store.Query(ctx, pool, d.Text(LegacyKeysSQL), func(rows *sql.Rows, r *row) error {
		var text string
		if err := rows.Scan(&r.key, &text); err != nil {
			return err
		}
		return Doing(fmt.Sprintf("handler %q", r.key), json.Unmarshal([]byte(text), &r.legacy))
	})
	if err != nil {
		return nil, Doing("read legacy keys", err)
	}
	declared := make(map[string][]string, len(rows))
	for _, r := range rows {
		declared[r.key] = r.legacy
	}
	return declared, nil
}

// SameHandler returns these handler keys and those of which one of them is a legacy key, without repeats.
func SameHandler(legacy map[string][]string, keys []string) []string {
	keys = Distinct(slices.Clone(keys))
	all := slices.Clone(keys)
	for key, old := range legacy {
		if slices.ContainsFunc(old, func(key string) bool { return slices.Contains(keys, key) }) {
			all = append(all, key)
		}
	}
	return Distinct(all)
}

func (c Common) DeclareLegacyKeys(
	ctx context.Context, tx *gorm.DB, declared map[string][]string, now time.Time,
) (changed bool, err error) {
	var pool gorm.ConnPool
	if tx == nil {
		pool = c.Pool(ctx)
	} else if pool, err = Joined(tx); err != nil {
		return false, Doing("declare legacy keys", err)
	}
	stored, err := c.LegacyKeys(ctx, pool)
	if err != nil {
		return false, err
	}
	wanted := wantedLegacyKeys(stored, declared)
	for _, key := range slices.Sorted(maps.Keys(wanted)) { // in one order, so that programs do not deadlock
		if slices.Equal(wanted[key], stored[key]) {
			continue
		}
		text := ""
		if len(wanted[key]) > 0 {
			text = inJSON(wanted[key])
		}
		if _, err := store.Exec(ctx, pool, c.Text(c.sql.SetLegacyKeys), key, text, c.form.Time(now)); err != nil {
			return false, Doing(fmt.Sprintf("store the legacy keys of handler %q", key), err)
		}
		changed = true
	}
	return changed, nil
}

// wantedLegacyKeys returns the legacy keys that the rows should have: those that the program declares for its handlers,
// and of former keys what they have, without the keys that other handlers of the program use now.
func wantedLegacyKeys(stored, declared map[string][]string) map[string][]string {
	handlers := map[string]string{} // the handler's key by each of its keys
	for handlerKey, legacy := range declared {
		handlers[handlerKey] = handlerKey
		for _, key := range legacy {
			handlers[key] = handlerKey
		}
	}
	wanted := maps.Clone(declared)
	for key, legacy := range stored {
		handlerKey, known := handlers[key]
		if _, current := declared[key]; current || !known {
			continue
		}
		wanted[key] = slices.DeleteFunc(slices.Clone(legacy), func(old string) bool {
			other, used := handlers[old]
			return used && other != handlerKey
		})
	}
	return wanted
}
