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
const lockVersionedSQL = currentSQL + ` FOR UPDATE`

// currentSQL is lockVersionedSQL without the locks.
const currentSQL = versionedSQL + ` AND s.completed_at IS NULL`

const versionedSQL = `
SELECT s.id, s.version FROM ({rows ?1}) c STRAIGHT_JOIN {statuses} s FORCE INDEX (PRIMARY) ON s.id = c.c0 AND s.version = c.c1`

// completeSQL uses the primary key. The rows are locked. The time is that of the database's clock, because cleanup
// judges age by that clock.
const completeSQL = `
UPDATE {statuses} FORCE INDEX (PRIMARY) SET completed_at = COALESCE({latest}, ?2), outcome = ?3, processing_started_at = NULL, worker_id = NULL,
	next_attempt_at = NULL, abandoned_count = 0, interrupted_count = 0, is_poisoned = 0, is_waiting = 0, holds_lane = 0, version = version + 1
WHERE id IN ({list ?1})`

// versioned identifies a row as it was before a transition.
type versioned struct {
	id      string
	version int64
}

func versionsOf(completions []store.Completion) []versioned {
	versions := make([]versioned, len(completions))
	for i, c := range completions {
		versions[i] = versioned{c.StatusID, c.Version}
	}
	return versions
}

func scanVersioned(rows *sql.Rows, v *versioned) error { return rows.Scan(&v.id, &v.version) }

// lockVersioned locks the rows that are at these versions and open, in the order of their IDs, and reports which are.
func (s *Store) lockVersioned(ctx context.Context, pool gorm.ConnPool, statement string, wanted []versioned) (
	is []bool, err error,
) {
	pairs := make(mysqldialect.Rows, len(wanted))
	byID := func(a, b versioned) int { return cmp.Compare(a.id, b.id) }
	for i, v := range slices.SortedFunc(slices.Values(wanted), byID) {
		pairs[i] = []any{v.id, v.version}
	}
	found, err := queryAll(ctx, s, pool, statement, scanVersioned, pairs)
	locked := make(map[versioned]bool, len(found))
	for _, v := range found {
		locked[v] = true
	}
	is = make([]bool, len(wanted))
	for i, v := range wanted {
		is[i] = locked[v]
	}
	return is, err
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
	applied, err := s.lockVersioned(ctx, pool, statement, versionsOf(completions))
	if err != nil {
		return nil, err
	}
	byOutcome := map[string][]string{}
	for i, c := range completions {
		if applied[i] {
			byOutcome[string(c.Outcome)] = append(byOutcome[string(c.Outcome)], c.StatusID)
		}
	}
	for outcome, ids := range byOutcome {
		slices.Sort(ids)
		if _, err := execAll(ctx, s, pool, completeSQL, listOf(ids), at, outcome); err != nil {
			return nil, err
		}
	}
	return applied, nil
}

func (s *Store) CompleteTx(ctx context.Context, tx *gorm.DB, completions []store.Completion, at time.Time) (
	[]bool, error,
) {
	var applied []bool
	err := s.joined(ctx, tx, func(pool gorm.ConnPool) (err error) {
		applied, err = s.complete(ctx, pool, completions, at, lockVersionedSQL)
		return err
	})
	return applied, base.Doing("complete", err)
}

func (s *Store) CurrentTx(ctx context.Context, tx *gorm.DB, completions []store.Completion) ([]bool, error) {
	var current []bool
	err := s.joined(ctx, tx, func(pool gorm.ConnPool) (err error) {
		current, err = s.lockVersioned(ctx, pool, currentSQL, versionsOf(completions))
		return err
	})
	return current, base.Doing("check claims", err)
}
