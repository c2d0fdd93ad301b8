package mysql

import (
	"context"
	"database/sql"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
)

// statesSQL uses the unique key on (message_number, handler_key).
const statesSQL = `
SELECT s.id, s.version, s.completed_at IS NOT NULL, s.is_poisoned, s.processing_started_at IS NOT NULL
FROM ({rows ?1}) c STRAIGHT_JOIN {statuses} s FORCE INDEX (message) ON s.message_number = c.c0 AND s.handler_key = c.c1`

// openClaimsSQL walks the due index from a place on.
const openClaimsSQL = `
SELECT ?1, due_at, false, worker_id, processing_started_at, ` + base.RefColumns + `
FROM {statuses} FORCE INDEX (due)
WHERE handler_key = ?2 AND due_at >= ?3 AND (due_at > ?3 OR id > ?4) ORDER BY due_at, id LIMIT ?5`

func (s *Store) States(ctx context.Context, refs []store.Ref) (map[string]store.State, error) {
	pairs := make(mysqldialect.Rows, len(refs))
	for i, ref := range refs {
		pairs[i] = []any{ref.MessageNumber, ref.HandlerKey}
	}
	rows, err := queryAll(ctx, s, s.Pool(ctx), statesSQL, base.ScanState, pairs)
	if err != nil {
		return nil, base.Doing("read statuses back", err)
	}
	return base.ByID(rows), nil
}

func (s *Store) OpenClaims(ctx context.Context, walks []store.ClaimWalk) ([]store.OpenClaims, error) {
	pages := make([]store.OpenClaims, len(walks))
	for i, walk := range walks {
		from := bounds(nil, walk.After)
		rows, err := store.Query(ctx, s.Pool(ctx), s.Text(openClaimsSQL), base.ScanOpenClaim, i, walk.HandlerKey, from[0],
			from[1], store.ClaimPage)
		if err != nil {
			return nil, base.Doing("find open claims", err)
		}
		pages[i] = base.OpenClaims(len(walks), rows)[i]
		if n := len(rows); n == store.ClaimPage {
			pages[i].Next = rows[n-1].Place()
		}
	}
	return pages, nil
}

// backlogSQL reads the due rows of one key by the due index, at most as many as the limit.
const backlogSQL = `
SELECT due_at, processing_started_at IS NOT NULL, id, sequence, lane_handler, lane_key
FROM {statuses} FORCE INDEX (due) WHERE handler_key = ?1 AND due_at <= ?2 ORDER BY due_at, id LIMIT ?3`

// parkedSQL counts by the index on parked rows, no further than the limit.
const parkedSQL = `
SELECT COUNT(*) FROM (SELECT 1 FROM {statuses} FORCE INDEX (parked) WHERE parked = ?1 AND handler_key = ?2 LIMIT ?3) x`

func (s *Store) Backlog(ctx context.Context, keys []store.KeyLimit, now time.Time) ([]store.Backlog, error) {
	var all []store.Backlog
	for _, key := range keys {
		b, err := s.backlog(ctx, key, now)
		if err != nil {
			return nil, base.Doing("count the backlog", err)
		}
		all = append(all, b)
	}
	return all, nil
}

// backlogRow is a due row, claimed or not.
type backlogRow struct {
	seen
	claimed bool
}

func (s *Store) backlog(ctx context.Context, key store.KeyLimit, now time.Time) (store.Backlog, error) {
	b := store.Backlog{HandlerKey: key.HandlerKey}
	rows, err := store.Query(ctx, s.Pool(ctx), s.Text(backlogSQL), func(rows *sql.Rows, r *backlogRow) error {
		var due store.Stamp
		var lane base.LaneColumns
		err := rows.Scan(&due, &r.claimed, &r.StatusID, &r.sequence, &lane.Handler, &lane.Key)
		r.Due, r.Lane = due.Time, lane.Lane()
		return err
	}, key.HandlerKey, now, key.Limit)
	if err != nil {
		return b, err
	}
	free := map[string]bool{}
	if key.Lanes != nil {
		unclaimed := make([]seen, 0, len(rows))
		for _, row := range rows {
			if !row.claimed {
				unclaimed = append(unclaimed, row.seen)
			}
		}
		heads, _, err := s.judge(ctx, s.Pool(ctx), store.KeyLimit{Limit: len(rows) + 1, Lanes: key.Lanes}, unclaimed, now)
		if err != nil {
			return b, err
		}
		for _, head := range heads {
			free[head.StatusID] = true
		}
	}
	for _, row := range rows {
		switch {
		case row.claimed:
			b.Processing++
		case key.Lanes != nil && !free[row.StatusID]:
			b.Waiting++
		default:
			if b.Due++; b.OldestDue.IsZero() {
				b.OldestDue = row.Due
			}
		}
	}
	var counts [2]int64
	for i := range counts {
		if counts[i], err = s.count(ctx, s.Pool(ctx), parkedSQL, i+1, key.HandlerKey, key.Limit); err != nil {
			return b, err
		}
	}
	b.Poisoned, b.Waiting = int(counts[0]), b.Waiting+int(counts[1])
	b.Capped = max(len(rows), int(counts[0]), int(counts[1])) >= key.Limit
	return b, nil
}

// count returns the number that a statement returns.
func (s *Store) count(ctx context.Context, pool gorm.ConnPool, statement string, args ...any) (int64, error) {
	found, err := store.Query(ctx, pool, s.Text(statement), store.Value[int64], args...)
	if err != nil {
		return 0, err
	}
	return found[0], nil
}
