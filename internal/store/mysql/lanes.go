package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"math/bits"
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

// firstSQL reads by the index on lanes the first row of a lane's name, poisoned or not, and by the unique key on
// claimed lanes whether a row of this name is claimed. A list of lanes would be read as the whole of that key.
const firstSQL = `(SELECT ? AS request, id, handler_key, sequence, is_poisoned, is_waiting, processing_started_at IS NOT NULL,
	next_attempt_at IS NULL OR next_attempt_at <= ?,
	EXISTS (SELECT 1 FROM {statuses} FORCE INDEX (lane_holder) WHERE lane_held = ? AND lane_handler = ?)
FROM {statuses} FORCE INDEX (lane)
WHERE lane_open = ? AND lane_key = ? AND is_poisoned = ? ORDER BY sequence, id LIMIT 1)`

// markSQL and freeSQL use the primary key. The rows are locked.
const (
	markSQL = `UPDATE {statuses} FORCE INDEX (PRIMARY) SET is_waiting = 1, version = version + 1 WHERE id IN ({list ?1})`

	freeSQL = `UPDATE {statuses} FORCE INDEX (PRIMARY) SET is_waiting = 0, version = version + 1 WHERE id IN ({list ?1})`
)

// claimNextSQL reads rows that are locked.
const claimNextSQL = `
SELECT ` + claimColumns + ` FROM {statuses} FORCE INDEX (PRIMARY) WHERE id IN ({list ?1})`

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
	statement, args := within(windowSQL, req, limit.HandlerKey, 2*limit.Limit+base.LaneWindow, nil)
	rows, err := store.Query(ctx, pool, s.Text(statement), func(rows *sql.Rows, r *seen) error {
		return scanClaimAnd(rows, &r.Claim, &r.sequence)
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
	if len(passed) > limit.Limit && !(limit.Runs && len(heads) > 0) {
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
	var args []any
	for i, request := range requests {
		for _, name := range request.Handlers {
			for _, poisoned := range []int{0, 1} {
				if poisoned == 0 || !request.SkipPoisoned {
					args = append(args, i, mysqldialect.Time(now), request.Key, name, name, request.Key, poisoned)
				}
			}
		}
	}
	if len(args) == 0 {
		return firsts, nil
	}
	rows, err := union(ctx, s, pool, firstSQL, args, args[len(args)-7:], func(rows *sql.Rows, f *first) error {
		return rows.Scan(&f.request, &f.id, &f.handlerKey, &f.sequence, &f.poisoned, &f.waiting, &f.processing, &f.due,
			&f.laneHeld)
	})
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		known, found := firsts[row.request]
		held := row.laneHeld || known.laneHeld
		if found && cmp.Or(cmp.Compare(known.sequence, row.sequence), cmp.Compare(known.id, row.id)) < 0 {
			row = known
		}
		row.laneHeld = held
		firsts[row.request] = row
	}
	return firsts, nil
}

// union runs a query for each part of the arguments, many in one statement, and returns all rows. The number of parts
// is filled up to a power of two by parts with the arguments of filler: texts of statements are kept, so there must be
// few.
func union[T any](ctx context.Context, s *Store, pool gorm.ConnPool, part string, args, filler []any,
	scan func(*sql.Rows, *T) error,
) (all []T, err error) {
	const most, between = 512, " UNION ALL "
	each := len(filler)
	for these := range slices.Chunk(args, each*most) {
		n := 1 << bits.Len(uint(len(these)/each-1))
		for these = slices.Clip(these); len(these) < each*n; {
			these = append(these, filler...)
		}
		rows, err := store.Query(ctx, pool, s.Text(strings.Repeat(between+part, n)[len(between):]), scan, these...)
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
	}
	return all, nil
}

// lockSeen locks the rows that are still as they were read, and leaves out those that another transaction has locked.
func (s *Store) lockSeen(ctx context.Context, pool gorm.ConnPool, rows []seen) (locked []seen, err error) {
	wanted := make([]versioned, len(rows))
	for i, row := range rows {
		wanted[i] = versioned{row.StatusID, row.Version}
	}
	found, err := s.lockVersioned(ctx, pool, lockingBy(lockVersionedSQL, store.SkipLocked), wanted)
	for i, is := range found {
		if is {
			locked = append(locked, rows[i])
		}
	}
	return locked, err
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
	var ids mysqldialect.List
	for _, row := range locked {
		ids = append(ids, row.StatusID)
		if !lanes[*row.Lane] {
			lanes[*row.Lane] = true
			*marked = append(*marked, limit.Lanes.Request(*row.Lane))
		}
	}
	claimed.More = append(claimed.More, limit.HandlerKey)
	_, err = execAll(ctx, s, pool, markSQL, ids)
	return err
}

// lanesSQL reads the indexes on waiting lanes and on lanes. The optimizer makes no range of a comparison with a row of
// another table, so each step of a loose scan is a statement.
var lanesSQL = base.LaneStatements{
	ByStep: true,
	Waiting: `
SELECT lane_key FROM {statuses} FORCE INDEX (lane_waiting)
WHERE lane_waiting = $2 AND lane_key > $1 AND created_at IS NOT NULL ORDER BY lane_key LIMIT 1`,
	WaitingHandlers: `
SELECT lane_waiting FROM {statuses} FORCE INDEX (lane_waiting)
WHERE lane_waiting > $1 AND created_at IS NOT NULL ORDER BY lane_waiting LIMIT 1`,
	Handlers: `
SELECT lane_open FROM {statuses} FORCE INDEX (lane) WHERE lane_open > $1 AND created_at IS NOT NULL ORDER BY lane_open LIMIT 1`,
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
		next := map[string]bool{}
		var ids []string
		firsts, err := s.firsts(ctx, pool, requests, now)
		if err != nil {
			return err
		}
		for i, f := range firsts {
			switch {
			case f.poisoned || f.processing || f.laneHeld:
			case claims && requests[i].ClaimKey == f.handlerKey && f.due:
				next[f.id], ids = true, append(ids, f.id)
			case f.waiting:
				ids = append(ids, f.id)
			case f.due:
				advanced.More = append(advanced.More, f.handlerKey)
			}
		}
		slices.Sort(ids)
		var free, runnable mysqldialect.List
		_, err = queryAll(ctx, s, pool, lockFirstsSQL, func(rows *sql.Rows, _ *struct{}) error {
			var id, handlerKey string
			var waits, runs bool
			err := rows.Scan(&id, &handlerKey, &waits, &runs)
			switch {
			case next[id] && runs:
				runnable = append(runnable, id)
			case !next[id] && waits:
				free, advanced.More = append(free, id), append(advanced.More, handlerKey)
			}
			return err
		}, listOf(ids), now)
		if err == nil {
			_, err = execAll(ctx, s, pool, freeSQL, free)
		}
		if err == nil {
			advanced.Claims, err = queryAll(ctx, s, pool, claimNextSQL, scanClaim, runnable)
		}
		if err == nil {
			err = s.take(ctx, pool, store.ClaimRequest{WorkerID: workerID, Now: now}, advanced.Claims, true)
		}
		if err == nil {
			err = s.attachMessages(ctx, pool, advanced.Claims)
		}
		return err
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

// headsSQL reads the heads of runs by the primary key. They are locked.
const headsSQL = `
SELECT id, sequence FROM {statuses} FORCE INDEX (PRIMARY) WHERE id IN ({list ?1}) AND holds_lane = 1`

// followersSQL reads the rows of a lane's name that follow a head, poisoned or not, by the index on lanes.
const followersSQL = `(SELECT ` + claimColumns + `, ? AS run, sequence, handler_key = ? AND is_poisoned = 0 AND processing_started_at IS NULL
	AND abandoned_count = 0 AND interrupted_count = 0 AND (next_attempt_at IS NULL OR next_attempt_at <= ?)
FROM {statuses} FORCE INDEX (lane)
WHERE lane_open = ? AND lane_key = ? AND is_poisoned = ? AND sequence >= ? AND (sequence > ? OR id > ?) ORDER BY sequence, id LIMIT ?)`

func (s *Store) ClaimRuns(ctx context.Context, workerID string, runs []store.RunRequest, now time.Time) (
	claims []store.Claim, err error,
) {
	if len(runs) == 0 {
		return nil, nil
	}
	err = s.retrying(ctx, func(pool gorm.ConnPool) error {
		claims = nil
		lives, err := s.lockWorker(ctx, pool, workerID, false)
		if err != nil || !lives {
			return err
		}
		sequences, err := s.lockHeldHeads(ctx, pool, runs)
		if err != nil {
			return err
		}
		rows, err := s.followers(ctx, pool, runs, sequences, now)
		if err != nil {
			return err
		}
		// This must be read after the followers: a row before the head may be committed before one of these was stored.
		lanes := make([]store.LaneRequest, len(runs))
		for i, run := range runs {
			lanes[i] = run.LaneRequest
		}
		firsts, err := s.firsts(ctx, pool, lanes, now)
		if err != nil {
			return err
		}
		rows = slices.DeleteFunc(rows, func(row base.Follower) bool {
			return firsts[row.Run].id != runs[row.Run].Head.StatusID
		})
		rows = base.ClaimableRuns(runs, rows)
		wanted := make([]versioned, len(rows))
		for i, row := range rows {
			wanted[i] = versioned{row.Claim.StatusID, row.Claim.Version}
		}
		is, err := s.lockVersioned(ctx, pool, lockingBy(lockVersionedSQL, store.SkipLocked), wanted)
		if err != nil {
			return err
		}
		for i := range rows {
			rows[i].Free = is[i]
		}
		for _, row := range base.ClaimableRuns(runs, rows) {
			claims = append(claims, row.Claim)
		}
		if err = s.take(ctx, pool, store.ClaimRequest{WorkerID: workerID, Now: now}, claims, false); err == nil {
			err = s.attachMessages(ctx, pool, claims)
		}
		return err
	})
	if err != nil {
		return nil, base.Doing("claim runs of lanes", err)
	}
	return claims, nil
}

// lockHeldHeads locks the heads of runs that still hold their lanes, and returns their sequences by ID. Those that
// others have locked are left out.
func (s *Store) lockHeldHeads(ctx context.Context, pool gorm.ConnPool, runs []store.RunRequest) (
	sequences map[string]int64, err error,
) {
	wanted := make([]versioned, len(runs))
	for i, run := range runs {
		wanted[i] = versioned{run.Head.StatusID, run.Head.Version}
	}
	is, err := s.lockVersioned(ctx, pool, lockingBy(lockVersionedSQL, store.SkipLocked), wanted)
	if err != nil {
		return nil, err
	}
	var ids mysqldialect.List
	for i, run := range runs {
		if is[i] {
			ids = append(ids, run.Head.StatusID)
		}
	}
	sequences = map[string]int64{}
	if len(ids) == 0 {
		return sequences, nil
	}
	_, err = queryAll(ctx, s, pool, headsSQL, func(rows *sql.Rows, _ *struct{}) error {
		var id string
		var sequence int64
		err := rows.Scan(&id, &sequence)
		sequences[id] = sequence
		return err
	}, ids)
	return sequences, err
}

func (s *Store) followers(ctx context.Context, pool gorm.ConnPool, runs []store.RunRequest, sequences map[string]int64,
	now time.Time,
) ([]base.Follower, error) {
	var args, last []any
	for i, run := range runs {
		sequence, holds := sequences[run.Head.StatusID]
		if !holds || run.Limit < 1 {
			continue
		}
		for _, name := range run.Handlers {
			for _, poisoned := range []int{0, 1} {
				if poisoned == 0 || !run.SkipPoisoned {
					last = []any{i, run.ClaimKey, mysqldialect.Time(now), name, run.Key, poisoned, sequence, sequence,
						run.Head.StatusID, run.Limit}
					args = append(args, last...)
				}
			}
		}
	}
	if len(args) == 0 {
		return nil, nil
	}
	nothing := append(slices.Clone(last[:len(last)-1]), 0)
	return union(ctx, s, pool, followersSQL, args, nothing, func(rows *sql.Rows, f *base.Follower) error {
		return scanClaimAnd(rows, &f.Claim, &f.Run, &f.Sequence, &f.Free)
	})
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
			if _, err := execAll(ctx, s, pool, freeSQL, listOf(ids)); err != nil {
				return err
			}
			released += int64(len(ids))
		}
		return nil
	})
	return released, base.Doing("release waiting statuses", err)
}
