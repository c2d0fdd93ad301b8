package mysql_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// loaded is when the last of the loaded statuses was accepted.
var loaded = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// digits is a query of the numbers from 0 to 99,999, in the column n.
const digits = `(SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n FROM ` + ten + ` a, ` + ten + ` b, ` + ten + ` c, ` +
	ten + ` e, ` + ten + ` f) x`

const ten = `(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
	UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)`

// loadLarge loads 100,000 messages with a status each: 70,000 completed ones, 10,000 pending ones of "hot", 10,000 of
// "lanes" in 500 lanes, and 2,500 each that are claimed, poisoned, waiting in "lanes", and of old keys. The statistics
// say that the tables are empty, as they may after a purge.
func loadLarge(t *testing.T, db *gorm.DB) {
	exec := func(statement string, args ...any) {
		t.Helper()
		require.NoError(t, db.Exec(statement, args...).Error)
	}
	exec(`ANALYZE TABLE inbox_messages, inbox_handler_statuses, inbox_markers, inbox_rejected_messages`)
	for _, table := range []string{"messages", "handler_statuses", "markers", "rejected_messages"} {
		exec(`ALTER TABLE inbox_` + table + ` STATS_PERSISTENT=1, STATS_AUTO_RECALC=0`)
	}
	exec(`INSERT INTO inbox_messages (number, id, namespace, transport_name, type, source, content, content_type, serialized_properties, received_at)
		SELECT n + 1, CONCAT('m', LPAD(n, 5, '0')), 'shop', 'kafka', 'order', '/shop', '{}', '', '{}', ? + INTERVAL n SECOND FROM `+digits+` ORDER BY n`,
		loaded.Add(-100_000*time.Second))
	exec(`INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, sequence, created_at, completed_at, outcome,
			processing_started_at, worker_id, is_poisoned, poisoned_at, is_waiting, lane_handler, lane_key, fingerprint, last_error, error_count)
		SELECT CONCAT('0190', LPAD(n, 32, '0')), n + 1, CONCAT('m', LPAD(n, 5, '0')),
			CASE WHEN n >= 97500 THEN CONCAT('old', n % 20) WHEN n BETWEEN 80000 AND 89999 OR n BETWEEN 95000 AND 97499 THEN 'lanes' ELSE 'hot' END,
			n + 1, ? + INTERVAL n SECOND,
			CASE WHEN n < 70000 THEN ? + INTERVAL n SECOND END, CASE WHEN n < 70000 THEN 'processed' ELSE '' END,
			CASE WHEN n BETWEEN 90000 AND 92499 THEN ? + INTERVAL n SECOND END, CASE WHEN n BETWEEN 90000 AND 92499 THEN 'w' END,
			n BETWEEN 92500 AND 94999, CASE WHEN n BETWEEN 92500 AND 94999 THEN ? + INTERVAL n SECOND END,
			n BETWEEN 95000 AND 97499,
			CASE WHEN n BETWEEN 80000 AND 89999 OR n BETWEEN 95000 AND 97499 THEN ? END,
			CASE WHEN n BETWEEN 80000 AND 89999 OR n BETWEEN 95000 AND 97499 THEN n % 500 END,
			CASE WHEN n BETWEEN 92500 AND 94999 THEN CAST(n % 5 AS CHAR) END, CASE WHEN n BETWEEN 92500 AND 94999 THEN 'bad' END,
			CASE WHEN n BETWEEN 92500 AND 94999 THEN 5 ELSE 0 END
		FROM `+digits+` ORDER BY n`, loaded.Add(-100_000*time.Second), loaded.Add(-99_999*time.Second), loaded.Add(-100_000*time.Second),
		loaded.Add(-100_000*time.Second), store.LaneHandler("lanes"))
	exec(`INSERT INTO inbox_markers (message_id, handler_key, namespace, message_type, processed_at, expires_at)
		SELECT CONCAT('m', n), 'hot', 'shop', 'order', ?, ? + INTERVAL n SECOND FROM `+digits, loaded, loaded)
	exec(`INSERT INTO inbox_rejected_messages (id, channel, topic, `+"`partition`"+`, record_offset, record_timestamp, headers, reason, rejected_at)
		SELECT CONCAT('0190', LPAD(n, 32, '0')), 'c', 't', 0, n, ?, '[]', 'bad', ? + INTERVAL n SECOND FROM `+digits, loaded,
		loaded.Add(-100_000*time.Second))
	// MySQL counts rows in memory, and reads the statistics again once it has closed the tables.
	exec(`FLUSH TABLES inbox_messages, inbox_handler_statuses, inbox_markers, inbox_rejected_messages`)
	pool, err := db.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(1) // the counters are a session's
}

