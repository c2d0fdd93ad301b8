package mysql

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
)

// statesSQL uses the unique key on (message_number, handler_key).
const statesSQL = `
SELECT id, version, completed_at IS NOT NULL, is_poisoned, processing_started_at IS NOT NULL
FROM {statuses} FORCE INDEX (message) WHERE message_number IN ({list ?1}) AND (message_number, handler_key) IN ({pairs ?2})`

// openClaimsSQL walks the due index from a place on.
const openClaimsSQL = `
SELECT ?1, due_at, false, worker_id, processing_started_at, ` + base.RefColumns + `
FROM {statuses} FORCE INDEX (due)
WHERE handler_key = ?2 AND due_at >= ?3 AND (due_at > ?3 OR id > ?4) ORDER BY due_at, id LIMIT ?5`

func (s *Store) States(ctx context.Context, refs []store.Ref) (map[string]store.State, error) {
	states := make(map[string]store.State, len(refs))
	for part := range slices.Chunk(refs, longestList) {
		var numbers mysqldialect.List
		var pairs mysqldialect.Rows
		for _, ref := range part {
			numbers, pairs = append(numbers, ref.MessageNumber), append(pairs, []any{ref.MessageNumber, ref.HandlerKey})
		}
		rows, err := store.Query(ctx, s.Pool(ctx), s.Text(statesSQL), base.ScanState, numbers, pairs)
		if err != nil {
			return nil, base.Doing("read statuses back", err)
		}
		for _, row := range rows {
			states[row.ID] = row.State
		}
	}
	return states, nil
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
	var counts [2]int
	for i, parked := range []int{1, 2} {
		found, err := store.Query(ctx, s.Pool(ctx), s.Text(parkedSQL), store.Value[int], parked, key.HandlerKey, key.Limit)
		if err != nil {
			return b, err
		}
		counts[i] = found[0]
	}
	b.Poisoned, b.Waiting = counts[0], b.Waiting+counts[1]
	b.Capped = len(rows) >= key.Limit || counts[0] >= key.Limit || counts[1] >= key.Limit
	return b, nil
}
