package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
)

// windowSQL reads due rows of a key with lanes by the due index, without locks: those to lock are judged first.
const windowSQL = `
SELECT ` + claimColumns + `, sequence FROM {statuses} FORCE INDEX (due)
WHERE ` + isDue + ` ORDER BY due_at, id LIMIT ?4`

// firstSQL reads by the index on lanes the first row of a lane's name, poisoned or not.
const firstSQL = `(SELECT ? AS request, id, handler_key, sequence, is_poisoned, is_waiting, processing_started_at IS NOT NULL,
	next_attempt_at IS NULL OR next_attempt_at <= ?
FROM {statuses} FORCE INDEX (lane)
WHERE lane_open = ? AND lane_key = ? AND is_poisoned = ? ORDER BY sequence, id LIMIT 1)`

// heldSQL finds by the unique key on claimed lanes those with a claimed row.
const heldSQL = `
SELECT lane_handler, lane_held FROM {statuses} FORCE INDEX (lane_holder) WHERE lane_held IN ({list ?1})`

// lockSeenSQL locks rows at the version at which they were read, by the primary key.
const lockSeenSQL = `
SELECT id FROM {statuses} FORCE INDEX (PRIMARY)
WHERE id IN ({list ?1}) AND (id, version) IN ({pairs ?2}) AND completed_at IS NULL ORDER BY id FOR UPDATE SKIP LOCKED`

// markSQL and freeSQL use the primary key. The rows are locked.
const (
	markSQL = `UPDATE {statuses} SET is_waiting = 1, version = version + 1 WHERE id IN ({list ?1})`

	freeSQL = `UPDATE {statuses} SET is_waiting = 0, version = version + 1 WHERE id IN ({list ?1})`
)

// claimNextSQL reads rows that are locked.
const claimNextSQL = `
SELECT ` + claimColumns + ` FROM {statuses} WHERE id IN ({list ?1})`

// seen is a row of a window.
type seen struct {
	store.Claim
	sequence int64
}

// lockHeads locks rows of a key that are first in their lanes. It reads a window of the key's due rows and judges the
// first row of each lane in it. Rows that it passes over stay in the due index while there are no more of them than may
// be claimed; more are marked as waiting, and no claim reads them any more until AdvanceLanes frees them.
//
// Two claims may judge by different snapshots. Then the unique key on claimed lanes refuses the second, which is tried
// again.
func (s *Store) lockHeads(ctx context.Context, pool gorm.ConnPool, req store.ClaimRequest, limit store.KeyLimit,
	claimed *store.Claimed, marked *[]store.LaneRequest,
) ([]store.Claim, error) {
	window := 2*limit.Limit + base.LaneWindow
	statement, args := windowSQL, append([]any{limit.HandlerKey, req.Now, req.Now, window}, bounds(req.Within, nil)...)
	if req.Within != nil {
		statement, args = withinSQL(statement), append(args, listOf(req.Within.StatusIDs))
	}
	rows, err := store.Query(ctx, pool, s.Text(statement), func(rows *sql.Rows, r *seen) error {
		return scanSeen(rows, r)
	}, args...)
	if err != nil {
		return nil, err
	}
	heads, passed, err := s.judge(ctx, pool, limit, rows, req.Now)
	if err != nil {
		return nil, err
	}
	locked, err := s.lockSeen(ctx, pool, heads)
	if err != nil {
		return nil, err
	}
	if len(passed) > limit.Limit {
		if err := s.mark(ctx, pool, limit, passed, claimed, marked); err != nil {
			return nil, err
		}
	}
	claims := make([]store.Claim, len(locked))
	for i, row := range locked {
		claims[i] = row.Claim
	}
	return withinBytes(claims, limit), nil
}

// judgedAtOnce is how many lanes are judged by one statement.
const judgedAtOnce = 64

