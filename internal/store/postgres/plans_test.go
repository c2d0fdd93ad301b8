package postgres

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/sqltest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// planned is a statement whose plan is checked.
type planned struct {
	name, statement string
	args            []any
	expected        []string // each must serve some scan
	most            float64  // rows read
}

// statusID is the index of statuses that are not completed.
const statusID = "inbox_handler_statuses_open"

// differing are the plans of statements that differ between the profiles.
func differing(plans []planned) (found []planned) {
	for _, each := range plans {
		if each.name == "claimLanesAtOnceSQL" || slices.ContainsFunc(profile{}.words(), func(word string) bool {
			return strings.HasPrefix(word, "{") && strings.Contains(each.statement, word)
		}) {
			found = append(found, each)
		}
	}
	return found
}

// plansOf returns all statements with arguments for the rows of loadMillion, or of another
// distribution that has so many due rows of "hot". It claims these.
func plansOf(t *testing.T, x explainer, rows int) []planned {
	t.Helper()
	p, now := x.store, million
	claims, err := p.Claim(t.Context(), store.ClaimRequest{Now: now,
		Limits: []store.KeyLimit{{HandlerKey: "hot", Limit: rows}}})
	require.NoError(t, err)
	require.Len(t, claims.Claims, rows)
	var ids, outcomes, messageIDs, newIDs, keys []string
	var versions, messages []int64
	for _, c := range claims.Claims {
		ids, messageIDs = append(ids, c.StatusID), append(messageIDs, c.MessageID)
		messages = append(messages, int64(c.Message.Number))
		versions, outcomes = append(versions, c.Version), append(outcomes, "processed")
		newIDs, keys = append(newIDs, uuid.NewString()), append(keys, "new")
	}
	worker := uuid.NewString()
	require.NoError(t, p.Heartbeat(t.Context(), store.Worker{ID: worker, Host: "h"}, now))
	n := len(ids)
	hashes, contents, numbersOf := make([][]byte, n), make([][]byte, n), make([]*int64, n)
	for i := range hashes {
		hashes[i], contents[i] = []byte{0}, []byte{0}
	}
	counts, flags, errors, times := make([]int32, n), make([]bool, n), make([]*string, n), make([]*time.Time, n)
	claimed := make([]bool, n)
	for i := range claimed {
		claimed[i] = i%2 == 0
	}
	texts, stamps := make([]string, n), make([]time.Time, n)
	own, cutoffs := []string{"hot"}, []time.Time{now}
	lanes := store.LaneHandler("lanes")
	names := []string{numbers([]int64{lanes})}
	ones, bytes := []int64{1, 1}, []int64{32 << 20, 32 << 20}
	heads, err := p.Claim(t.Context(), store.ClaimRequest{Now: now, Limits: []store.KeyLimit{
		{HandlerKey: "lanes", Limit: 1, Lanes: &store.LaneRule{Handlers: []int64{lanes}}}}})
	require.NoError(t, err)
	head, headVersion := []string{uuid.Nil.String()}, []int64{0} // of no row where there is none in a lane
	if len(heads.Claims) > 0 {
		head[0], headVersion[0] = heads.Claims[0].StatusID, heads.Claims[0].Version
	}
	whole, wholeIDs := make([]*time.Time, 2), make([]*string, 2)
	last := claims.Claims[n-1]
	manyKeys := []string{"hot"}
	for len(manyKeys) < 200 {
		manyKeys = append(manyKeys, fmt.Sprint("key", len(manyKeys)))
	}
	manyQuotas, manyDues, manyIDs := slices.Repeat([]int64{20}, 200), make([]*time.Time, 200), make([]*string, 200)
	manyOnes, manyBytes := slices.Repeat(ones[:1], 200), slices.Repeat(bytes[:1], 200)
	resumed, resumedIDs := []*time.Time{&last.Due, nil}, []*string{&last.StatusID, nil}

	window, err := p.NextWindow(t.Context(), "hot", &store.Place{Due: last.Due, StatusID: last.StatusID},
		[]string{"elsewhere"}, now)
	require.NoError(t, err)
	window.StatusIDs = ids // none is in the window, so that all of it is read
	windowed, windowedArgs := within(&window, claimSQL, []string{"hot"}, []int64{100}, now, worker, whole[:1], wholeIDs[:1],
		ones[:1], bytes[:1])
	lanesName, lanesSQL := "claimLanesSQL", claimLanesSQL
	places := map[string]string{}
	for _, table := range []string{"handler_statuses", "markers", "audit", "rejected_messages"} {
		if places[table] = "Tid Scan inbox_" + table; p.isPortable() {
			places[table] = "inbox_" + table + "_pkey"
		}
	}
	if p.isPortable() {
		lanesName, lanesSQL, places["handler_statuses"] = "claimLanesAtOnceSQL", claimLanesAtOnceSQL, statusID
	}
	place := places["handler_statuses"]
	windowedLanes, windowedLanesArgs := within(&window, lanesSQL, []string{}, []int64{}, now, nil, []string{"lanes"},
		[]int64{10}, names, []bool{false}, base.LaneWindow, whole[:0], wholeIDs[:0], ones[:0], bytes[:0], ones[:1], bytes[:1],
		[]bool{false})

	const (
		due       = "Index Scan inbox_handler_statuses inbox_handler_statuses_due"
		messageID = "inbox_messages_pkey"
		number    = "inbox_messages_number"
		byMessage = "inbox_handler_statuses_pkey"
		pending   = "inbox_handler_statuses_due" // all pending rows, for sweeps
		lane      = "inbox_handler_statuses_lane\n"
		holder    = "inbox_handler_statuses_lane_holder"
		waiting   = "inbox_handler_statuses_waiting"

		rejectedID = "inbox_rejected_messages_pkey"
	)
	return []planned{
		{"acceptNewSQL", acceptNewSQL, []any{newIDs, texts, texts, texts, texts, texts, contents, now, newUUIDs(n), newIDs,
			keys, numbersOf, numbersOf, counts, counts, texts, texts, times, contents[0]}, nil, 500},
		{"acceptNewSQL", acceptNewSQL, []any{messageIDs, texts, texts, texts, texts, texts, contents, now, newIDs, messageIDs,
			keys, numbersOf, numbersOf, counts, counts, texts, texts, times, contents[0]}, nil, 500},
		{"acceptClaimedSQL", acceptClaimedSQL, []any{newIDs, texts, texts, texts, texts, texts, contents, now, newUUIDs(n),
			newIDs, keys, numbersOf, numbersOf, counts, counts, texts, texts, times, worker, claimed, contents[0]}, nil, 600},
		{"acceptLockSQL", acceptLockSQL, []any{messageIDs, hashes, texts, now}, []string{messageID}, 300},
		{"acceptKeysSQL", acceptKeysSQL, []any{messages, []string{"hot", "new"}}, []string{byMessage}, 300},
		{"acceptStatusesSQL", acceptStatusesSQL, []any{newIDs, messageIDs, keys, now, numbersOf, numbersOf, messages, counts,
			times}, nil, 300},
		{"acceptDeleteSQL", acceptDeleteSQL, []any{ids}, []string{statusID}, 300},
		{"acceptRejectedSQL", acceptRejectedSQL, []any{newIDs, texts, texts, counts, messages, stamps, contents, contents,
			texts, texts, stamps}, nil, 300},
		{"rejectedSQL.Load", rejectedSQL.Load, []any{worker}, []string{rejectedID}, 1},
		{"rejectedSQL.Remove", rejectedSQL.Remove, []any{worker}, []string{rejectedID}, 1},
		{"rejectedSQL.Reason", rejectedSQL.Reason, []any{worker, "bad"}, []string{rejectedID}, 1},
		{"requestsSQL.List", requestsSQL.List, []any{"c", now, 1000}, nil, 1},
		{"requestsSQL.Delete", requestsSQL.Delete, []any{"c", "t", 0, worker}, nil, 1},
		{"addAuditSQL", addAuditSQL, []any{worker, "a", "retry", "t", "{}", now}, nil, 1},
		{"publishingSQL.Statuses", publishingSQL.Statuses, []any{"hot", ids[0], 10},
			[]string{"inbox_handler_statuses_unpublished"}, 20},
		{"publishingSQL.Rejected", publishingSQL.Rejected, []any{"c", worker, 10},
			[]string{"inbox_rejected_messages_unpublished"}, 20},
		{"publishingSQL.Status", publishingSQL.Status, []any{ids[0], 1000}, []string{statusID, number}, 4},
		{"publishingSQL.Record", publishingSQL.Record, []any{worker, 1000}, []string{rejectedID}, 2},
		{"publishingSQL.MarkStatus", publishingSQL.MarkStatus, []any{worker, 1, now}, []string{statusID}, 2},
		{"publishingSQL.MarkRejected", publishingSQL.MarkRejected, []any{worker, now}, []string{rejectedID}, 2},
		{"keepGapSQL", keepGapSQL, []any{worker, "c", "t", 0, 1, 2, "gone", now}, nil, 1},

		{"channelSQL", channelSQL, nil, nil, 0},
		{"sessionSQL", sessionSQL, nil, nil, 1},
		{"notifySQL", notifySQL, []any{"{}"}, nil, 0},
		{"notifyTxSQL", notifyTxSQL, []any{"{}"}, nil, 0},
		{"probeSQL", probeSQL, []any{"{}"}, nil, 0},

		{"claimSQL", claimSQL, []any{[]string{"hot", "idle"}, []int64{100, 100}, now, worker, whole, wholeIDs, ones, bytes},
			[]string{due, place, number}, 600},
		// It passes the rows that the claims of these tests have locked: their transactions were rolled back.
		{"claimSQL", claimSQL, []any{[]string{"hot", "idle"}, []int64{100, 100}, now, worker, resumed, resumedIDs, ones, bytes},
			[]string{due, place, number}, 1000},
		{"claimSQL", claimSQL, []any{manyKeys, manyQuotas, now, worker, manyDues, manyIDs, manyOnes, manyBytes},
			[]string{due, place, number}, 600},
		{"claimManualSQL", claimManualSQL, []any{[]string{"hot"}, []int64{100}, now, nil, whole[:1], wholeIDs[:1], ones[:1],
			bytes[:1]},
			[]string{due, place, number}, 600},
		{lanesName, lanesSQL, []any{[]string{"hot"}, []int64{10}, now, nil, []string{"lanes"}, []int64{10}, names,
			[]bool{false}, base.LaneWindow, whole[:1], wholeIDs[:1], ones[:1], bytes[:1], ones[:1], bytes[:1], []bool{false}},
			[]string{due, place, lane, holder, number}, 5000},
		{lanesName, lanesSQL, []any{[]string{}, []int64{}, now, nil, []string{"lanes"}, []int64{10}, names,
			[]bool{false}, base.LaneWindow, whole[:0], wholeIDs[:0], ones[:0], bytes[:0], ones[:1], bytes[:1], []bool{true}},
			[]string{due, place, lane, holder, number}, 5000},
		{"runsSQL", runsSQL, []any{now, worker, head, headVersion, []string{"lanes"}, names, []bool{false}, []int64{100},
			bytes[:1]}, []string{statusID, place, lane, number}, 700},
		{"windowRowsSQL", windowRowsSQL, []any{"hot", now, &last.Due, &last.StatusID, []string{"elsewhere"}}, []string{due, number}, 4100},
		{"claimSQL", windowed, windowedArgs, []string{due, place, number}, 2100},
		{lanesName, windowedLanes, windowedLanesArgs, []string{due, place, lane, holder, number}, 7000},
		{"nextDueSQL", nextDueSQL, []any{[]string{"hot", "paused", "idle"}, now}, []string{due}, 10},
		{"siblingsSQL", siblingsSQL, []any{messages, []string{"hot", "cold"}}, []string{byMessage}, 400},
		{"completeSQL", completeSQL, []any{now, ids, versions, outcomes}, []string{statusID}, 300},
		{"completeUnlockedSQL", completeUnlockedSQL, []any{now, ids, versions, outcomes}, []string{statusID},
			500},
		{"completeOneSQL", completeOneSQL, []any{now, ids[0], versions[0], "processed"}, []string{statusID}, 2},
		{"currentSQL", currentSQL, []any{ids, versions}, []string{statusID}, 300},
		{"settleSQL", settleSQL, []any{ids, versions, counts, counts, errors, times, flags, errors, times, counts}, []string{statusID}, 300},
		{"settleUnlockedSQL", settleUnlockedSQL, []any{ids, versions, counts, counts, errors, times, flags, errors, times, counts},
			[]string{statusID}, 500},
		{"statesSQL", statesSQL, []any{messages, keys}, []string{byMessage}, 300},
		{"lockStateSQL", lockStateSQL, []any{messages, keys}, []string{byMessage}, 300},

		{"advanceSQL", advanceSQL, []any{names, []int64{1}, []bool{false}, now, nil, []bool{false}}, []string{lane}, 20},
		{"advanceSQL", advanceSQL, []any{names, []int64{2}, []bool{false}, now, worker, []bool{true}},
			[]string{lane, statusID, number}, 20},
		{"WaitingLanesSQL", base.WaitingLanesSQL, []any{lanes, int64(store.BeforeAllLanes), 100},
			[]string{"inbox_handler_statuses_waiting_lane"}, 100},
		{"WaitingLaneHandlersSQL", base.WaitingLaneHandlersSQL, nil, []string{"inbox_handler_statuses_waiting_lane"}, 10},
		{"LaneHandlersSQL", base.LaneHandlersSQL, nil, []string{lane}, 10},
		{"LaneHandlerKeysSQL", base.LaneHandlerKeysSQL, []any{lanes, base.SplitLaneWindow},
			[]string{"inbox_handler_statuses_lane"}, base.SplitLaneWindow},
		{"releaseWaitingSQL", releaseWaitingSQL, []any{[]string{"lanes", "hot"}, 100}, []string{waiting, place}, 400},
		{"PendingKeysSQL", base.PendingKeysSQL, nil, []string{pending, waiting}, 20},
		{"backlogSQL", backlogSQL, []any{[]string{"hot", "lanes", "idle"}, []int64{100, 100, 100}, now,
			[]*string{nil, &names[0], nil}, []bool{false, false, false}},
			[]string{due, waiting, "inbox_handler_statuses_poisoned", lane}, 1500},

		{"openClaimsSQL", openClaimsSQL, []any{[]string{"hot", "paused", "idle"}, make([]*time.Time, 3), make([]*string, 3)},
			[]string{due}, 3 * store.ClaimPage},
		{"openClaimsSQL", openClaimsSQL, []any{[]string{"hot"}, resumed[:1], resumedIDs[:1]}, []string{due}, store.ClaimPage},
		{"evictSQL", evictSQL, []any{messages, keys, []string{worker}}, []string{byMessage}, 1000}, // and the locks and sessions of the server
		{"deleteWorkersSQL", deleteWorkersSQL, []any{[]string{worker}}, nil, 2},
		{"heartbeatSQL", heartbeatSQL, []any{worker, "h", 1, "[]", "[]", "[]", "{}"}, nil, 1},
		{"recordDrainSQL", recordDrainSQL, []any{worker, "h", 1, "[]", "[]"}, nil, 1},
		{"workerLivesSQL", workerLivesSQL, []any{worker}, nil, 1},
		{"stopWorkerSQL", stopWorkerSQL, []any{worker}, nil, 2},
		{"workersSQL", workersSQL, nil, nil, 200}, // and the roles of the server
		{"markReleasedSQL", markReleasedSQL, []any{worker}, nil, 2},
		{"versionSQL", versionSQL, nil, nil, 1},
		{"missingSQL", missingSQL, nil, nil, 10},
		{"nativeSQL", nativeSQL, nil, nil, 10},
		{"cachedSQL", cachedSQL, nil, nil, 20_000}, // the server's catalog
		{"probeReadSQL", probeReadSQL, []any{"l"}, nil, 10},
		{"probeLockSQL", probeLockSQL, []any{"l"}, nil, 10},
		{"earlyJITSQL", earlyJITSQL, nil, nil, 1},
		{"schemasSQL", schemasSQL, nil, nil, 100},
		{"defaultIsolationSQL", defaultIsolationSQL, nil, nil, 1},
		{"pausedSQL", pausedSQL, nil, nil, 1},
		{"setPausedSQL", setPausedSQL, []any{"hot", true, now}, nil, 1},
		{"setLegacyKeysSQL", setLegacyKeysSQL, []any{"hot", `["cold"]`, now}, nil, 1},
		{"LegacyKeysSQL", base.LegacyKeysSQL, nil, nil, 1},
		{"acquireLeasesSQL", acquireLeasesSQL, []any{[]string{"l"}, worker, 1000}, nil, 10},
		{"leaseOwnersSQL", leaseOwnersSQL, []any{[]string{"l"}}, nil, 10},
		{"releaseLeasesSQL", releaseLeasesSQL, []any{[]string{"l"}, worker}, nil, 10},
		{"deleteLeasesSQL", deleteLeasesSQL, []any{1000}, nil, 1},

		{"expiredSQL", expiredSQL, []any{now, time.Time{}, 0, 1000, now, own, cutoffs, int64(math.MaxInt64)},
			[]string{"inbox_messages_received_at", byMessage}, 5000},
		{"expiredSQL", expiredSQL, []any{now, now.Add(-12 * time.Hour), messages[0], 1000, now, own, cutoffs, int64(math.MaxInt64)},
			[]string{"inbox_messages_received_at", byMessage}, 5000},
		{"recordProgressSQL", recordProgressSQL, []any{[]string{"c"}, []string{"g"}, []string{"t"}, []int32{1}, []bool{false},
			[]time.Time{now}, now, now}, nil, 10},
		{"declareTopicsSQL", declareTopicsSQL, []any{[]string{"c"}, []string{"g"}, []string{"t"}, []*int32{nil}, now, now}, nil, 10},
		{"countUndeclaredSQL", countUndeclaredSQL, []any{now, now, 600}, nil, 10},
		{"furthestBehindSQL", furthestBehindSQL, []any{true}, nil, 10},
		{"forgetPartitionsSQL", forgetPartitionsSQL, []any{600}, nil, 10},
		{"clockSQL", clockSQL, []any{now}, nil, 1},
		{"cleanupLockSQL", cleanupLockSQL, []any{messages}, []string{number}, 300},
		{"cleanupMessagesSQL", cleanupMessagesSQL, []any{messages, now, []string{}, []time.Time{}}, []string{byMessage}, 700},
		{"cleanupStatusesSQL", cleanupStatusesSQL, []any{messages, now, []string{}, []time.Time{}}, []string{byMessage}, 300},
		{"expiredSizesSQL", expiredSizesSQL, []any{messages}, []string{number}, 300},
		{"expiredMessagesSQL", expiredMessagesSQL, []any{messages}, []string{number}, 300},
		{"expiredStatusesSQL", expiredStatusesSQL, []any{messages}, []string{byMessage}, 300},
		{"deleteStatusesSQL", deleteStatusesSQL, []any{messages, keys, versions, ids}, []string{byMessage}, 300},
		{"deleteMessagesSQL", deleteMessagesSQL, []any{messages}, []string{number, byMessage}, 500},
		{"addMarkerSQL", addMarkerSQL, []any{"m1", "hot", "t", now, now, "10s", ""}, nil, 10},
		{"hasMarkerSQL", hasMarkerSQL, []any{"m1", "hot", ""}, []string{"inbox_markers_pkey"}, 1},
		{"lockMarkerSQL", lockMarkerSQL, []any{"m1", "hot", ""}, []string{"inbox_markers_pkey"}, 2},
		{"deleteMarkersSQL", deleteMarkersSQL, []any{now, 100},
			[]string{"inbox_markers_expires_at", places["markers"]}, 300},
		{"deleteAuditSQL", deleteAuditSQL, []any{now, 100}, []string{"inbox_audit_occurred_at", places["audit"]}, 300},
		{"deleteRejectedSQL", deleteRejectedSQL, []any{now, 100},
			[]string{"inbox_rejected_messages_rejected_at", places["rejected_messages"]}, 300},
	}
}

