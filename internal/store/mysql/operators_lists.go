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
	"github.com/gorm-inbox/inbox/models"
)

// Lists read one handler key after the other, each in the order of an index, because MariaDB has no LATERAL. What
// package operators does in one statement is done here with the rows that were read.

// stages are the ranges of statuses by handler key, with the indexes that they read backwards. ?1 is the key, ?2 the
// ID of the place, ?3 its time or fingerprint.
var stages = map[store.Stage]struct{ index, where, order string }{
	store.StagePoisoned: {"parked", `s.parked = 1 AND s.handler_key = ?1 AND s.id < ?2`, `s.id DESC`},
	store.StageWaiting:  {"parked", `s.parked = 2 AND s.handler_key = ?1 AND s.id < ?2`, `s.id DESC`},
	store.StageGroup:    {"failures", `s.handler_key = ?1 AND s.failing = ?3 AND s.id < ?2`, `s.id DESC`},
	store.StageDue: {"due", `s.handler_key = ?1 AND s.due_at <= ?3 AND (s.due_at < ?3 OR s.id < ?2)`,
		`s.due_at DESC, s.id DESC`},
}

// stateBits are those of store.StatusScan.
const stateBits = `(CASE WHEN s.completed_at IS NOT NULL THEN CASE s.outcome WHEN 'discarded' THEN 16 WHEN 'superseded' THEN 32 ELSE 4 END
	WHEN s.is_poisoned THEN 8 WHEN s.processing_started_at IS NOT NULL THEN 2
	WHEN s.last_error IS NOT NULL AND s.error_count + s.abandoned_count + s.interrupted_count > 0 THEN 65 ELSE 1 END)`

// listed is a status that a list has read. In a failure group due is when it was created.
type listed struct {
	store.StatusHit
	number            int64
	matches, poisoned bool
	due               store.Stamp
}

const listedColumns = `s.id, s.handler_key, s.version, s.message_id, s.message_number, s.due_at,
	(` + stateBits + ` & ?4) <> 0 AND (?5 = '' OR s.fingerprint = ?5) AND (?6 = '' OR INSTR(LOWER(s.last_error), ?6) > 0),
	CASE WHEN ?7 THEN s.last_error END`

func scanListed(rows *sql.Rows, l *listed) error {
	var lastError sql.NullString
	var matches sql.NullBool
	err := rows.Scan(&l.ID, &l.HandlerKey, &l.Version, &l.MessageID, &l.number, &l.due, &matches, &lastError)
	l.matches, l.LastError = matches.Bool, lastError.String
	return err
}

// message is the part of a message that lists show and compare.
type message struct {
	number     int64
	id, kind   string
	receivedAt time.Time
}

const messageColumns = `number, id, type, received_at FROM {messages} m`

func scanMessage(rows *sql.Rows, m *message) error {
	var received store.Stamp
	err := rows.Scan(&m.number, &m.id, &m.kind, &received)
	m.receivedAt = received.Time
	return err
}

func (m message) matches(scan store.StatusScan) bool {
	return (scan.Type == "" || m.kind == scan.Type) && !m.receivedAt.Before(scan.From) && m.receivedAt.Before(scan.To)
}

// ofKey reads the statuses of a handler key, and compares their messages where the scan does.
func (s *Store) ofKey(ctx context.Context, pool gorm.ConnPool, scan store.StatusScan, key string) ([]listed, error) {
	stage := stages[scan.Stage]
	third := any(scan.Fingerprint)
	if scan.Stage == store.StageDue {
		var at store.Stamp
		if err := at.Scan(scan.After.At); err != nil {
			return nil, err
		}
		third = at.Time
	}
	rows, err := store.Query(ctx, pool, s.Text(`SELECT `+listedColumns+` FROM {statuses} s FORCE INDEX (`+stage.index+`)
WHERE `+stage.where+` ORDER BY `+stage.order+` LIMIT ?8`), scanListed, key, scan.After.ID, third, scan.States,
		scan.Fingerprint, scan.ErrorText, scan.ReadsErrors, scan.Depth)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		if rows[i].Place.ID = rows[i].ID; scan.Stage == store.StageDue {
			rows[i].Place.At = store.ListTime(rows[i].due.Time)
		}
	}
	if scan.ComparesMessage {
		err = s.compareMessages(ctx, pool, rows, scan)
	}
	return rows, err
}