// judge separates rows of a window that are first in their lanes, as many as the limit, from those before the last of
// these that are not.
func (s *Store) judge(ctx context.Context, pool gorm.ConnPool, limit store.KeyLimit, rows []seen, now time.Time) (
	heads, passed []seen, err error,
) {
	// The other rows of a lane in the window come after its first one there, even if the lane has more rows.
	leaders := map[store.Lane]*seen{}
	for i := range rows {
		row := &rows[i]
		if row.Lane == nil {
			continue
		}
		lane := oneName(*row.Lane, limit.Lanes)
		if leader := leaders[lane]; leader == nil ||
			cmp.Or(cmp.Compare(row.sequence, leader.sequence), cmp.Compare(row.StatusID, leader.StatusID)) < 0 {
			leaders[lane] = row
		}
	}
	isFirst := map[string]bool{}
	for at := 0; at < len(rows) && len(heads) < limit.Limit; {
		var requests []store.LaneRequest
		end := at
		for ; end < len(rows) && len(requests) < judgedAtOnce; end++ {
			if lane := rows[end].Lane; lane != nil && leaders[oneName(*lane, limit.Lanes)] == &rows[end] {
				requests = append(requests, limit.Lanes.Request(*lane))
			}
		}
		firsts, err := s.firsts(ctx, pool, requests, now)
		if err != nil {
			return nil, nil, err
		}
		for _, f := range firsts {
			isFirst[f.id] = !f.laneHeld
		}
		for ; at < end && len(heads) < limit.Limit; at++ {
			if rows[at].Lane == nil || isFirst[rows[at].StatusID] {
				heads = append(heads, rows[at])
			} else {
				passed = append(passed, rows[at])
			}
		}
	}
	return heads, passed, nil
}

// oneName gives a lane one name if the handler has several.
func oneName(lane store.Lane, rule *store.LaneRule) store.Lane {
	if slices.Contains(rule.Handlers, lane.Handler) {
		lane.Handler = rule.Handlers[0]
	}
	return lane
}

func scanSeen(rows *sql.Rows, r *seen) error {
	var created, due store.Stamp
	var lane base.LaneColumns
	c := &r.Claim
	err := rows.Scan(&c.StatusID, &c.MessageNumber, &c.MessageID, &c.HandlerKey, &c.Version, &c.ErrorCount,
		&c.AbandonedCount, &c.InterruptedCount, &c.RequeuedCount, &c.MessageBytes, &created, &due, &lane.Handler, &lane.Key,
		&r.sequence)
	c.CreatedAt, c.Due, c.Lane = created.Time, due.Time, lane.Lane()
	return err
}

// first is the first open row of a lane.
type first struct {
	request                            int
	id, handlerKey                     string
	sequence                           int64
	poisoned, waiting, processing, due bool
	laneHeld                           bool
}

// firsts returns the first row of each lane under all its names, by request; lanes without rows are missing. Poisoned
// rows count unless lanes skip them.
func (s *Store) firsts(ctx context.Context, pool gorm.ConnPool, requests []store.LaneRequest, now time.Time) (
	map[int]first, error,
) {
	firsts := map[int]first{}
	var lanes mysqldialect.List
	var parts []string
	var args []any
	for i, request := range requests {
		lanes = append(lanes, request.Key)
		for _, name := range request.Handlers {
			for _, poisoned := range []int{0, 1} {
				if poisoned == 0 || !request.SkipPoisoned {
					parts = append(parts, firstSQL)
					args = append(args, i, mysqldialect.Time(now), name, request.Key, poisoned)
				}
			}
		}
	}
	const each = 5 // arguments
	for at := 0; at < len(parts); at += longestList {
		end := min(at+longestList, len(parts))
		rows, err := store.Query(ctx, pool, s.Text(strings.Join(parts[at:end], " UNION ALL ")),
			func(rows *sql.Rows, f *first) error {
				return rows.Scan(&f.request, &f.id, &f.handlerKey, &f.sequence, &f.poisoned, &f.waiting, &f.processing, &f.due)
			}, args[at*each:end*each]...)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			known, found := firsts[row.request]
			if !found || cmp.Or(cmp.Compare(row.sequence, known.sequence), cmp.Compare(row.id, known.id)) < 0 {
				firsts[row.request] = row
			}
		}
	}
	held := map[store.Lane]bool{}
	for part := range slices.Chunk(lanes, longestList) {
		rows, err := store.Query(ctx, pool, s.Text(heldSQL), func(rows *sql.Rows, l *store.Lane) error {
			return rows.Scan(&l.Handler, &l.Key)
		}, part)
		if err != nil {
			return nil, err
		}
		for _, lane := range rows {
			held[lane] = true
		}
	}
	for i, f := range firsts {
		f.laneHeld = slices.ContainsFunc(requests[i].Handlers, func(name int64) bool {
			return held[store.Lane{Handler: name, Key: requests[i].Key}]
		})
		firsts[i] = f
	}
	return firsts, nil
}

