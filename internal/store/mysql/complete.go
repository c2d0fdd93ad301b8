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
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
)

// lockVersionedSQL locks open rows at the versions that the caller saw, by the primary key, in one order.
const lockVersionedSQL = `
SELECT id, version FROM {statuses} FORCE INDEX (PRIMARY)
WHERE id IN ({list ?1}) AND (id, version) IN ({pairs ?2}) AND completed_at IS NULL ORDER BY id FOR UPDATE`

// currentSQL is lockVersionedSQL without the locks.
const currentSQL = `
SELECT id, version FROM {statuses} FORCE INDEX (PRIMARY)
WHERE id IN ({list ?1}) AND (id, version) IN ({pairs ?2}) AND completed_at IS NULL`

// completeSQL uses the primary key. The rows are locked. The time is that of the database's clock, because cleanup
// judges age by that clock.
const completeSQL = `
UPDATE {statuses} SET completed_at = COALESCE({latest}, ?2), outcome = ?3, processing_started_at = NULL, worker_id = NULL,
	next_attempt_at = NULL, abandoned_count = 0, interrupted_count = 0, is_poisoned = 0, is_waiting = 0, holds_lane = 0, version = version + 1
WHERE id IN ({list ?1})`

// versioned identifies a row as it was before a transition.
type versioned struct {
	id      string
	version int64
}

func scanVersioned(rows *sql.Rows, v *versioned) error { return rows.Scan(&v.id, &v.version) }

// lockVersioned locks the rows that are at these versions and open.
func (s *Store) lockVersioned(ctx context.Context, pool gorm.ConnPool, statement string, wanted []versioned) (
	map[versioned]bool, error,
) {
	wanted = slices.Clone(wanted)
	slices.SortFunc(wanted, func(a, b versioned) int { return cmp.Compare(a.id, b.id) })
	locked := make(map[versioned]bool, len(wanted))
	for part := range slices.Chunk(wanted, longestList) {
		var ids mysqldialect.List
		var pairs mysqldialect.Rows
		for _, v := range part {
			ids, pairs = append(ids, v.id), append(pairs, []any{v.id, v.version})
		}
		found, err := store.Query(ctx, pool, s.Text(statement), scanVersioned, ids, pairs)
		if err != nil {
			return nil, err
		}
		for _, v := range found {
			locked[v] = true
		}
	}
	return locked, nil
}

func lockingBy(statement string, locked store.Locked) string {
	if locked == store.SkipLocked {
		return statement + ` SKIP LOCKED`
	}
	return statement
}

func (s *Store) Complete(ctx context.Context, completions []store.Completion, at time.Time, locked store.Locked) (
	applied []bool, err error,
) {
	if len(completions) == 0 {
		return []bool{}, nil
	}
	err = s.retrying(ctx, func(pool gorm.ConnPool) (err error) {
		applied, err = s.complete(ctx, pool, completions, at, lockingBy(lockVersionedSQL, locked))
		return err
	})
	if err != nil {
		return nil, base.Doing("complete", err)
	}
	return applied, nil
}

func (s *Store) complete(ctx context.Context, pool gorm.ConnPool, completions []store.Completion, at time.Time,
	statement string,
) ([]bool, error) {
	wanted := make([]versioned, len(completions))
	for i, c := range completions {
		wanted[i] = versioned{c.StatusID, c.Version}
	}
	locked, err := s.lockVersioned(ctx, pool, statement, wanted)
	if err != nil {
		return nil, err
	}
	applied := make([]bool, len(completions))
	byOutcome := map[string][]string{}
	for i, c := range completions {
		if applied[i] = locked[wanted[i]]; applied[i] {
			byOutcome[string(c.Outcome)] = append(byOutcome[string(c.Outcome)], c.StatusID)
		}
	}
	for outcome, ids := range byOutcome {
		slices.Sort(ids)
		for part := range slices.Chunk(ids, longestList) {
			if _, err := store.Exec(ctx, pool, s.Text(completeSQL), listOf(part), at, outcome); err != nil {
				return nil, err
			}
		}
	}
	return applied, nil
}

func (s *Store) CompleteTx(ctx context.Context, tx *gorm.DB, completions []store.Completion, at time.Time) (
	[]bool, error,
) {
	pool, err := base.Joined(tx)
	if err != nil {
		return nil, base.Doing("complete", err)
	}
	applied, err := s.complete(ctx, pool, completions, at, lockVersionedSQL)
	return applied, base.Doing("complete", err)
}

func (s *Store) CurrentTx(ctx context.Context, tx *gorm.DB, completions []store.Completion) ([]bool, error) {
	pool, err := base.Joined(tx)
	if err != nil {
		return nil, base.Doing("check claims", err)
	}
	wanted := make([]versioned, len(completions))
	for i, c := range completions {
		wanted[i] = versioned{c.StatusID, c.Version}
	}
	found, err := s.lockVersioned(ctx, pool, currentSQL, wanted)
	if err != nil {
		return nil, base.Doing("check claims", err)
	}
	current := make([]bool, len(completions))
	for i := range wanted {
		current[i] = found[wanted[i]]
	}
	return current, nil
}