// withoutJIT are the statements that run with jit off, whatever they seem to cost.
var withoutJIT = []string{"backlogSQL", "expiredSQL", "expiredSizesSQL", "expiredMessagesSQL", "expiredStatusesSQL",
	"cleanupLockSQL", "cleanupMessagesSQL", "cleanupStatusesSQL", "deleteStatusesSQL", "deleteMessagesSQL"}

// requireNotCompiled fails if PostgreSQL compiles the statement. That takes from a tenth of a second
// to seconds, at each execution.
func requireNotCompiled(t *testing.T, each planned, plan sqltest.Plan) {
	t.Helper()
	if !slices.Contains(withoutJIT, each.name) {
		require.LessOrEqual(t, plan.Cost, sqltest.JITCost/4, "a bloated index makes it more")
		require.False(t, plan.Compiled)
	}
}

// TestPostgresPlans checks which index serves each statement among a million rows. A statement that
// is not listed here fails the test. It checks the plans of a generic prepared statement, which
// never sees its arguments, and those made for the arguments. Both are checked right after the rows
// came and after they are analyzed. No plan scans a table that grows. Without statistics, nothing
// more can be required.
func TestPostgresPlans(t *testing.T) {
	t.Parallel() // much of it waits for disks
	x := openExplainer(t)
	db := x.db
	loadMillion(t, db)
	plans := plansOf(t, x, 100)
	portable := differing(plansOf(t, x.portable(t), 100))
	var listed []string
	for _, each := range slices.Concat(plans, portable) {
		listed = append(listed, each.name)
	}
	unlisted := slices.DeleteFunc(sqltest.Statements(t, "..", "../base"), func(name string) bool {
		return slices.Contains(listed, name) || slices.Contains(ofPartitions, name)
	})
	require.Empty(t, unlisted, "statements without a plan in this test")

	use := func(t *testing.T, x explainer, plans []planned, mode string, analyzed bool) {
		for _, each := range plans {
			t.Run(each.name, func(t *testing.T) {
				explained := x.explain(t, mode, each.statement, each.args...)
				scans := strings.Join(explained.Scans(), "\n") + "\n"
				for _, table := range growing[:2] {
					require.NotContains(t, scans, "Seq Scan inbox_"+table)
				}
				t.Logf("%.0f rows, %.0f pages by\n%s", explained.RowsRead(), explained.Hit+explained.Read, scans)
				if !analyzed {
					return
				}
				for _, table := range growing {
					require.NotContains(t, scans, "Seq Scan inbox_"+table)
				}
				for _, expected := range each.expected {
					require.Contains(t, scans, expected)
				}
				require.LessOrEqual(t, explained.RowsRead(), each.most, scans)
				requireNotCompiled(t, each, explained)
			})
		}
	}
	modes := []string{"force_custom_plan", "force_generic_plan"}
	for _, mode := range modes {
		t.Run("without statistics by "+mode, func(t *testing.T) { use(t, x, plans, mode, false) })
		t.Run("portable, without statistics by "+mode, func(t *testing.T) { use(t, x.portable(t), portable, mode, false) })
	}
	for _, table := range growing {
		require.NoError(t, db.Exec(`ANALYZE inbox_`+table).Error)
	}
	for _, mode := range modes {
		t.Run("by "+mode, func(t *testing.T) { use(t, x, plans, mode, true) })
		t.Run("portable, by "+mode, func(t *testing.T) { use(t, x.portable(t), portable, mode, true) })
	}
}

