package sqlite

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
)

// claimHeadsSQL claims rows of a key with lanes. It reads a window of the key's due rows by the due index and judges
// each by the index on lanes, until it has as many as the limit.
const claimHeadsSQL = `
UPDATE {statuses} SET processing_started_at = ?1, worker_id = ?2, version = version + 1, holds_lane = lane_key IS NOT NULL
WHERE rowid IN (
	` + boundedSQL + `SELECT w.place, w.message_bytes FROM (
			SELECT rowid AS place, id, sequence, lane_handler, lane_key, message_bytes FROM {statuses}
			WHERE ` + isDueSQL + `
			ORDER BY COALESCE(next_attempt_at, created_at), id
			LIMIT ?5
		) w
		WHERE (?2 IS NULL OR EXISTS (SELECT 1 FROM {workers} WHERE id = ?2 AND released_at IS NULL)) AND ` + headSQL + `
		LIMIT ?4
	` + boundSQL + `
)
RETURNING ` + claimColumnsSQL + `, '=' || COALESCE(next_attempt_at, created_at)`

// headSQL is true if row w is first in its lane, under any of the handler's names, and no row of the lane is claimed.
// It uses the index on lanes and the index on claimed lanes.
const headSQL = `(w.lane_key IS NULL OR NOT (
		EXISTS (
			SELECT 1 FROM {statuses} p WHERE p.lane_handler IN ` + namesSQL + ` AND p.lane_key = w.lane_key
				AND p.completed_at IS NULL AND p.is_poisoned = 0 AND (p.sequence, p.id) < (w.sequence, w.id)
		) OR NOT ?7 AND EXISTS (
			SELECT 1 FROM {statuses} p WHERE p.lane_handler IN ` + namesSQL + ` AND p.lane_key = w.lane_key
				AND p.completed_at IS NULL AND p.is_poisoned = 1 AND (p.sequence, p.id) < (w.sequence, w.id)
		) OR EXISTS (
			SELECT 1 FROM {statuses} p WHERE p.lane_handler IN ` + namesSQL + ` AND p.lane_key = w.lane_key AND p.holds_lane
		)
	))`

const namesSQL = `(SELECT value FROM json_each(?6) UNION ALL SELECT w.lane_handler)`

// markWindowSQL marks the rows that a claim below its limit has passed over: the rest of its window, ?4 rows, by the
// due index. This transaction is the only writer, so none of these rows can be first now. They are marked only if they
// are more than ?5.
const markWindowSQL = `
WITH passed AS MATERIALIZED (
	SELECT rowid AS place FROM {statuses}
	WHERE ` + isDueSQL + ofLivingWorkerSQL + `
	ORDER BY COALESCE(next_attempt_at, created_at), id
	LIMIT ?4
)` + markSQL

// markPassedSQL marks the rows that a claim at its limit has passed over: the rows before the last row it claimed,
// whose ID is ?4 and which became due at ?1. It reads the due index in two ranges that end there: rows that became due
// earlier, and rows that became due at the same time. As one condition it would be a filter over all due rows. ?1 is
// the time as stored: a time that users wrote in another zone is sorted in the index by its text. The same moment in
// our format would include rows that this claim has not reached.
const markPassedSQL = `
WITH passed AS MATERIALIZED (
	SELECT rowid AS place FROM {statuses}
	WHERE ` + isPendingSQL + ` AND COALESCE(next_attempt_at, created_at) < ?1` + ofLivingWorkerSQL + `
	UNION ALL
	SELECT rowid FROM {statuses}
	WHERE ` + isPendingSQL + ` AND COALESCE(next_attempt_at, created_at) = ?1 AND id < ?4` + ofLivingWorkerSQL + `
)` + markSQL

const (
	ofLivingWorkerSQL = ` AND (?2 IS NULL OR EXISTS (SELECT 1 FROM {workers} WHERE id = ?2 AND released_at IS NULL))`

	markSQL = `
UPDATE {statuses} SET is_waiting = true, version = version + 1
WHERE rowid IN (SELECT place FROM passed) AND (SELECT count(*) FROM passed) > ?5`
)

// head is a claim with the stored text of its due time.
type head struct {
	store.Claim
	stored string
}