// compareMessages leaves only those rows matching whose messages match.
func (s *Store) compareMessages(ctx context.Context, pool gorm.ConnPool, rows []listed, scan store.StatusScan) error {
	return s.showMessages(ctx, pool, rows, func(l *listed, m message, found bool) {
		l.matches = l.matches && found && m.matches(scan)
	})
}

// showMessages reads the messages of the rows.
func (s *Store) showMessages(ctx context.Context, pool gorm.ConnPool, rows []listed,
	do func(*listed, message, bool),
) error {
	var numbers []int64
	for _, row := range rows {
		numbers = append(numbers, row.number)
	}
	slices.Sort(numbers)
	of := map[int64]message{}
	messages, err := queryAll(ctx, s, pool, `SELECT `+messageColumns+` FORCE INDEX (PRIMARY) WHERE number IN ({list ?1})`,
		scanMessage, listOf(slices.Compact(numbers)))
	for _, m := range messages {
		of[m.number] = m
	}
	for i := range rows {
		m, found := of[rows[i].number]
		do(&rows[i], m, found)
	}
	return err
}

func (s *Store) ScanStatuses(ctx context.Context, pool gorm.ConnPool, scan store.StatusScan) (
	[]store.StatusHit, error,
) {
	if !scan.Stage.Keyed() {
		return s.scanMessages(ctx, pool, scan)
	}
	var hits []store.StatusHit
	var matching []listed
	for _, key := range scan.HandlerKeys {
		rows, err := s.ofKey(ctx, pool, scan, key)
		if err != nil {
			return nil, err
		}
		if n := len(rows); n > 0 {
			last := rows[n-1].StatusHit
			last.Closes, last.Depth = true, n
			hits = append(hits, last)
		}
		matching = append(matching, slices.DeleteFunc(rows, func(l listed) bool { return !l.matches })...)
	}
	slices.SortFunc(matching, func(a, b listed) int {
		return cmp.Or(strings.Compare(b.Place.At, a.Place.At), strings.Compare(b.ID, a.ID))
	})
	matching = matching[:min(len(matching), scan.Limit)]
	if scan.ReadsMessage || scan.ComparesMessage {
		if err := s.showMessages(ctx, pool, matching, func(l *listed, m message, _ bool) {
			l.Type, l.ReceivedAt = m.kind, m.receivedAt
		}); err != nil {
			return nil, err
		}
	}
	for _, l := range matching {
		hits = append(hits, l.StatusHit)
	}
	return hits, nil
}

func (s *Store) CountStatuses(ctx context.Context, pool gorm.ConnPool, scan store.StatusScan) (
	looked, matching int, err error,
) {
	for _, key := range scan.HandlerKeys {
		rows, err := s.ofKey(ctx, pool, scan, key)
		if err != nil {
			return 0, 0, err
		}
		looked += len(rows)
		for _, row := range rows {
			if row.matches {
				matching++
			}
		}
	}
	return looked, matching, nil
}

const (
	// receivedSQL uses the index on (received_at, number), and namesakesSQL the key on (id, namespace).
	receivedSQL = `SELECT ` + messageColumns + ` FORCE INDEX (received_at)
WHERE received_at <= ?1 AND (received_at < ?1 OR number <= ?2) AND received_at >= ?3`

	namesakesSQL = `SELECT ` + messageColumns + ` FORCE INDEX (by_id)
WHERE received_at <= ?1 AND (received_at < ?1 OR number <= ?2) AND received_at >= ?3 AND id = ?5 AND (?6 = '' OR namespace = ?6)
	AND {remembered}`

	latestFirst = ` ORDER BY received_at DESC, number DESC LIMIT ?4`
)

