package simulated

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/sqlite"
)

// isDueSQL is the condition of a due row. A new status is due by the later of two clocks, ?2, a retry by the claimer's,
// ?3. The row is after one place, not after another, and among some IDs.
const isDueSQL = `handler_key = ?1 AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
			AND processing_started_at IS NULL AND COALESCE(next_attempt_at, created_at) <= ?2
			AND (next_attempt_at IS NULL OR next_attempt_at <= ?3)
			AND COALESCE(next_attempt_at, created_at) >= ?4 AND (COALESCE(next_attempt_at, created_at) > ?4 OR id > ?5)
			AND COALESCE(next_attempt_at, created_at) <= ?6 AND (COALESCE(next_attempt_at, created_at) < ?6 OR id <= ?7)
			AND (?8 IS NULL OR id IN (SELECT value FROM json_each(?8)))`

// dueSQL locks the first due rows of a key that no other transaction has locked.
const dueSQL = `
SELECT id, due FROM (
	SELECT id, rowid AS place, COALESCE(next_attempt_at, created_at) AS due FROM {statuses} WHERE ` + isDueSQL + `
	ORDER BY COALESCE(next_attempt_at, created_at), id LIMIT -1
) WHERE lock_row('{statuses}', place, 2, ` + free + ` LIMIT ?9`

// windowSQL are the first due rows of a key that is ordered.
const windowSQL = `(
		SELECT id, rowid AS place, version, sequence, lane_handler, lane_key, COALESCE(next_attempt_at, created_at) AS due
		FROM {statuses} WHERE ` + isDueSQL + `
		ORDER BY COALESCE(next_attempt_at, created_at), id LIMIT ?9
	) w`

// headsSQL locks the rows of the window that are first in their lanes. Nothing is locked before it is judged.
const headsSQL = `
SELECT id, due FROM (SELECT w.* FROM ` + windowSQL + ` WHERE ` + headSQL + ` LIMIT -1)
WHERE lock_row('{statuses}', place, 2, ` + free + ` LIMIT ?12`

// passedSQL are the others.
const passedSQL = `SELECT w.id, w.version FROM ` + windowSQL + ` WHERE NOT ` + headSQL

// headSQL is true if row w is first in its lane, under any of the handler's names, and no row of the lane is claimed.
const headSQL = `(w.lane_key IS NULL OR NOT EXISTS (
		SELECT 1 FROM {statuses} p
		WHERE p.lane_handler IN (SELECT value FROM json_each(?10) UNION ALL SELECT w.lane_handler) AND p.lane_key = w.lane_key
			AND (p.holds_lane OR p.completed_at IS NULL AND NOT (p.is_poisoned AND ?11) AND (p.sequence, p.id) < (w.sequence, w.id))
	))`

// markSQL marks rows as waiting that are at their version and not locked.
const markSQL = `
UPDATE {statuses} SET is_waiting = true, version = version + 1
WHERE rowid IN (SELECT place FROM (
	SELECT s.rowid AS place FROM json_each(?1) k
	JOIN {statuses} s ON s.id = json_extract(k.value, '$[0]') AND s.version = json_extract(k.value, '$[1]') AND ` + base.OpenSQL + `
	LIMIT -1
) WHERE lock_row('{statuses}', place, 2, ` + free + `)
RETURNING lane_handler, lane_key`

// startedSQL states the claimer's time, see Claim.
const startedSQL = `UPDATE {statuses} SET processing_started_at = ?2 WHERE id IN (SELECT value FROM json_each(?1)) AND ` + base.OpenSQL

type place struct{ id, due string }

func scanPlace(rows *sql.Rows, p *place) error { return rows.Scan(&p.id, &p.due) }

// Claim locks the rows that are to be claimed, and has SQLite's statement claim these.
func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (claimed store.Claimed, err error) {
	var lanes []store.LaneRequest
	err = retried(ctx, func() error {
		return s.within(ctx, func(in *sqlite.Store) (err error) {
			lanes, claimed = nil, store.Claimed{}
			worker, err := s.lockWorker(ctx, in.Pool(ctx), req.WorkerID)
			if err != nil || worker != req.WorkerID {
				return err
			}
			for _, limit := range req.Limits {
				if limit.Limit > 0 && err == nil {
					var marked []store.LaneRequest
					marked, err = s.claimKey(ctx, in, req, limit, &claimed)
					lanes = append(lanes, marked...)
				}
			}
			return err
		})
	})
	if err != nil {
		return store.Claimed{}, base.Doing("claim", err)
	}
	base.SortClaims(claimed.Claims)
	// The row before a marked one may have ended since it was judged, and who ended it may not have seen the mark.
	keys, err := s.AdvanceLanes(ctx, lanes, req.Now)
	claimed.LanesErr = err
	claimed.More = base.Distinct(append(claimed.More, keys...))
	return claimed, nil
}