// claimHeads claims rows that are first in their lanes and reports whether it marked others as waiting. It need not
// check the lanes of the marked rows. This transaction sees all rows that ended before it, and a transaction that ends
// a row later sees the marks.
func (s *Store) claimHeads(
	ctx context.Context, pool gorm.ConnPool, now string, worker any, limit store.KeyLimit, w *store.Window,
) (claims []store.Claim, marked bool, err error) {
	window := 2*limit.Limit + base.LaneWindow
	statement, args := within(w, claimHeadsSQL, now, worker, limit.HandlerKey, limit.Limit, window,
		base.JSONList(limit.Lanes.Handlers), limit.Lanes.SkipPoisoned, limit.AtLeast, limit.EndsAt())
	heads, err := store.Query(ctx, pool, s.Text(statement), func(rows *sql.Rows, h *head) error {
		// The sign in front keeps a driver from parsing the time (modernc.org/sqlite under _texttotime).
		err := scanClaim(rows, &h.Claim, &h.stored)
		h.stored = strings.TrimPrefix(h.stored, "=")
		return err
	}, args...)
	if err != nil {
		return nil, false, err
	}
	for _, h := range heads {
		claims = append(claims, h.Claim)
	}
	base.SortClaims(claims)
	ended := false // at its bytes, so that rows of the window were not judged
	if limit.Bytes > 0 && len(claims) > 0 && len(claims) < limit.Limit {
		if err := s.attachMessages(ctx, pool, claims); err != nil {
			return nil, false, err
		}
		ended = len(base.Ended([]store.KeyLimit{limit}, claims)) > 0
	}
	if limit.Runs && len(heads) > 0 {
		return claims, false, nil
	}
	if len(heads) == limit.Limit || ended {
		last := slices.MaxFunc(heads, func(a, b head) int {
			return cmp.Or(cmp.Compare(a.stored, b.stored), cmp.Compare(a.StatusID, b.StatusID))
		})
		statement, args = within(w, markPassedSQL, last.stored, worker, limit.HandlerKey, last.StatusID, limit.Limit)
	} else {
		statement, args = within(w, markWindowSQL, now, worker, limit.HandlerKey, window-len(claims), limit.Limit)
	}
	changed, err := store.Exec(ctx, pool, s.Text(statement), args...)
	return claims, changed > 0, err
}

// firstsSQL finds the first row of each lane under each of its names by the index on lanes, separately for poisoned
// rows and the others. It checks by the index on claimed lanes whether a row of the lane is claimed.
const firstsSQL = `
SELECT t.key, f.id, f.handler_key, f.sequence, f.is_poisoned, f.is_waiting, f.processing_started_at IS NOT NULL, f.next_attempt_at IS NULL OR f.next_attempt_at <= ?2,
	EXISTS (
		SELECT 1 FROM {statuses} h WHERE h.lane_handler = n.value AND h.lane_key = json_extract(t.value, '$[1]') AND h.holds_lane
	)
FROM json_each(?1) t
JOIN json_each(t.value, '$[0]') n
JOIN (SELECT 0 AS is_poisoned UNION ALL SELECT 1) b
JOIN {statuses} f ON f.rowid = (
	SELECT p.rowid FROM {statuses} p
	WHERE p.lane_handler = n.value AND p.lane_key = json_extract(t.value, '$[1]') AND p.is_poisoned = b.is_poisoned AND p.completed_at IS NULL
	ORDER BY p.sequence, p.id LIMIT 1
)`

// freeSQL and claimNextSQL use the index on open statuses. They change only rows that are still as firstsSQL has found
// them.
const (
	freeSQL = `
UPDATE {statuses} SET is_waiting = false, version = version + 1
WHERE id IN (SELECT value FROM json_each(?1)) AND is_waiting AND ` + base.OpenSQL + `
RETURNING handler_key`

	claimNextSQL = `
UPDATE {statuses} SET processing_started_at = ?1, worker_id = ?2, version = version + 1, holds_lane = true, is_waiting = false
WHERE id IN (SELECT value FROM json_each(?3)) AND processing_started_at IS NULL AND is_poisoned = 0
	AND (next_attempt_at IS NULL OR next_attempt_at <= ?1) AND ` + base.OpenSQL + `
RETURNING ` + claimColumnsSQL
)