// lockSeen locks the rows that are still as they were read, and leaves out those that another transaction has locked.
func (s *Store) lockSeen(ctx context.Context, pool gorm.ConnPool, rows []seen) (locked []seen, err error) {
	for part := range slices.Chunk(rows, longestList) {
		var ids mysqldialect.List
		var versions mysqldialect.Rows
		for _, row := range part {
			ids, versions = append(ids, row.StatusID), append(versions, []any{row.StatusID, row.Version})
		}
		found, err := store.Query(ctx, pool, s.Text(lockSeenSQL), store.Value[string], ids, versions)
		if err != nil {
			return nil, err
		}
		for _, row := range part {
			if slices.Contains(found, row.StatusID) {
				locked = append(locked, row)
			}
		}
	}
	return locked, nil
}

// mark marks rows as waiting that a claim has passed over.
func (s *Store) mark(ctx context.Context, pool gorm.ConnPool, limit store.KeyLimit, passed []seen,
	claimed *store.Claimed, marked *[]store.LaneRequest,
) error {
	locked, err := s.lockSeen(ctx, pool, passed)
	if err != nil || len(locked) == 0 {
		return err
	}
	lanes := map[store.Lane]bool{}
	for part := range slices.Chunk(locked, longestList) {
		var ids mysqldialect.List
		for _, row := range part {
			ids = append(ids, row.StatusID)
			if !lanes[*row.Lane] {
				lanes[*row.Lane] = true
				*marked = append(*marked, limit.Lanes.Request(*row.Lane))
			}
		}
		if _, err := store.Exec(ctx, pool, s.Text(markSQL), ids); err != nil {
			return err
		}
	}
	claimed.More = append(claimed.More, limit.HandlerKey)
	return nil
}

// lanesSQL reads the indexes on waiting lanes and on lanes. The optimizer makes no range of a comparison with a row of
// another table, so each step of a loose scan is a statement.
var lanesSQL = base.LaneStatements{
	ByStep: true,
	Waiting: `
SELECT lane_key FROM {statuses} FORCE INDEX (lane_waiting) WHERE lane_waiting = $2 AND lane_key > $1 ORDER BY lane_key LIMIT 1`,
	WaitingHandlers: `
SELECT lane_waiting FROM {statuses} FORCE INDEX (lane_waiting) WHERE lane_waiting > $1 ORDER BY lane_waiting LIMIT 1`,
	Handlers: `SELECT lane_open FROM {statuses} FORCE INDEX (lane) WHERE lane_open > $1 ORDER BY lane_open LIMIT 1`,
	HandlerKeys: `
SELECT DISTINCT handler_key FROM (
	SELECT handler_key FROM {statuses} FORCE INDEX (lane) WHERE lane_open = $1
	ORDER BY lane_open DESC, lane_key DESC, is_poisoned DESC, sequence DESC, id DESC LIMIT $2
) s`,
}

func (s *Store) AdvanceLanes(ctx context.Context, requests []store.LaneRequest, now time.Time) ([]string, error) {
	advanced, err := s.ClaimNext(ctx, "", requests, now)
	return advanced.More, err
}