// claimKey claims rows of one key, and returns the lanes of which it has marked rows as waiting.
func (s *Store) claimKey(ctx context.Context, in *sqlite.Store, req store.ClaimRequest, limit store.KeyLimit,
	claimed *store.Claimed,
) (marked []store.LaneRequest, err error) {
	within := store.Window{}
	var ids any
	if req.Within != nil {
		within, ids = *req.Within, base.JSONList(req.Within.StatusIDs)
	}
	ordered := limit.Lanes != nil
	after := within.After
	if limit.After != nil && !ordered {
		after = limit.After
	}
	now, reach := store.SQLiteTime(req.Now), store.SQLiteTime(s.reach(req.Now))
	begin, beginID := placed(after, "")
	end, endID := placed(within.End, "~")
	args := []any{limit.HandlerKey, reach, now, begin, beginID, end, endID, ids}
	statement := dueSQL
	window := 2*limit.Limit + base.LaneWindow
	if ordered {
		statement = headsSQL
		args = append(args, window, base.JSONList(limit.Lanes.Handlers), limit.Lanes.SkipPoisoned)
	}
	pool := in.Pool(ctx)
	found, err := store.Query(ctx, pool, s.Text(statement), scanPlace, append(args, limit.Limit)...)
	if err != nil {
		return nil, err
	}
	got, err := s.claimLocked(ctx, in, req, limit, found)
	if err != nil {
		return nil, err
	}
	claimed.Claims, claimed.More = append(claimed.Claims, got.Claims...), append(claimed.More, got.More...)
	if !ordered {
		if limit.After != nil && len(got.Claims) < limit.Limit {
			claimed.More = append(claimed.More, limit.HandlerKey)
		}
		return nil, nil
	}
	if limit.Runs && len(found) > 0 {
		return nil, nil
	}
	args[8] = window - len(got.Claims)
	if len(found) == limit.Limit { // no further than it has read
		args[5], args[6] = found[len(found)-1].due, found[len(found)-1].id
	}
	passed, err := store.Query(ctx, pool, s.Text(passedSQL), func(rows *sql.Rows, p *[2]any) error {
		return rows.Scan(&p[0], &p[1])
	}, args...)
	if err != nil || len(passed) <= limit.Limit {
		return nil, err
	}
	lanes, err := store.Query(ctx, pool, s.Text(markSQL), func(rows *sql.Rows, l *store.Lane) error {
		return rows.Scan(&l.Handler, &l.Key)
	}, base.JSONList(passed))
	seen := map[store.Lane]bool{}
	for _, lane := range lanes {
		if !seen[lane] {
			marked = append(marked, limit.Lanes.Request(lane))
		}
		seen[lane] = true
	}
	if len(marked) > 0 {
		claimed.More = append(claimed.More, limit.HandlerKey)
	}
	return marked, err
}

// claimLocked claims rows that are locked. SQLite's statement takes one time for when they are due and for when the
// claim began: where the claimer's clock is behind, it gets the former, and the latter is corrected.
func (s *Store) claimLocked(
	ctx context.Context, in *sqlite.Store, req store.ClaimRequest, limit store.KeyLimit, found []place,
) (store.Claimed, error) {
	if len(found) == 0 {
		return store.Claimed{}, nil
	}
	window, now := store.Window{}, req.Now
	for _, row := range found {
		window.StatusIDs = append(window.StatusIDs, row.id)
		var due store.Stamp
		if err := due.Scan(row.due); err != nil {
			return store.Claimed{}, fmt.Errorf("read when a status is due: %w", err)
		}
		if due.After(now) {
			now = due.Time
		}
	}
	claimed, err := in.Claim(ctx, store.ClaimRequest{WorkerID: req.WorkerID, Now: now,
		Limits: []store.KeyLimit{limit}, Within: &window})
	if err == nil && !now.Equal(req.Now) {
		_, err = store.Exec(ctx, in.Pool(ctx), s.Text(startedSQL), base.JSONList(window.StatusIDs),
			store.SQLiteTime(req.Now))
	}
	return claimed, err
}

// placed returns a place as the index of due rows has it; none for no place.
func placed(p *store.Place, none string) (due, id string) {
	if p == nil {
		return none, none
	}
	return cmp.Or(p.Stored, store.SQLiteTime(p.Due)), p.StatusID
}