// first is a row of firstsSQL.
type first struct {
	request                                      int
	id, handlerKey                               string
	sequence                                     int64
	poisoned, waiting, processing, due, laneHeld bool
}

// AdvanceLanes reads first and writes in a separate transaction. If a released row is no longer first by then, the
// claim judges it again.
func (s *Store) AdvanceLanes(ctx context.Context, requests []store.LaneRequest, now time.Time) ([]string, error) {
	advanced, err := s.advance(ctx, s.Pool(ctx), "", requests, now)
	return advanced.More, base.Doing("advance lanes", err)
}

// ClaimNext reads and writes in one transaction, because no claim judges its rows again.
func (s *Store) ClaimNext(
	ctx context.Context, workerID string, requests []store.LaneRequest, now time.Time,
) (advanced store.Claimed, err error) {
	err = s.Transaction(ctx, func(pool gorm.ConnPool) (err error) {
		advanced, err = s.advance(ctx, pool, workerID, requests, now)
		return err
	})
	if err != nil {
		return store.Claimed{}, base.Doing("advance lanes", err)
	}
	return advanced, nil
}

func (s *Store) advance(
	ctx context.Context, pool gorm.ConnPool, workerID string, requests []store.LaneRequest, now time.Time,
) (advanced store.Claimed, err error) {
	if len(requests) == 0 {
		return advanced, nil
	}
	list, claims := make([][2]any, len(requests)), workerID != ""
	for i, request := range requests {
		list[i] = [2]any{append([]int64{}, request.Handlers...), request.Key}
	}
	rows, err := store.Query(ctx, pool, s.Text(firstsSQL), func(rows *sql.Rows, f *first) error {
		return rows.Scan(&f.request, &f.id, &f.handlerKey, &f.sequence, &f.poisoned, &f.waiting, &f.processing, &f.due,
			&f.laneHeld)
	}, base.JSONList(list), store.SQLiteTime(now))
	if err != nil {
		return advanced, err
	}
	if claims {
		lives, err := store.Query(ctx, pool, s.Text(workerLivesSQL), store.Value[string], workerID)
		if err != nil {
			return advanced, err
		}
		claims = len(lives) > 0
	}
	var waiting, next []string
	for i, f := range firstOf(rows, requests) {
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
		freed, err := store.Query(ctx, pool, s.Text(freeSQL), store.Value[string], base.JSONList(waiting))
		if err != nil {
			return advanced, err
		}
		advanced.More = append(advanced.More, freed...)
	}
	if len(next) > 0 {
		advanced.Claims, err = store.Query(ctx, pool, s.Text(claimNextSQL), func(rows *sql.Rows, c *store.Claim) error {
			return scanClaim(rows, c)
		}, store.SQLiteTime(now), workerID, base.JSONList(next))
		if err != nil {
			return advanced, err
		}
		base.SortClaims(advanced.Claims) // RETURNING promises no order
	}
	advanced.More = base.Distinct(advanced.More)
	return advanced, s.attachMessages(ctx, pool, advanced.Claims)
}

// followersSQL finds the heads of runs by the index on open statuses, and the rows that follow them by the index on
// lanes, poisoned ones apart, ?3 of each.
const followersSQL = `
SELECT ` + claimColumnsSQL + `, run, sequence, handler_key = wanted AND is_poisoned = 0 AND processing_started_at IS NULL
	AND abandoned_count = 0 AND interrupted_count = 0 AND (next_attempt_at IS NULL OR next_attempt_at <= ?2)
FROM (
	SELECT r.key AS run, json_extract(r.value, '$[2]') AS wanted, f.rowid AS place
	FROM json_each(?1) r
	JOIN {statuses} h ON h.id = json_extract(r.value, '$[0]') AND h.version = json_extract(r.value, '$[1]') AND h.holds_lane
		AND CASE WHEN h.completed_at IS NULL THEN true ELSE false END AND NOT EXISTS (
			SELECT 1 FROM {statuses} p WHERE p.lane_handler IN (SELECT value FROM json_each(r.value, '$[3]')) AND p.lane_key = h.lane_key
				AND p.completed_at IS NULL AND p.is_poisoned = 0 AND (p.sequence, p.id) < (h.sequence, h.id)
		) AND (json_extract(r.value, '$[4]') OR NOT EXISTS (
			SELECT 1 FROM {statuses} p WHERE p.lane_handler IN (SELECT value FROM json_each(r.value, '$[3]')) AND p.lane_key = h.lane_key
				AND p.completed_at IS NULL AND p.is_poisoned = 1 AND (p.sequence, p.id) < (h.sequence, h.id)
		))
	JOIN json_each(r.value, '$[3]') n
	JOIN (SELECT 0 AS poisoned UNION ALL SELECT 1) b ON b.poisoned = 0 OR NOT json_extract(r.value, '$[4]')
	JOIN {statuses} f ON f.rowid IN (
		SELECT p.rowid FROM {statuses} p
		WHERE p.lane_handler = n.value AND p.lane_key = h.lane_key AND p.is_poisoned = b.poisoned AND p.completed_at IS NULL
			AND (p.sequence, p.id) > (h.sequence, h.id)
		ORDER BY p.sequence, p.id LIMIT ?3
	)
) found JOIN {statuses} ON {statuses}.rowid = found.place`