// scanMessages lists statuses by their messages, the latest first.
func (s *Store) scanMessages(ctx context.Context, pool gorm.ConnPool, scan store.StatusScan) (
	[]store.StatusHit, error,
) {
	var at store.Stamp
	if err := at.Scan(scan.After.At); err != nil {
		return nil, err
	}
	statement := receivedSQL + latestFirst
	if scan.Stage == store.StageMessage {
		statement = namesakesSQL + latestFirst
	}
	chosen, err := store.Query(ctx, pool, s.Text(statement), scanMessage, at.Time, scan.After.Number, scan.From,
		scan.Depth,
		scan.MessageID, scan.Namespace)
	if err != nil || len(chosen) == 0 {
		return nil, err
	}
	var numbers []int64
	of := map[int64]message{}
	for _, m := range chosen {
		if m.matches(scan) {
			numbers, of[m.number] = append(numbers, m.number), m
		}
	}
	rows, err := queryAll(ctx, s, pool, `SELECT `+listedColumns+` FROM {statuses} s FORCE INDEX (message)
WHERE s.message_number IN ({list ?1}) ORDER BY s.message_number, s.handler_key`, scanListed, listOf(numbers), nil, nil,
		scan.States, scan.Fingerprint, scan.ErrorText, scan.ReadsErrors)
	if err != nil {
		return nil, err
	}
	var matching []listed
	read, perMessage := 0, map[int64]int{}
	for _, row := range rows {
		if row.number == scan.After.Number && row.HandlerKey <= scan.After.Key || perMessage[row.number] == scan.PerMessage {
			continue
		}
		read++
		perMessage[row.number]++
		m := of[row.number]
		row.Type, row.ReceivedAt = m.kind, m.receivedAt
		row.Place = store.ListPlace{At: store.ListTime(m.receivedAt), Number: row.number, Key: row.HandlerKey}
		if row.matches && (len(scan.HandlerKeys) == 0 || slices.Contains(scan.HandlerKeys, row.HandlerKey)) {
			matching = append(matching, row)
		}
	}
	slices.SortFunc(matching, func(a, b listed) int {
		return cmp.Or(b.ReceivedAt.Compare(a.ReceivedAt), cmp.Compare(b.number, a.number),
			strings.Compare(a.HandlerKey, b.HandlerKey))
	})
	last := chosen[len(chosen)-1]
	hits := []store.StatusHit{{Closes: true, Depth: len(chosen), Statuses: read,
		Place: store.ListPlace{At: store.ListTime(last.receivedAt), Number: last.number}}}
	for _, l := range matching[:min(len(matching), scan.Limit)] {
		hits = append(hits, l.StatusHit)
	}
	return hits, nil
}

const (
	// nextKeySQL and hasDueSQL use the due index. Completed rows are in it, too, so that the next key is found first.
	nextKeySQL = `
SELECT handler_key FROM {statuses} FORCE INDEX (due) WHERE handler_key > ?1 AND created_at IS NOT NULL ORDER BY handler_key LIMIT 1`
	hasDueSQL = `SELECT EXISTS (SELECT 1 FROM {statuses} FORCE INDEX (due) WHERE handler_key = ?1 AND due_at >= '` + firstTime + `' AND created_at IS NOT NULL)`

	// hasFailingSQL uses the index on failures.
	hasFailingSQL = `SELECT EXISTS (SELECT 1 FROM {statuses} FORCE INDEX (failures) WHERE handler_key = ?1 AND failing > '' AND created_at IS NOT NULL)`

	// nextParkedSQL uses the index on parked rows.
	nextParkedSQL = `
SELECT handler_key FROM {statuses} FORCE INDEX (parked)
WHERE parked = ?2 AND handler_key > ?1 AND created_at IS NOT NULL ORDER BY handler_key LIMIT 1`
)