// NextWindow reads new statuses by the later of two clocks.
func (s *Store) NextWindow(
	ctx context.Context, handlerKey string, after *store.Place, leave []string, now time.Time,
) (store.Window, error) {
	return s.Store.NextWindow(ctx, handlerKey, after, leave, s.reach(now))
}

// AdvanceLanes is ClaimNext without a claim.
func (s *Store) AdvanceLanes(ctx context.Context, requests []store.LaneRequest, now time.Time) ([]string, error) {
	advanced, err := s.ClaimNext(ctx, "", requests, now)
	return advanced.More, err
}

// ClaimNext keeps the worker from being marked as released meanwhile.
func (s *Store) ClaimNext(
	ctx context.Context, workerID string, requests []store.LaneRequest, now time.Time,
) (advanced store.Claimed, err error) {
	if len(requests) == 0 {
		return advanced, nil
	}
	err = retried(ctx, func() error {
		return s.within(ctx, func(in *sqlite.Store) error {
			worker, err := s.lockWorker(ctx, in.Pool(ctx), workerID)
			if err == nil {
				advanced, err = in.ClaimNext(ctx, worker, requests, now)
			}
			return err
		})
	})
	return advanced, err
}

// lockHeadSQL locks the head of a run, if it is as it was claimed and no other transaction has locked it.
const lockHeadSQL = `
SELECT id FROM (SELECT id, rowid AS place FROM {statuses} WHERE id = ?1 AND version = ?2 AND holds_lane LIMIT -1)
WHERE lock_row('{statuses}', place, 2, ` + free

// lockFollowersSQL locks the rows that follow a head in its lane, and says of each whether that was possible.
const lockFollowersSQL = `
SELECT lock_row('{statuses}', place, 2, ` + free + ` FROM (
	SELECT f.rowid AS place FROM {statuses} h JOIN {statuses} f ON f.lane_handler IN (SELECT value FROM json_each(?2))
		AND f.lane_key = h.lane_key AND f.completed_at IS NULL AND NOT (f.is_poisoned AND ?3)
		AND (f.sequence, f.id) > (h.sequence, h.id)
	WHERE h.id = ?1 ORDER BY f.sequence, f.id LIMIT ?4
)`

// lockRuns locks the rows of runs that no other transaction has locked, and returns the runs as far as they are.
func (s *Store) lockRuns(ctx context.Context, pool gorm.ConnPool, runs []store.RunRequest) ([]store.RunRequest, error) {
	var locked []store.RunRequest
	for _, run := range runs {
		heads, err := store.Query(ctx, pool, s.Text(lockHeadSQL), store.Value[string], run.Head.StatusID, run.Head.Version)
		if err != nil {
			return nil, err
		}
		if len(heads) == 0 {
			continue
		}
		rows, err := store.Query(ctx, pool, s.Text(lockFollowersSQL), store.Value[bool], run.Head.StatusID,
			base.JSONList(run.Handlers), run.SkipPoisoned, run.Limit)
		if err != nil {
			return nil, err
		}
		if busy := slices.Index(rows, false); busy >= 0 {
			run.Limit = busy
		}
		locked = append(locked, run)
	}
	return locked, nil
}

// ClaimRuns keeps the worker from being marked as released meanwhile.
func (s *Store) ClaimRuns(
	ctx context.Context, workerID string, runs []store.RunRequest, now time.Time,
) (claims []store.Claim, err error) {
	if len(runs) == 0 {
		return nil, nil
	}
	err = retried(ctx, func() error {
		return s.within(ctx, func(in *sqlite.Store) error {
			worker, err := s.lockWorker(ctx, in.Pool(ctx), workerID)
			if err != nil {
				return err
			}
			locked, err := s.lockRuns(ctx, in.Pool(ctx), runs)
			if err == nil {
				claims, err = in.ClaimRuns(ctx, worker, locked, now)
			}
			return err
		})
	})
	return claims, err
}

// releaseWaitingSQL passes over rows that others have locked.
const releaseWaitingSQL = `
UPDATE {statuses} SET is_waiting = false, version = version + 1
WHERE rowid IN (SELECT place FROM (
	SELECT rowid AS place FROM {statuses} WHERE is_waiting AND handler_key IN (SELECT value FROM json_each(?1)) LIMIT -1
) WHERE lock_row('{statuses}', place, 2, ` + free + ` LIMIT ?2)`

// ReleaseWaiting passes over rows that others have locked.
func (s *Store) ReleaseWaiting(ctx context.Context, handlerKeys []string, limit int) (int64, error) {
	released, err := store.Exec(ctx, s.Pool(ctx), s.Text(releaseWaitingSQL), base.JSONList(handlerKeys), limit)
	return released, base.Doing("release waiting statuses", err)
}