// rowsRead returns how many rows the session's statements have read.
func rowsRead(t *testing.T, db *gorm.DB) (total int) {
	t.Helper()
	var counters []struct {
		Name  string `gorm:"column:Variable_name"`
		Value int    `gorm:"column:Value"`
	}
	require.NoError(t, db.Raw(`SHOW SESSION STATUS LIKE 'Handler\_read%'`).Scan(&counters).Error)
	for _, c := range counters {
		if !strings.HasSuffix(c.Name, "_deleted") {
			total += c.Value
		}
	}
	return total
}

// TestStatementsReadFewRowsOfALargeInbox runs each statement of the store on large tables of which the optimizer has
// stale statistics. What it reads depends on what it returns and not on the tables.
func TestStatementsReadFewRowsOfALargeInbox(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		db, st := storetest.Migrated(t, open(t))
		loadLarge(t, db)
		checkStatementsReadFewRowsOfALargeInbox(t, db, st, 1)
	})
}

// TestStatementsReadFewRowsOfLargePartitions does the same in the partitioned layout, where each of three partitions is
// looked into.
func TestStatementsReadFewRowsOfLargePartitions(t *testing.T) {
	onBoth(t, func(t *testing.T, variable string) {
		dsn := testenv.MySQLDSN(t, variable)
		p := openParted(t, dsn)
		loadLarge(t, p.db)
		require.NoError(t, p.store.Partition(t.Context()))
		checkStatementsReadFewRowsOfALargeInbox(t, p.db, p.store, 3)
	})
}