func (s *Store) ClaimNext(ctx context.Context, workerID string, requests []store.LaneRequest, now time.Time) (
	advanced store.Claimed, err error,
) {
	if len(requests) == 0 {
		return advanced, nil
	}
	err = s.retrying(ctx, func(pool gorm.ConnPool) (err error) {
		advanced = store.Claimed{}
		claims := workerID != ""
		if claims {
			if claims, err = s.lockWorker(ctx, pool, workerID, false); err != nil {
				return err
			}
		}
		var next, waiting mysqldialect.List
		firsts, err := s.firsts(ctx, pool, requests, now)
		if err != nil {
			return err
		}
		for i, f := range firsts {
			switch {
			case f.poisoned || f.processing || f.laneHeld:
			case claims && requests[i].ClaimKey == f.handlerKey && f.due:
				next = append(next, f.id)
			case f.waiting:
				waiting = append(waiting, f.id)
			case f.due:
				advanced.More = append(advanced.More, f.handlerKey)
			}
		}
		if len(waiting) > 0 {
			if err := s.free(ctx, pool, waiting, &advanced); err != nil {
				return err
			}
		}
		if len(next) > 0 {
			return s.claimNext(ctx, pool, workerID, next, now, &advanced)
		}
		return nil
	})
	if err != nil {
		return store.Claimed{}, base.Doing("advance lanes", err)
	}
	base.SortClaims(advanced.Claims)
	advanced.More = base.Distinct(advanced.More)
	return advanced, nil
}

// lockFirstsSQL locks rows by the primary key, and reads them as they are now.
const lockFirstsSQL = `
SELECT id, handler_key, is_waiting, completed_at IS NULL AND NOT is_poisoned AND processing_started_at IS NULL
	AND (next_attempt_at IS NULL OR next_attempt_at <= ?2)
FROM {statuses} FORCE INDEX (PRIMARY) WHERE id IN ({list ?1}) ORDER BY id FOR UPDATE`

type lockedFirst struct {
	id, handlerKey    string
	waiting, runnable bool
}

func (s *Store) lockFirsts(ctx context.Context, pool gorm.ConnPool, ids mysqldialect.List, now time.Time) (
	[]lockedFirst, error,
) {
	return store.Query(ctx, pool, s.Text(lockFirstsSQL), func(rows *sql.Rows, f *lockedFirst) error {
		return rows.Scan(&f.id, &f.handlerKey, &f.waiting, &f.runnable)
	}, ids, now)
}

func (s *Store) free(ctx context.Context, pool gorm.ConnPool, ids mysqldialect.List, advanced *store.Claimed) error {
	locked, err := s.lockFirsts(ctx, pool, ids, time.Time{})
	if err != nil {
		return err
	}
	var free mysqldialect.List
	for _, f := range locked {
		if f.waiting {
			free = append(free, f.id)
			advanced.More = append(advanced.More, f.handlerKey)
		}
	}
	if len(free) > 0 {
		_, err = store.Exec(ctx, pool, s.Text(freeSQL), free)
	}
	return err
}

func (s *Store) claimNext(ctx context.Context, pool gorm.ConnPool, workerID string, ids mysqldialect.List,
	now time.Time, advanced *store.Claimed,
) error {
	locked, err := s.lockFirsts(ctx, pool, ids, now)
	if err != nil {
		return err
	}
	var runnable mysqldialect.List
	for _, f := range locked {
		if f.runnable {
			runnable = append(runnable, f.id)
		}
	}
	if len(runnable) == 0 {
		return nil
	}
	advanced.Claims, err = store.Query(ctx, pool, s.Text(claimNextSQL), scanClaim, runnable)
	if err == nil {
		err = s.take(ctx, pool, store.ClaimRequest{WorkerID: workerID, Now: now}, advanced.Claims, true)
	}
	if err == nil {
		err = s.attachMessages(ctx, pool, advanced.Claims)
	}
	return err
}

// waitingSQL finds waiting rows of a key by the index on parked rows, and skips locked ones: they are changing anyway.
const waitingSQL = `
SELECT id FROM {statuses} FORCE INDEX (parked) WHERE parked = 2 AND handler_key = ?1 ORDER BY id LIMIT ?2 FOR UPDATE SKIP LOCKED`

func (s *Store) ReleaseWaiting(ctx context.Context, handlerKeys []string, limit int) (released int64, err error) {
	err = s.retrying(ctx, func(pool gorm.ConnPool) error {
		released = 0
		for _, key := range handlerKeys {
			ids, err := store.Query(ctx, pool, s.Text(waitingSQL), store.Value[string], key, limit-int(released))
			if err != nil {
				return err
			}
			for part := range slices.Chunk(ids, longestList) {
				if _, err := store.Exec(ctx, pool, s.Text(freeSQL), listOf(part)); err != nil {
					return err
				}
			}
			released += int64(len(ids))
		}
		return nil
	})
	return released, base.Doing("release waiting statuses", err)
}