// claimRunsSQL uses the index on open statuses. The rows are still as followersSQL has found them.
const claimRunsSQL = `
UPDATE {statuses} SET processing_started_at = ?1, worker_id = ?2, version = version + 1, is_waiting = false
WHERE id IN (SELECT value FROM json_each(?3)) AND ` + base.OpenSQL

// ClaimRuns reads and writes in one transaction. There is no other writer meanwhile.
func (s *Store) ClaimRuns(
	ctx context.Context, workerID string, runs []store.RunRequest, now time.Time,
) (claims []store.Claim, err error) {
	if len(runs) == 0 {
		return nil, nil
	}
	err = s.Transaction(ctx, func(pool gorm.ConnPool) (err error) {
		claims, err = s.claimRuns(ctx, pool, workerID, runs, store.SQLiteTime(now))
		return err
	})
	return claims, base.Doing("claim runs of lanes", err)
}

func (s *Store) claimRuns(
	ctx context.Context, pool gorm.ConnPool, workerID string, runs []store.RunRequest, now string,
) ([]store.Claim, error) {
	lives, err := store.Query(ctx, pool, s.Text(workerLivesSQL), store.Value[string], workerID)
	if err != nil || len(lives) == 0 {
		return nil, err
	}
	list, longest := make([][5]any, len(runs)), 0
	for i, run := range runs {
		list[i] = [5]any{run.Head.StatusID, run.Head.Version, run.ClaimKey, run.Handlers, run.SkipPoisoned}
		longest = max(longest, run.Limit)
	}
	rows, err := store.Query(ctx, pool, s.Text(followersSQL), func(rows *sql.Rows, f *base.Follower) error {
		return scanClaim(rows, &f.Claim, &f.Run, &f.Sequence, &f.Free)
	}, base.JSONList(list), now, longest)
	if err != nil {
		return nil, err
	}
	var claims []store.Claim
	var ids []string
	for _, row := range base.ClaimableRuns(runs, rows) {
		row.Claim.Version++
		claims, ids = append(claims, row.Claim), append(ids, row.Claim.StatusID)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	if _, err := store.Exec(ctx, pool, s.Text(claimRunsSQL), now, workerID, base.JSONList(ids)); err != nil {
		return nil, err
	}
	return claims, s.attachMessages(ctx, pool, claims)
}

// firstOf returns the first row of each lane among the rows of all its names.
func firstOf(rows []first, requests []store.LaneRequest) map[int]first {
	firsts, held := map[int]first{}, map[int]bool{}
	for _, row := range rows {
		held[row.request] = held[row.request] || row.laneHeld
		if row.poisoned && requests[row.request].SkipPoisoned {
			continue
		}
		known, found := firsts[row.request]
		if !found || cmp.Or(cmp.Compare(row.sequence, known.sequence), cmp.Compare(row.id, known.id)) < 0 {
			firsts[row.request] = row
		}
	}
	for request, row := range firsts {
		row.laneHeld = held[request]
		firsts[request] = row
	}
	return firsts
}

// releaseWaitingSQL uses the index on waiting rows.
const releaseWaitingSQL = `
UPDATE {statuses} SET is_waiting = false, version = version + 1
WHERE rowid IN (SELECT rowid FROM {statuses} WHERE is_waiting AND handler_key IN (SELECT value FROM json_each(?1)) LIMIT ?2)`