func checkStatementsReadFewRowsOfALargeInbox(t *testing.T, db *gorm.DB, st store.Store, partitions int) {
	ctx, rule := t.Context(), &store.LaneRule{Handlers: []int64{store.LaneHandler("lanes")}}
	worker := uuid.NewString()
	require.NoError(t, st.Heartbeat(ctx, store.Worker{ID: worker, Host: "h", HandlerKeys: []string{"hot"}}, loaded))
	claim := func(limit store.KeyLimit) (claims []store.Claim) {
		t.Helper()
		got, err := st.Claim(ctx, store.ClaimRequest{WorkerID: worker, Now: loaded, Limits: []store.KeyLimit{limit}})
		require.NoError(t, err)
		return got.Claims
	}
	refs := func(claims []store.Claim) (refs []store.Ref) {
		for _, c := range claims {
			refs = append(refs, c.Ref)
		}
		return refs
	}
	var hot, more, laned []store.Claim
	batch := func(from, n int) store.AcceptBatch {
		b := store.AcceptBatch{Now: loaded}
		for i := range n {
			b.Messages = append(b.Messages, store.NewMessage{
				Message:  models.Message{ID: fmt.Sprintf("m%05d", from+i), Namespace: "shop", Type: "order", Source: "/shop", Content: []byte("{}"), SerializedProperties: "{}"},
				Handlers: []store.NewStatus{{HandlerKey: "hot"}, {HandlerKey: "new"}}})
		}
		return b
	}
	last := store.Place{}
	live := partitions > 1
	cleanup := store.CleanupRequest{Cutoff: loaded.Add(-90_000 * time.Second), Until: loaded, Limit: 100, Live: live}
	requireFewRows(t, db, partitions, []reading{
		{"Claim", 500, func() error { hot = claim(store.KeyLimit{HandlerKey: "hot", Limit: 100}); return nil }},
		{"Claim of bytes", 500, func() error {
			more = claim(store.KeyLimit{HandlerKey: "hot", Limit: 100, Bytes: 1 << 20})
			return nil
		}},
		{"Claim in lanes", 5000, func() error { laned = claim(store.KeyLimit{HandlerKey: "lanes", Limit: 100, Lanes: rule}); return nil }},
		{"Claim in lanes that marks", 8000, func() error { claim(store.KeyLimit{HandlerKey: "lanes", Limit: 1, Lanes: rule}); return nil }},
		{"Claim of nothing", 10, func() error { claim(store.KeyLimit{HandlerKey: "new", Limit: 100}); return nil }},
		{"NextDue", 20, func() error { _, err := st.NextDue(ctx, []string{"hot", "lanes", "new"}, loaded); return err }},
		{"NextWindow", 3000, func() error {
			w, err := st.NextWindow(ctx, "hot", nil, []string{"x"}, loaded)
			if err == nil {
				last = *w.End
			}
			return err
		}},
		{"NextWindow after", 3000, func() error { _, err := st.NextWindow(ctx, "hot", &last, nil, loaded); return err }},
		{"OpenClaims", 2500, func() error {
			_, err := st.OpenClaims(ctx, []store.ClaimWalk{{HandlerKey: "hot"}, {HandlerKey: "hot", After: &last}})
			return err
		}},
		{"States", 500, func() error { _, err := st.States(ctx, refs(hot)); return err }},
		{"Siblings", 500, func() error {
			_, err := st.Siblings(ctx, []int64{hot[0].MessageNumber, hot[1].MessageNumber}, []string{"hot", "new"})
			return err
		}},
		{"Siblings of many messages", 7000, func() error {
			numbers := make([]int64, 2000)
			for i := range numbers {
				numbers[i] = int64(80_000 + i)
			}
			siblings, err := st.Siblings(ctx, numbers, []string{"hot", "lanes", "new"})
			require.Len(t, siblings, 2000)
			return err
		}},
		{"Complete", 800, func() error {
			var all []store.Completion
			for _, c := range hot {
				all = append(all, store.Completion{StatusID: c.StatusID, Version: c.Version, Outcome: models.OutcomeProcessed})
			}
			applied, err := st.Complete(ctx, all, loaded, store.SkipLocked)
			require.NotContains(t, applied, false)
			return err
		}},
		{"Settle", 1500, func() error {
			var all []store.Settlement
			for _, c := range append(more, laned...) {
				all = append(all, store.Settlement{StatusID: c.StatusID, Version: c.Version, FailedAt: loaded, Poisoned: true})
			}
			applied, err := st.Settle(ctx, all, store.AwaitLocked)
			require.NotContains(t, applied, false)
			return err
		}},
		{"AdvanceLanes", 1000, func() error {
			var requests []store.LaneRequest
			for _, c := range laned {
				requests = append(requests, rule.Request(*c.Lane))
			}
			_, err := st.AdvanceLanes(ctx, requests, loaded)
			return err
		}},
		{"ClaimNext", 100, func() error {
			request := rule.Request(store.Lane{Handler: rule.Handlers[0], Key: 499})
			request.ClaimKey = "lanes"
			_, err := st.ClaimNext(ctx, worker, []store.LaneRequest{request}, loaded)
			return err
		}},
		{"CheckLanes", 1500, func() error { _, _, err := st.CheckLanes(ctx, *rule, nil, 100, loaded); return err }},
		{"WaitingLaneHandlers", 50, func() error {
			names, err := st.WaitingLaneHandlers(ctx)
			require.Equal(t, rule.Handlers, names)
			return err
		}},
		{"KeysWithSplitLanes", 1000, func() error {
			_, err := st.KeysWithSplitLanes(ctx, map[string]store.LaneRule{"lanes": {Handlers: []int64{7}}})
			return err
		}},
		{"PendingKeys", 300, func() error {
			keys, err := st.PendingKeys(ctx)
			require.Len(t, keys, 22)
			return err
		}},
		{"ReleaseWaiting", 500, func() error { _, err := st.ReleaseWaiting(ctx, []string{"lanes"}, 100); return err }},
		{"Backlog", 5000, func() error {
			_, err := st.Backlog(ctx, []store.KeyLimit{{HandlerKey: "hot", Limit: 1000}, {HandlerKey: "lanes", Limit: 100, Lanes: rule}}, loaded)
			return err
		}},
		{"Accept of new messages", 1000, func() error { _, err := st.Accept(ctx, batch(200_000, 100)); return err }},
		{"Accept of known messages", 2500, func() error { _, err := st.Accept(ctx, batch(200_050, 100)); return err }},
		{"Accept of completed messages", 2500, func() error { _, err := st.Accept(ctx, batch(1000, 100)); return err }},
		{"Accept of many known messages", 30_000, func() error { _, err := st.Accept(ctx, batch(2000, 2000)); return err }},
		{"Expired", 500, func() error { _, err := st.Expired(ctx, cleanup); return err }},
		{"LoadExpired", 1000, func() error {
			found, err := st.Expired(ctx, cleanup)
			if err == nil {
				_, _, err = st.LoadExpired(ctx, cleanup, found.MessageNumbers, 1<<20)
			}
			return err
		}},
		{"Cleanup", 2000, func() error {
			done, err := st.Cleanup(ctx, cleanup)
			require.EqualValues(t, 100, done.Messages)
			return err
		}},
		{"LoadExpired of many", 16_000, func() error {
			many := store.CleanupRequest{Cutoff: loaded.Add(-50_000 * time.Second), Until: loaded, Limit: 2000, Live: live}
			found, err := st.Expired(ctx, many)
			if err == nil {
				require.Len(t, found.MessageNumbers, many.Limit)
				_, _, err = st.LoadExpired(ctx, many, found.MessageNumbers, 1<<20)
			}
			return err
		}},
		{"DeleteMarkers", 1000, func() error { _, err := st.DeleteMarkers(ctx, loaded.Add(24*time.Hour), 100); return err }},
		{"DeleteRejected", 1000, func() error { _, err := st.DeleteRejected(ctx, loaded, 100); return err }},
		{"HasMarker", 5, func() error { _, err := st.HasMarker(ctx, "m500", "hot", "shop"); return err }},
		{"Unpublished", 300, func() error { _, err := st.Unpublished(ctx, "hot", "", 100); return err }},
		{"UnpublishedRejected", 300, func() error { _, err := st.UnpublishedRejected(ctx, "c", "", 100); return err }},
		{"MarkReleased", 20, func() error { return st.MarkReleased(ctx, worker, loaded) }},
	})
}