// TestFullBatchesReadTheirRowsOnly checks a batch's plan in a table of medium size, where the planner
// would prefer a scan of the table to a thousand index scans.
func TestFullBatchesReadTheirRowsOnly(t *testing.T) {
	t.Parallel()
	const rows, batch = 50_000, 1000
	x := openExplainer(t)
	sqltest.Load(t, x.db,
		fmt.Sprintf(`INSERT INTO inbox_messages SELECT 'm' || n, '', n, '', '', '', '\x00', '', '{}', NULL, now() FROM generate_series(1, %d) n`, rows),
		fmt.Sprintf(`INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, created_at, outcome)
		SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, n, 'm' || n, 'h', now(), '' FROM generate_series(1, %d) n`, rows))
	ids, versions, outcomes := make([]string, batch), make([]int64, batch), make([]string, batch)
	messageIDs, namespaces, hashes := make([]string, batch), make([]string, batch), make([][]byte, batch)
	messages, keys := make([]int64, batch), make([]string, batch)
	for i := range ids {
		messages[i], keys[i] = int64(20*i+1), "h"
		ids[i], messageIDs[i] = fmt.Sprintf("00000000-0000-7000-8000-%012x", 20*i+1), fmt.Sprint("m", 20*i+1)
	}
	counts, flags := make([]int32, batch), make([]bool, batch)
	texts, times := make([]*string, batch), make([]*time.Time, batch)
	settled := []any{ids, versions, counts, counts, texts, times, flags, texts, times, counts}
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			require.NoError(t, x.db.Exec(`ANALYZE inbox_messages, inbox_handler_statuses`).Error)
		}
		for _, each := range []struct {
			name, statement string
			args            []any
		}{
			{"completeSQL", completeSQL, []any{million, ids, versions, outcomes}},
			{"completeUnlockedSQL", completeUnlockedSQL, []any{million, ids, versions, outcomes}},
			{"currentSQL", currentSQL, []any{ids, versions}},
			{"statesSQL", statesSQL, []any{messages, keys}},
			{"settleSQL", settleSQL, settled},
			{"settleUnlockedSQL", settleUnlockedSQL, settled},
			{"deleteStatusesSQL", deleteStatusesSQL, []any{messages, keys, versions, ids}},
			{"acceptLockSQL", acceptLockSQL, []any{messageIDs, hashes, namespaces, time.Now()}},
		} {
			t.Run(fmt.Sprintf("%s, analyzed %t", each.name, analyzed), func(t *testing.T) {
				explained := x.explain(t, "force_custom_plan", each.statement, each.args...)
				require.NotContains(t, strings.Join(explained.Scans(), "\n"), "Seq Scan inbox_")
			})
		}
	}
}

func newUUIDs(n int) []string {
	made := make([]string, n)
	for i := range made {
		made[i] = uuid.NewString()
	}
	return made
}
