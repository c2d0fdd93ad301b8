package store

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/sqltest"
)

// Which index serves what among a million rows, statement by statement: a
// statement that is not listed here fails the test. The plans are those of a
// generic prepared statement, which never sees its arguments, as well as those
// made for them, right after the rows came and once they are analyzed. None
// scans a table that grows; without statistics that is all one can ask for.
func TestPostgresPlans(t *testing.T) {
	t.Parallel() // much of it waits for disks
	x := openExplainer(t)
	p, db := x.store, x.db
	now := million
	loadMillion(t, db)

	claims, err := p.Claim(t.Context(), ClaimRequest{Now: now, Limits: []KeyLimit{{HandlerKey: "hot", Limit: 100}}})
	require.NoError(t, err)
	require.Len(t, claims.Claims, 100)
	var ids, places, outcomes, messageIDs, newIDs, keys []string
	var versions, messages []int64
	for _, c := range claims.Claims {
		ids, places, messageIDs = append(ids, c.StatusID), append(places, c.Locator), append(messageIDs, c.MessageID)
		messages = append(messages, int64(c.Message.Number))
		versions, outcomes = append(versions, c.Version), append(outcomes, "processed")
		newIDs, keys = append(newIDs, uuid.NewString()), append(keys, "new")
	}
	worker := uuid.NewString()
	require.NoError(t, p.Heartbeat(t.Context(), Worker{ID: worker, Host: "h"}, now))
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
	lanes := LaneHandler("lanes")
	names := []string{numbers([]int64{lanes})}

	const (
		due       = "Index Scan inbox_handler_statuses inbox_handler_statuses_due"
		place     = "Tid Scan inbox_handler_statuses"
		statusID  = "inbox_handler_statuses_pkey"
		messageID = "inbox_messages_pkey"
		number    = "inbox_messages_number"
		byMessage = "inbox_handler_statuses_message_handler"
		pending   = "inbox_handler_statuses_due" // all that is, for sweeps
		lane      = "inbox_handler_statuses_lane\n"
		holder    = "inbox_handler_statuses_lane_holder"
		waiting   = "inbox_handler_statuses_waiting"

		rejectedID = "inbox_rejected_messages_pkey"
	)
	plans := []struct {
		name, statement string
		args            []any
		expected        []string // each must serve some scan
		most            float64  // rows looked at
	}{
		{"postgresAcceptNew", postgresAcceptNew, []any{listed(newIDs), texts, texts, texts, texts, texts, contents, now, listed(uuids(n)), listed(newIDs), keys, numbersOf, numbersOf, worker, counts, counts, texts, texts, n, contents[0]}, nil, 400},
		{"postgresAcceptNew", postgresAcceptNew, []any{listed(messageIDs), texts, texts, texts, texts, texts, contents, now, listed(newIDs), listed(messageIDs), keys, numbersOf, numbersOf, worker, counts, counts, texts, texts, n, contents[0]}, nil, 400},
		{"postgresAcceptClaimed", postgresAcceptClaimed, []any{listed(newIDs), texts, texts, texts, texts, texts, contents, now, listed(uuids(n)), listed(newIDs), keys, numbersOf, numbersOf, nil, counts, counts, texts, texts, worker, claimed, contents[0]}, nil, 600},
		{"postgresAcceptLock", postgresAcceptLock, []any{messageIDs, hashes, texts}, []string{messageID}, 300},
		{"postgresAcceptKeys", postgresAcceptKeys, []any{messages}, []string{byMessage}, 300},
		{"postgresAcceptStatuses", postgresAcceptStatuses, []any{newIDs, messageIDs, keys, now, numbersOf, numbersOf, nil, messages}, nil, 300},
		{"postgresAcceptDelete", postgresAcceptDelete, []any{ids}, []string{statusID}, 300},
		{"postgresAcceptRejected", postgresAcceptRejected, []any{newIDs, texts, texts, counts, messages, stamps, contents, contents, texts, texts, stamps}, nil, 300},
		{"postgresRejected.load", postgresRejected.load, []any{worker}, []string{rejectedID}, 1},
		{"postgresRejected.remove", postgresRejected.remove, []any{worker}, []string{rejectedID}, 1},
		{"postgresRejected.reason", postgresRejected.reason, []any{worker, "bad"}, []string{rejectedID}, 1},
		{"postgresAddAudit", postgresAddAudit, []any{worker, "a", "retry", "t", "{}", now}, nil, 1},
		{"postgresKeepGap", postgresKeepGap, []any{worker, "c", "t", 0, 1, 2, "gone", now}, nil, 1},

		{"postgresChannel", postgresChannel, nil, nil, 0},
		{"postgresSession", postgresSession, nil, nil, 1},
		{"postgresNotify", postgresNotify, []any{"{}"}, nil, 0},

		{"postgresClaim", postgresClaim, []any{[]string{"hot", "idle"}, []int64{100, 100}, now, worker}, []string{due, place, number}, 600},
		{"postgresClaimManual", postgresClaimManual, []any{[]string{"hot"}, []int64{100}, now, nil}, []string{due, place, number}, 600},
		{"postgresClaimLanes", postgresClaimLanes, []any{[]string{"hot"}, []int64{10}, now, nil, []string{"lanes"}, []int64{10}, names, []bool{false}, laneWindow},
			[]string{due, place, lane, holder, number}, 5000},
		{"postgresNextDue", postgresNextDue, []any{[]string{"hot", "paused", "idle"}, now}, []string{due}, 10},
		{"postgresSiblings", postgresSiblings, []any{messages, []string{"hot", "cold"}}, []string{byMessage}, 400},
		{"postgresComplete", postgresComplete, []any{now, listed(ids), versions, listed(outcomes), listedOrNull(places)}, []string{place}, 200},
		{"postgresCompleteMoved", postgresCompleteMoved, []any{now, listed(ids), versions, listed(outcomes)}, []string{statusID}, 300},
		{"postgresCompleteUnlocked", postgresCompleteUnlocked, []any{now, listed(ids), versions, listed(outcomes)}, []string{statusID}, 500},
		{"postgresCompleteOne", postgresCompleteOne, []any{now, ids[0], versions[0], "processed"}, []string{statusID}, 2},
		{"postgresCurrent", postgresCurrent, []any{ids, versions}, []string{statusID}, 300},
		{"postgresSettle", postgresSettle, []any{ids, versions, counts, counts, errors, times, flags}, []string{statusID}, 300},
		{"postgresSettleUnlocked", postgresSettleUnlocked, []any{ids, versions, counts, counts, errors, times, flags}, []string{statusID}, 500},
		{"postgresStates", postgresStates, []any{ids}, []string{statusID}, 300},
		{"postgresLockState", postgresLockState, []any{ids}, []string{statusID}, 300},

		{"postgresAdvance", postgresAdvance, []any{names, []int64{1}, []bool{false}, now}, []string{lane}, 20},
		{"waitingLanes", waitingLanes, []any{lanes, int64(beforeAllLanes), 100}, []string{"inbox_handler_statuses_waiting_lane"}, 10},
		{"waitingLaneHandlers", waitingLaneHandlers, nil, []string{"inbox_handler_statuses_waiting_lane"}, 10},
		{"laneHandlers", laneHandlers, nil, []string{lane}, 10},
		{"laneHandlerKeys", laneHandlerKeys, []any{lanes, strayWindow}, []string{"inbox_handler_statuses_lane"}, strayWindow},
		{"postgresReleaseWaiting", postgresReleaseWaiting, []any{[]string{"lanes", "hot"}, 100}, []string{waiting}, 400},
		{"pendingKeys", pendingKeys, nil, []string{pending, waiting}, 20},
		{"postgresBacklog", postgresBacklog, []any{[]string{"hot", "lanes", "idle"}, []int64{100, 100, 100}, now, []*string{nil, &names[0], nil}, []bool{false, false, false}},
			[]string{due, waiting, "inbox_handler_statuses_poisoned", lane}, 1500},
		{"postgresPendingOf", postgresPendingOf, []any{"paused", 10}, []string{due, waiting}, 30},

		{"postgresClaimsOf", postgresClaimsOf, []any{worker, 100}, []string{pending}, 90000},
		{"postgresOldestClaimsOf", postgresOldestClaimsOf, []any{worker, []string{"hot", "paused", "idle"}, 100}, []string{due}, 300},
		{"postgresStuckClaims", postgresStuckClaims, []any{now, 100}, []string{pending}, 90000},
		{"postgresEvict", postgresEvict, []any{worker}, []string{pending}, 90000},
		{"postgresDeleteWorkers", postgresDeleteWorkers, []any{[]string{worker}}, nil, 90000},
		{"postgresHeartbeat", postgresHeartbeat, []any{worker, "h", 1, "[]", "[]"}, nil, 1},
		{"postgresRecordDrain", postgresRecordDrain, []any{worker, "h", 1, "[]", "[]"}, nil, 1},
		{"postgresWorkerLives", postgresWorkerLives, []any{worker}, nil, 1},
		{"postgresStopWorker", postgresStopWorker, []any{worker}, nil, 2},
		{"postgresWorkers", postgresWorkers, nil, nil, 200}, // and the roles of the server
		{"postgresMarkReleased", postgresMarkReleased, []any{worker}, nil, 2},
		{"postgresDefaultIsolation", postgresDefaultIsolation, nil, nil, 1},
		{"postgresPaused", postgresPaused, nil, nil, 1},
		{"postgresSetPaused", postgresSetPaused, []any{"hot", true, now}, nil, 1},
		{"postgresAcquireLease", postgresAcquireLease, []any{"l", worker, 1000}, nil, 1},
		{"postgresLeaseOwner", postgresLeaseOwner, []any{"l"}, nil, 1},
		{"postgresReleaseLease", postgresReleaseLease, []any{"l", worker}, nil, 1},
		{"postgresDeleteLeases", postgresDeleteLeases, []any{1000}, nil, 1},

		{"postgresExpired", postgresExpired, []any{now, time.Time{}, 0, 1000, now, own, cutoffs}, []string{"inbox_messages_received_at", byMessage}, 5000},
		{"postgresExpired", postgresExpired, []any{now, now.Add(-12 * time.Hour), messages[0], 1000, now, own, cutoffs}, []string{"inbox_messages_received_at", byMessage}, 5000},
		{"postgresCleanupLock", postgresCleanupLock, []any{messages}, []string{number}, 300},
		{"postgresCleanupMessages", postgresCleanupMessages, []any{messages, now, []string{}, []time.Time{}}, []string{byMessage}, 700},
		{"postgresCleanupStatuses", postgresCleanupStatuses, []any{messages, now, []string{}, []time.Time{}}, []string{byMessage}, 300},
		{"postgresExpiredSizes", postgresExpiredSizes, []any{messages}, []string{number}, 300},
		{"postgresExpiredMessages", postgresExpiredMessages, []any{messages}, []string{number}, 300},
		{"postgresExpiredStatuses", postgresExpiredStatuses, []any{messages}, []string{byMessage}, 300},
		{"postgresDeleteStatuses", postgresDeleteStatuses, []any{ids, versions}, []string{statusID}, 300},
		{"postgresDeleteMessages", postgresDeleteMessages, []any{messages}, []string{number, byMessage}, 500},
		{"postgresAddMarker", postgresAddMarker, []any{"m1", "hot", "t", now, now, "10s", ""}, nil, 10},
		{"postgresHasMarker", postgresHasMarker, []any{"m1", "hot", ""}, []string{"inbox_markers_pkey"}, 1},
		{"postgresLockMarker", postgresLockMarker, []any{"m1", "hot", ""}, []string{"inbox_markers_pkey"}, 2},
		{"postgresDeleteMarkers", postgresDeleteMarkers, []any{now, 100}, []string{"inbox_markers_expires_at", "Tid Scan inbox_markers"}, 300},
		{"postgresDeleteAudit", postgresDeleteAudit, []any{now, 100}, []string{"inbox_audit_occurred_at", "Tid Scan inbox_audit"}, 300},
		{"postgresDeleteRejected", postgresDeleteRejected, []any{now, 100}, []string{"inbox_rejected_messages_rejected_at", "Tid Scan inbox_rejected_messages"}, 300},
	}
	var listed []string
	for _, each := range plans {
		listed = append(listed, each.name)
	}
	unlisted := slices.DeleteFunc(sqltest.Statements(t), func(name string) bool { return strings.HasPrefix(name, "sqlite") || slices.Contains(listed, name) })
	require.Empty(t, unlisted, "statements whose plan nobody looks at")

	look := func(t *testing.T, mode string, analyzed bool) {
		for _, each := range plans {
			t.Run(each.name, func(t *testing.T) {
				explained := x.explain(t, mode, each.statement, each.args...)
				scans := strings.Join(explained.Scans(), "\n") + "\n"
				for _, table := range growing[:2] {
					require.NotContains(t, scans, "Seq Scan inbox_"+table)
				}
				t.Logf("%.0f rows, %.0f pages by\n%s", explained.Looked(), explained.Hit+explained.Read, scans)
				if !analyzed {
					return
				}
				for _, table := range growing {
					require.NotContains(t, scans, "Seq Scan inbox_"+table)
				}
				for _, expected := range each.expected {
					require.Contains(t, scans, expected)
				}
				require.LessOrEqual(t, explained.Looked(), each.most, scans)
			})
		}
	}
	modes := []string{"force_custom_plan", "force_generic_plan"}
	for _, mode := range modes {
		t.Run("without statistics by "+mode, func(t *testing.T) { look(t, mode, false) })
	}
	for _, table := range growing {
		require.NoError(t, db.Exec(`ANALYZE inbox_`+table).Error)
	}
	for _, mode := range modes {
		t.Run("by "+mode, func(t *testing.T) { look(t, mode, true) })
	}
}

func uuids(n int) []string {
	made := make([]string, n)
	for i := range made {
		made[i] = uuid.NewString()
	}
	return made
}