// reading is what a call of the store may read.
type reading struct {
	name string
	most int // rows
	run  func() error
}

func requireFewRows(t *testing.T, db *gorm.DB, partitions int, calls []reading) {
	t.Helper()
	for _, each := range calls {
		before := rowsRead(t, db)
		show := rowsRead(t, db) - before // what reading the counters reads
		before += show
		began := time.Now()
		require.NoError(t, each.run(), each.name)
		read := rowsRead(t, db) - before - show
		t.Logf("%s read %d rows in %v", each.name, read, time.Since(began).Round(time.Millisecond))
		if most := each.most * partitions; read > most {
			t.Errorf("%s read %d rows, more than %d", each.name, read, most)
		}
	}
}

// TestOperatorsReadFewRowsOfALargeInbox does the same with what operators see and change.
func TestOperatorsReadFewRowsOfALargeInbox(t *testing.T) {
	onEach(t, checkOperatorsReadFewRowsOfALargeInbox)
}

func checkOperatorsReadFewRowsOfALargeInbox(t *testing.T, open opener) {
	const depth = 1000
	db, st := storetest.Migrated(t, open(t))
	loadLarge(t, db)
	ctx, pool, keys := t.Context(), store.NewSingles(db).Pool(t.Context()), []string{"hot", "lanes"}
	id := func(n int) string { return fmt.Sprintf("0190%032d", n) }
	lane, late := store.Lane{Handler: store.LaneHandler("lanes"), Key: 7}, loaded.Add(time.Hour)
	middle := store.ListPlace{At: store.ListTime(loaded.Add(-50_000 * time.Second)), ID: id(0), Number: 1}
	scan := store.StatusScan{HandlerKeys: keys, Depth: depth, Limit: 50, PerMessage: 10, States: 127, To: late,
		ReadsErrors: true, After: store.ListPlace{At: store.ListTime(late), ID: "ffffffff-ffff-ffff-ffff-ffffffffffff", Number: 1 << 40}}
	list := func(stage store.Stage, change ...func(*store.StatusScan)) func() error {
		return func() error {
			scan := scan
			scan.Stage = stage
			for _, c := range change {
				c(&scan)
			}
			_, err := st.ScanStatuses(ctx, pool, scan)
			return err
		}
	}
	comparing := func(s *store.StatusScan) { s.Type, s.ComparesMessage, s.ReadsMessage = "none", true, true }
	requireFewRows(t, db, 1, []reading{
		{"ScanStatuses of poisoned", 8 * depth, list(store.StagePoisoned)},
		{"ScanStatuses of poisoned that compares messages", 8 * depth, list(store.StagePoisoned, comparing)},
		{"ScanStatuses of due", 8 * depth, list(store.StageDue)},
		{"ScanStatuses of waiting", 8 * depth, list(store.StageWaiting)},
		{"ScanStatuses of a group", 8 * depth, list(store.StageGroup, func(s *store.StatusScan) { s.Fingerprint = "1" })},
		{"ScanStatuses of all", 12 * depth, list(store.StageReceived, comparing, func(s *store.StatusScan) { s.HandlerKeys = nil })},
		{"ScanStatuses of a message", 30, list(store.StageMessage, func(s *store.StatusScan) { s.MessageID = "m00077" })},
		{"CountStatuses", 8 * depth, func() error {
			scan := scan
			scan.Stage = store.StagePoisoned
			_, _, err := st.CountStatuses(ctx, pool, scan)
			return err
		}},
		{"KeysIn", 200, func() error { _, err := st.KeysIn(ctx, pool, store.StageDue, 100); return err }},
		{"OpenStatuses", 20, func() error { _, err := st.OpenStatuses(ctx, pool, []string{id(70_001), id(70_002)}); return err }},
		{"StatusesAmong", 20, func() error {
			_, err := st.StatusesAmong(ctx, pool, []string{id(70_001)}, []int64{70_002})
			return err
		}},
		{"StatusesOf", 20, func() error { _, err := st.StatusesOf(ctx, pool, 70_002, 100); return err }},
		{"CountOpen", 12 * depth, func() error { _, err := st.CountOpen(ctx, pool, keys, depth, late, late, []string{"w"}); return err }},
		{"Claims", 12 * depth, func() error { _, err := st.Claims(ctx, pool, "hot", depth, 100, late); return err }},
		{"ParkedLanes", 12 * depth, func() error { _, err := st.ParkedLanes(ctx, pool, "lanes", 100, depth); return err }},
		{"RecentStatuses", 12 * depth, func() error {
			_, err := st.RecentStatuses(ctx, pool, store.RecentScan{HandlerKey: "hot", From: loaded.Add(-24 * time.Hour), To: late, Depth: depth})
			return err
		}},
		{"CountPoisoned", 2*depth + 10, func() error { _, err := st.CountPoisoned(ctx, pool, "hot", depth); return err }},
		{"FailureGroups", 200, func() error {
			_, err := st.FailureGroups(ctx, pool, []store.FailureGroup{{HandlerKey: "hot"}, {HandlerKey: "lanes"}}, 10)
			return err
		}},
		{"CountGroups", 8 * depth, func() error {
			group := store.FailureGroup{HandlerKey: "hot", Fingerprint: "1", Before: scan.After.ID}
			_, err := st.CountGroups(ctx, pool, store.GroupScan{Depth: depth, States: 127, To: late,
				Groups: []store.FailureGroup{group}})
			return err
		}},
		{"LaneAhead", 2 * depth, func() error {
			_, err := st.LaneAhead(ctx, pool, lane, false, store.LanePlace{Sequence: 90_000, StatusID: id(0)}, depth)
			return err
		}},
		{"LaneHead", 20, func() error {
			head, err := st.LaneHead(ctx, pool, lane, false)
			require.NotNil(t, head)
			return err
		}},
		{"SequenceOf", 5, func() error { _, err := st.SequenceOf(ctx, pool, id(80_007)); return err }},
		{"ScanRejected", 8 * depth, func() error {
			found, err := st.ScanRejected(ctx, pool, store.RejectedScan{After: scan.After, Depth: depth, Limit: 50,
				Partition: -1, To: late})
			require.NotEmpty(t, found)
			return err
		}},
		{"ScanRejected of the earliest", 8 * depth, func() error {
			_, err := st.ScanRejected(ctx, pool, store.RejectedScan{Earliest: true, After: middle, Depth: depth, Limit: 50,
				Partition: -1, To: late, Reason: "none"})
			return err
		}},
		{"ScanAudit", 100, func() error {
			_, err := st.ScanAudit(ctx, pool, store.AuditScan{FromID: id(0), BeforeID: scan.After.ID, Depth: depth,
				Limit: 50, To: late})
			return err
		}},
		{"ScanUnhandled", 12 * depth, func() error {
			found, err := st.ScanUnhandled(ctx, pool, store.UnhandledScan{After: middle, To: late,
				Keys: []string{"new", "newer"}, Limit: depth})
			require.NotEmpty(t, found)
			return err
		}},
		{"RetryStatuses", 100, func() error {
			retried, err := st.RetryStatuses(ctx, pool, []store.VersionedID{{ID: id(92_501)}, {ID: id(92_502)}}, loaded)
			require.Len(t, retried, 2)
			return err
		}},
		{"DiscardStatuses", 100, func() error {
			discarded, err := st.DiscardStatuses(ctx, pool, []store.VersionedID{{ID: id(92_503)}, {ID: id(92_504)}}, loaded)
			require.Len(t, discarded, 2)
			return err
		}},
		{"RescheduleStatuses", 100, func() error {
			rows := []store.VersionedID{{ID: id(70_001)}, {ID: id(80_002)}}
			changed, err := st.RescheduleStatuses(ctx, pool, rows, late, loaded)
			require.Len(t, changed, 2)
			return err
		}},
		{"DeleteMessage", 100, func() error {
			deleted, _, _, err := st.DeleteMessage(ctx, pool, 1_000)
			require.NotNil(t, deleted)
			return err
		}},
	})
}