func (s *Store) KeysIn(ctx context.Context, pool gorm.ConnPool, stage store.Stage, limit int) (
	keys []string, err error,
) {
	next, parked, has := nextKeySQL, 0, ""
	switch stage {
	case store.StagePoisoned:
		next, parked = nextParkedSQL, 1
	case store.StageWaiting:
		next, parked = nextParkedSQL, 2
	case store.StageDue:
		has = hasDueSQL
	default:
		has = hasFailingSQL
	}
	for key := ""; len(keys) < limit; {
		found, err := store.Query(ctx, pool, s.Text(next), store.Value[string], key, parked)
		if err != nil || len(found) == 0 {
			return keys, err
		}
		key = found[0]
		if has != "" {
			is, err := store.Query(ctx, pool, s.Text(has), store.Value[bool], key)
			if err != nil {
				return nil, err
			}
			if !is[0] {
				continue
			}
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// PendingKeys joins the keys of the due index and of the waiting rows.
func (s *Store) PendingKeys(ctx context.Context) ([]string, error) {
	const most = 1 << 20
	due, err := s.KeysIn(ctx, s.Pool(ctx), store.StageDue, most)
	if err != nil {
		return nil, base.Doing("find pending handler keys", err)
	}
	waiting, err := s.KeysIn(ctx, s.Pool(ctx), store.StageWaiting, most)
	return base.Distinct(append(due, waiting...)), base.Doing("find pending handler keys", err)
}

const (
	// openDueSQL reads the rows of a key that are due first by the due index, and countDueSQL counts in it.
	openDueSQL = `
SELECT s.processing_started_at IS NOT NULL, s.worker_id, s.due_at, s.lane_key IS NOT NULL FROM {statuses} s FORCE INDEX (due)
WHERE s.handler_key = ?1 AND s.due_at <= ?2 ORDER BY s.due_at, s.id LIMIT ?3`

	countDueSQL = `
SELECT COUNT(*) FROM (SELECT 1 FROM {statuses} FORCE INDEX (due) WHERE handler_key = ?1 AND due_at >= '` + firstTime + `' AND created_at IS NOT NULL LIMIT ?2) x`
)

func (s *Store) CountOpen(ctx context.Context, pool gorm.ConnPool, keys []string, limit int, now, soon time.Time,
	living []string,
) ([]store.OpenCounts, error) {
	all := make([]store.OpenCounts, len(keys))
	for i, key := range keys {
		c := &all[i]
		c.HandlerKey = key
		for _, count := range []struct {
			into      *int64
			statement string
			args      []any
		}{{&c.Open, countDueSQL, []any{key, limit}}, {&c.Poisoned, parkedSQL, []any{1, key, limit}},
			{&c.Waiting, parkedSQL, []any{2, key, limit}}} {
			var err error
			if *count.into, err = s.count(ctx, pool, count.statement, count.args...); err != nil {
				return nil, err
			}
		}
		_, err := store.Query(ctx, pool, s.Text(openDueSQL), func(rows *sql.Rows, _ *struct{}) error {
			var claimed, inLane bool
			var worker sql.NullString
			var due store.Stamp
			if err := rows.Scan(&claimed, &worker, &due, &inLane); err != nil {
				return err
			}
			c.Looked++
			switch {
			case claimed:
				if c.Processing++; worker.Valid && !slices.Contains(living, worker.String) {
					c.Orphaned++
				}
			case !due.After(now):
				if c.Due++; c.OldestDue.IsZero() {
					c.OldestDue = due.Time
				}
				c.InLanes = c.InLanes || inLane
			}
			return nil
		}, key, soon, limit)
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (s *Store) CountPoisoned(ctx context.Context, pool gorm.ConnPool, handlerKey string, limit int64) (int64, error) {
	return s.count(ctx, pool, parkedSQL, 1, handlerKey, limit)
}

const (
	// nextGroupSQL and ofGroupSQL use the index on failures.
	nextGroupSQL = `
SELECT failing FROM {statuses} FORCE INDEX (failures)
WHERE handler_key = ?1 AND failing > ?2 AND created_at IS NOT NULL ORDER BY failing LIMIT 1`

	ofGroupSQL = `
SELECT s.id, s.is_poisoned, s.created_at, (` + stateBits + ` & ?4) <> 0, s.message_number FROM {statuses} s FORCE INDEX (failures)
WHERE s.handler_key = ?1 AND s.failing = ?2 AND s.id < ?3 ORDER BY s.id DESC LIMIT ?5`
)

func (s *Store) FailureGroups(ctx context.Context, pool gorm.ConnPool, after []store.FailureGroup, perKey int) (
	groups []store.FoundGroup, err error,
) {
	for _, from := range after {
		fingerprint := from.Fingerprint
		for number := 1; number <= perKey; number++ {
			found, err := store.Query(ctx, pool, s.Text(nextGroupSQL), store.Value[string], from.HandlerKey, fingerprint)
			if err != nil {
				return nil, err
			}
			if len(found) == 0 {
				break
			}
			fingerprint = found[0]
			groups = append(groups, store.FoundGroup{HandlerKey: from.HandlerKey, Fingerprint: fingerprint, Number: number})
		}
	}
	return groups, nil
}

func (s *Store) CountGroups(ctx context.Context, pool gorm.ConnPool, scan store.GroupScan) (
	counts []store.GroupCount, err error,
) {
	for _, group := range scan.Groups {
		rows, err := store.Query(ctx, pool, s.Text(ofGroupSQL), func(rows *sql.Rows, l *listed) error {
			return rows.Scan(&l.ID, &l.poisoned, &l.due, &l.matches, &l.number)
		}, group.HandlerKey, group.Fingerprint, group.Before, scan.States, scan.Depth)
		if err == nil && scan.ComparesMessage {
			err = s.compareMessages(ctx, pool, rows, store.StatusScan{Type: scan.Type, From: scan.From, To: scan.To})
		}
		if err != nil {
			return nil, err
		}
		if len(rows) == 0 {
			continue
		}
		count, sample := countGroup(rows)
		found, err := s.OpenStatuses(ctx, pool, []string{sample})
		if err != nil {
			return nil, err
		}
		if len(found) == 1 {
			count.Sample = found[0]
			counts = append(counts, count)
		}
	}
	return counts, nil
}

// countGroup counts rows, the newest first, and returns the ID of the one to show.
func countGroup(rows []listed) (c store.GroupCount, sample string) {
	c.Looked, c.Lowest = int64(len(rows)), rows[len(rows)-1].ID
	sample = c.Lowest
	for i := len(rows) - 1; i >= 0; i-- {
		row := rows[i]
		if !row.matches {
			continue
		}
		sample = row.ID
		if row.poisoned {
			c.Poisoned++
		} else {
			c.Failing++
		}
		if c.FirstSeen.IsZero() || row.due.Before(c.FirstSeen) {
			c.FirstSeen = row.due.Time
		}
		if row.due.After(c.LastSeen) {
			c.LastSeen = row.due.Time
		}
	}
	return c, sample
}

// claimedIDsSQL reads the rows of a key that are due first by the due index.
const claimedIDsSQL = `
SELECT id, processing_started_at FROM {statuses} FORCE INDEX (due)
WHERE handler_key = ?1 AND due_at <= ?2 ORDER BY due_at, id LIMIT ?3`

func (s *Store) Claims(ctx context.Context, pool gorm.ConnPool, handlerKey string, depth, limit int, soon time.Time) (
	[]store.StatusRow, error,
) {
	type claim struct {
		id string
		at store.Stamp
	}
	rows, err := store.Query(ctx, pool, s.Text(claimedIDsSQL), func(rows *sql.Rows, c *claim) error {
		return rows.Scan(&c.id, &c.at)
	}, handlerKey, soon, depth)
	if err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(c claim) bool { return c.at.IsZero() })
	slices.SortFunc(rows, func(a, b claim) int { return cmp.Or(a.at.Compare(b.at.Time), strings.Compare(a.id, b.id)) })
	ids := make([]string, 0, limit)
	for _, c := range rows[:min(len(rows), limit)] {
		ids = append(ids, c.id)
	}
	found, err := s.OpenStatuses(ctx, pool, ids)
	found = slices.DeleteFunc(found, func(r store.StatusRow) bool { return r.ProcessingStartedAt == nil })
	slices.SortFunc(found, func(a, b store.StatusRow) int {
		return cmp.Or(a.ProcessingStartedAt.Compare(*b.ProcessingStartedAt), strings.Compare(a.ID, b.ID))
	})
	return found, err
}

const (
	// poisonedLanesSQL uses the index on parked rows, behindSQL the index on lanes.
	poisonedLanesSQL = `
SELECT lane_handler, lane_key, COUNT(*), MIN(sequence) FROM (
	SELECT lane_handler, lane_key, sequence FROM {statuses} FORCE INDEX (parked) WHERE parked = 1 AND handler_key = ?1 ORDER BY id LIMIT ?2
) p WHERE lane_key IS NOT NULL GROUP BY lane_handler, lane_key`

	behindSQL = `
SELECT COUNT(*) FROM (
	SELECT 1 FROM {statuses} FORCE INDEX (lane) WHERE lane_open = ?1 AND lane_key = ?2 AND is_poisoned = 0 AND sequence > ?3 AND created_at IS NOT NULL
	ORDER BY sequence LIMIT ?4
) w`
)

func (s *Store) ParkedLanes(ctx context.Context, pool gorm.ConnPool, handlerKey string, poisoned, waiting int64) (
	lanes []store.ParkedLane, err error,
) {
	type lane struct {
		store.ParkedLane
		first int64
	}
	found, err := store.Query(ctx, pool, s.Text(poisonedLanesSQL), func(rows *sql.Rows, l *lane) error {
		return rows.Scan(&l.Handler, &l.Key, &l.Poisoned, &l.first)
	}, handlerKey, poisoned)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	each := waiting / int64(len(found))
	for _, l := range found {
		if l.Waiting, err = s.count(ctx, pool, behindSQL, l.Handler, l.Key, l.first, each); err != nil {
			return nil, err
		}
		if l.Waiting > 0 {
			l.Capped = l.Waiting >= each
			lanes = append(lanes, l.ParkedLane)
		}
	}
	slices.SortFunc(lanes, func(a, b store.ParkedLane) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.Handler, b.Handler), cmp.Compare(a.Key, b.Key))
	})
	return lanes, nil
}

const (
	// latestSQL uses the index on (received_at, number), ofMessagesSQL the unique key on (message_number, handler_key).
	latestSQL = `
SELECT number, received_at FROM {messages} FORCE INDEX (received_at)
WHERE received_at >= ?1 AND received_at <= ?2 ORDER BY received_at DESC, number DESC LIMIT ?3`

	ofMessagesSQL = `
SELECT created_at, completed_at, outcome, is_poisoned, poisoned_at, error_count FROM {statuses} FORCE INDEX (message)
WHERE message_number IN ({list ?1}) AND handler_key = ?2`
)

func (s *Store) RecentStatuses(ctx context.Context, pool gorm.ConnPool, scan store.RecentScan) (
	out store.Recent, err error,
) {
	var numbers []int64
	_, err = store.Query(ctx, pool, s.Text(latestSQL), func(rows *sql.Rows, _ *struct{}) error {
		var number int64
		var received store.Stamp
		err := rows.Scan(&number, &received)
		numbers, out.Earliest = append(numbers, number), received.Time
		return err
	}, scan.From, scan.To, scan.Depth)
	if err != nil {
		return store.Recent{}, err
	}
	out.Messages = len(numbers)
	out.Statuses, err = queryAll(ctx, s, pool, ofMessagesSQL, func(rows *sql.Rows, h *models.HandlerStatus) error {
		var created, completed, poisoned store.Stamp
		err := rows.Scan(&created, &completed, &h.Outcome, &h.IsPoisoned, &poisoned, &h.ErrorCount)
		h.CreatedAt, h.CompletedAt, h.PoisonedAt = created.Time, completed.Pointer(), poisoned.Pointer()
		return err
	}, listOf(numbers), scan.HandlerKey)
	return out, err
}