// TestClaimsReadNothingThatIsDueLater adds statuses that are due in a year to a large inbox, so that most open ones
// are.
func TestClaimsReadNothingThatIsDueLater(t *testing.T) {
	onEach(t, checkClaimsReadNothingThatIsDueLater)
}

func checkClaimsReadNothingThatIsDueLater(t *testing.T, open opener) {
	db, st := storetest.Migrated(t, open(t))
	loadLarge(t, db)
	require.NoError(t, db.Exec(`SET foreign_key_checks = 0`).Error) // the rows have no messages
	const parts = 2                                                 // of 100,000; a million take a minute to insert
	for part := 1; part <= parts; part++ {
		require.NoError(t, db.Exec(`INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, sequence, created_at,
				outcome, next_attempt_at, lane_handler, lane_key)
			SELECT CONCAT('0191', LPAD(?, 4, '0'), LPAD(n, 28, '0')), ? + n, CONCAT('m', n),
				CASE n % 3 WHEN 0 THEN 'hot' WHEN 1 THEN 'lanes' ELSE 'later' END,
				? + n, ?, '', ? + INTERVAL n SECOND, CASE WHEN n % 3 = 1 THEN ? END, CASE WHEN n % 3 = 1 THEN 10000 + n END
			FROM `+digits, part, part*1_000_000, part*1_000_000, loaded, loaded.AddDate(1, 0, 0), store.LaneHandler("lanes")).Error)
	}
	ctx, rule := t.Context(), &store.LaneRule{Handlers: []int64{store.LaneHandler("lanes")}}
	claim := func(limit store.KeyLimit, want int) func() error {
		return func() error {
			got, err := st.Claim(ctx, store.ClaimRequest{Now: loaded, Limits: []store.KeyLimit{limit}})
			require.Len(t, got.Claims, want)
			return err
		}
	}
	requireFewRows(t, db, 1, []reading{
		{"Claim", 500, claim(store.KeyLimit{HandlerKey: "hot", Limit: 100}, 100)},
		{"Claim in lanes", 5000, claim(store.KeyLimit{HandlerKey: "lanes", Limit: 100, Lanes: rule}, 100)},
		{"Claim of nothing", 10, claim(store.KeyLimit{HandlerKey: "later", Limit: 100}, 0)},
		{"NextDue", 20, func() error {
			due, err := st.NextDue(ctx, []string{"hot", "lanes", "later"}, loaded)
			require.Equal(t, loaded.AddDate(1, 0, 0), due)
			return err
		}},
		{"Backlog", 5000, func() error {
			_, err := st.Backlog(ctx, []store.KeyLimit{{HandlerKey: "later", Limit: 1000},
				{HandlerKey: "lanes", Limit: 100, Lanes: rule}}, loaded)
			return err
		}},
	})
}
