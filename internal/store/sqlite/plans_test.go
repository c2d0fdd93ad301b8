package sqlite

import (
	"database/sql"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/sqltest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// TestSQLitePlans checks which index serves each statement on SQLite, as SQLite reports it. A
// statement that is not listed here fails the test.
func TestSQLitePlans(t *testing.T) {
	db := testenv.SQLite(t)
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	s, err := New(db, models.Naming{}, store.Options{})
	require.NoError(t, err)
	now := store.SQLiteTime(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))
	const (
		due        = "USING INDEX inbox_handler_statuses_due (handler_key=? AND <expr>"
		statusID   = "USING INDEX inbox_handler_statuses_open (id=?)"
		messageID  = "USING INDEX sqlite_autoindex_inbox_messages_1 (id=? AND namespace=?)"
		number     = "INDEX inbox_messages_number (number=?)"
		byMessage  = "INDEX sqlite_autoindex_inbox_handler_statuses_1 (message_number=?"
		lane       = "INDEX inbox_handler_statuses_lane (lane_handler=? AND lane_key=?"
		rejectedID = "USING INDEX sqlite_autoindex_inbox_rejected_messages_1 (id=?)"
		holder     = "INDEX inbox_handler_statuses_lane_holder (lane_handler=? AND lane_key=?)"
	)
	window := store.Window{After: &store.Place{StatusID: "id"}, StatusIDs: []string{"id"}}
	windowed, windowedArgs := within(&window, claimSQL, now, "w", "mail", 10, nil, nil, nil, 1, 32<<20)
	windowedHeads, windowedHeadsArgs := within(&window, claimHeadsSQL, now, "w", "mail", 10, 1020, "[1, 2]", false, 1, 32<<20)
	plans := []struct {
		name, statement string
		args            []any
		expected        string
	}{
		{"claimSQL", claimSQL, []any{now, "w", "mail", 10, nil, nil, nil, 1, 32 << 20}, due},
		{"claimHeadsSQL", claimHeadsSQL, []any{now, "w", "mail", 10, 1020, "[1, 2]", false, 1, 32 << 20}, due},
		{"claimHeadsSQL", claimHeadsSQL, []any{now, "w", "mail", 10, 1020, "[1, 2]", false, 1, 32 << 20}, lane +
			" AND is_poisoned=? AND (sequence,id)<(?,?))"},
		{"claimHeadsSQL", claimHeadsSQL, []any{now, "w", "mail", 10, 1020, "[1, 2]", false, 1, 32 << 20}, holder},
		{"markWindowSQL", markWindowSQL, []any{now, "w", "mail", 1020, 10}, due + "<?)"},
		{"markPassedSQL", markPassedSQL, []any{now, "w", "mail", "id", 10}, due + "<?)"},
		{"markPassedSQL", markPassedSQL, []any{now, "w", "mail", "id", 10}, due + "=? AND id<?)"},
		{"firstsSQL", firstsSQL, []any{"[]", now}, lane + " AND is_poisoned=?)"},
		{"firstsSQL", firstsSQL, []any{"[]", now}, holder},
		{"followersSQL", followersSQL, []any{"[]", now, 1000}, statusID},
		{"followersSQL", followersSQL, []any{"[]", now, 1000}, lane + " AND is_poisoned=? AND (sequence,id)<(?,?))"},
		{"followersSQL", followersSQL, []any{"[]", now, 1000}, lane + " AND is_poisoned=? AND (sequence,id)>(?,?))"},
		{"claimRunsSQL", claimRunsSQL, []any{now, "w", "[]"}, statusID},
		{"freeSQL", freeSQL, []any{"[]"}, statusID},
		{"claimNextSQL", claimNextSQL, []any{now, "w", "[]"}, statusID},
		{"WaitingLanesSQL", strings.ReplaceAll(base.WaitingLanesSQL, "$", "?"), []any{1, 2, 3},
			"inbox_handler_statuses_waiting_lane (lane_handler=? AND lane_key>?)"},
		{"WaitingLaneHandlersSQL", base.WaitingLaneHandlersSQL, nil, "inbox_handler_statuses_waiting_lane (lane_handler>?)"},
		{"LaneHandlersSQL", base.LaneHandlersSQL, nil, "INDEX inbox_handler_statuses_lane (lane_handler>?)"},
		{"LaneHandlerKeysSQL", strings.ReplaceAll(base.LaneHandlerKeysSQL, "$", "?"), []any{1, 200},
			"INDEX inbox_handler_statuses_lane (lane_handler=?"},
		{"releaseWaitingSQL", releaseWaitingSQL, []any{"[]", 10}, "inbox_handler_statuses_waiting (handler_key=?)"},
		{"PendingKeysSQL", base.PendingKeysSQL, nil, "INDEX inbox_handler_statuses_waiting (handler_key>?)"},
		{"nextDueSQL", nextDueSQL, []any{"mail", now}, due},
		{"windowRowsSQL", windowRowsSQL, []any{"mail", now, now, "id", "[]"},
			"USING INDEX inbox_handler_statuses_due (handler_key=? AND <expr>>?"},
		{"windowRowsSQL", windowRowsSQL, []any{"mail", now, now, "id", "[]"}, number},
		{"claimSQL", windowed, windowedArgs, "USING INDEX inbox_handler_statuses_due (handler_key=? AND <expr>>?"},
		{"claimHeadsSQL", windowedHeads, windowedHeadsArgs, "USING INDEX inbox_handler_statuses_due (handler_key=? AND <expr>>?"},
		{"messagesSQL", messagesSQL, []any{"[]"}, number},
		{"rejectedSQL.Load", rejectedSQL.Load, []any{"id"}, rejectedID},
		{"rejectedSQL.Remove", rejectedSQL.Remove, []any{"id"}, rejectedID},
		{"rejectedSQL.Reason", rejectedSQL.Reason, []any{"id", "bad"}, rejectedID},
		{"requestsSQL.List", requestsSQL.List, []any{"c", now, 1000},
			"INDEX sqlite_autoindex_inbox_partition_requests_1 (channel=?)"},
		{"requestsSQL.Delete", requestsSQL.Delete, []any{"c", "t", 0, "id"},
			"INDEX sqlite_autoindex_inbox_partition_requests_1 (channel=? AND topic=? AND partition=?)"},
		{"publishingSQL.Statuses", publishingSQL.Statuses, []any{"mail", "id", 10},
			"INDEX inbox_handler_statuses_unpublished (handler_key=? AND id>?)"},
		{"publishingSQL.Rejected", publishingSQL.Rejected, []any{"c", "id", 10},
			"INDEX inbox_rejected_messages_unpublished (channel=? AND id>?)"},
		{"publishingSQL.Status", publishingSQL.Status, []any{"id", 10}, statusID},
		{"publishingSQL.Status", publishingSQL.Status, []any{"id", 10}, number},
		{"publishingSQL.Record", publishingSQL.Record, []any{"id", 10}, rejectedID},
		{"publishingSQL.MarkStatus", publishingSQL.MarkStatus, []any{"id", 1, now}, statusID},
		{"publishingSQL.MarkRejected", publishingSQL.MarkRejected, []any{"id", now}, rejectedID},
		{"siblingsSQL", siblingsSQL, []any{"[]", "[]"}, byMessage},
		{"completeSQL", completeSQL, []any{now, "[]"}, statusID},
		{"settleSQL", settleSQL, []any{"[]"}, statusID},
		{"statesSQL", statesSQL, []any{"[]"}, byMessage},
		{"openClaimsSQL", openClaimsSQL, []any{0, "mail", now, "id"},
			"USING INDEX inbox_handler_statuses_due (handler_key=? AND <expr>>?)"},
		{"PendingKeysSQL", base.PendingKeysSQL, nil, "INDEX inbox_handler_statuses_due (handler_key>?)"},
		{"backlogSQL", backlogSQL, []any{now, nil, "mail", 10, nil, "[1]", false}, due},
		{"backlogSQL", backlogSQL, []any{now, nil, "mail", 10, nil, "[1]", false}, lane +
			" AND is_poisoned=? AND (sequence,id)<(?,?))"},
		{"backlogSQL", backlogSQL, []any{now, nil, "mail", 10, nil, "[1]", false},
			"inbox_handler_statuses_waiting (handler_key=?)"},
		{"backlogSQL", backlogSQL, []any{now, nil, "mail", 10, nil, "[1]", false},
			"inbox_handler_statuses_poisoned (handler_key=?)"},
		{"acceptKnownSQL", acceptKnownSQL, []any{"[]"}, messageID},
		{"acceptKeysSQL", acceptKeysSQL, []any{"[]", "[]"}, byMessage},
		{"candidatesSQL", candidatesSQL, []any{now, now, 0, 10}, "INDEX inbox_messages_received_at ("},
		{"expiredSQL", expiredSQL, []any{now, now, 0, 10, now, "[]"}, "INDEX inbox_messages_received_at ("},
		{"expiredSQL", expiredSQL, []any{now, now, 0, 10, now, "[]"}, byMessage},
		{"expiredSizesSQL", expiredSizesSQL, []any{"[]"}, number},
		{"expiredMessagesSQL", expiredMessagesSQL, []any{"[]"}, number},
		{"expiredStatusesSQL", expiredStatusesSQL, []any{"[]"}, byMessage},
		{"deleteStatusesSQL", deleteStatusesSQL, []any{"[]"}, byMessage},
		{"hasMarkerSQL", hasMarkerSQL, []any{"m", "h", ""},
			"INDEX sqlite_autoindex_inbox_markers_1 (message_id=? AND handler_key=? AND namespace=?)"},
		{"deleteMarkersSQL", deleteMarkersSQL, []any{now, 10}, "INDEX inbox_markers_expires_at (expires_at<?)"},
		{"deleteAuditSQL", deleteAuditSQL, []any{now, 10}, "INDEX inbox_audit_occurred_at (occurred_at<?)"},
		{"deleteRejectedSQL", deleteRejectedSQL, []any{now, 10}, "INDEX inbox_rejected_messages_rejected_at"},
		{"cleanupMessagesSQL", cleanupMessagesSQL, []any{"[]"}, byMessage},
		{"cleanupStatusesSQL", cleanupStatusesSQL, []any{now, now, 0, 10, now, "[]"}, byMessage},
		{"takeNumbersSQL", takeNumbersSQL, []any{1}, "SEARCH inbox_messages USING COVERING INDEX inbox_messages_number"},
		{"takeNumbersSQL", takeNumbersSQL, []any{1}, "INDEX sqlite_autoindex_inbox_meta_1 (key=?)"},
		{"takeSequencesSQL", takeSequencesSQL, []any{1}, "INDEX sqlite_autoindex_inbox_meta_1 (key=?)"},
		{"acceptStatusesSQL", acceptStatusesSQL, []any{"[]", 1, now}, "SCAN r VIRTUAL TABLE"},
		{"acceptClaimedSQL", acceptClaimedSQL, []any{"[]", 1, now, "w"},
			"USING INDEX sqlite_autoindex_inbox_workers_1 (id=?)"},
		{"acceptDeleteSQL", acceptDeleteSQL, []any{"[]"}, "INDEX inbox_handler_statuses_open (id=?)"},
		{"anyDueSQL", anyDueSQL, []any{now, "mail"}, due},
		{"currentSQL", currentSQL, []any{"[]"}, statusID},
	}
	listed := []string{
		"fileSQL",                                                        // reads no table
		"makeCountersSQL",                                                // reads the tables, once
		"acceptRejectedSQL", "keepGapSQL", "addMarkerSQL", "addAuditSQL", // no condition
		// All of tables with a few rows.
		"acquireLeasesSQL", "leaseOwnersSQL", "releaseLeasesSQL", "deleteLeasesSQL", "pausedSQL", "setPausedSQL",
		"setLegacyKeysSQL", "LegacyKeysSQL",
		"heartbeatSQL", "recordDrainSQL", "workerLivesSQL", "stopWorkerSQL", "workersSQL", "markReleasedSQL",
		"deleteWorkersSQL",
		"recordProgressSQL", "declareTopicsSQL", "countUndeclaredSQL", "furthestBehindSQL", "forgetPartitionsSQL",
	}
	for _, each := range plans {
		listed = append(listed, each.name)
	}
	unlisted := slices.DeleteFunc(sqltest.Statements(t, "..", "../base"), func(name string) bool {
		return slices.Contains(listed, name)
	})
	require.Empty(t, unlisted, "statements without a plan in this test")
	for _, each := range plans {
		steps, err := store.Query(t.Context(), s.Pool(t.Context()), `EXPLAIN QUERY PLAN `+s.Text(each.statement),
			func(rows *sql.Rows, step *string) error {
				var ignored int
				return rows.Scan(&ignored, &ignored, &ignored, step)
			}, each.args...)
		require.NoError(t, err, each.name)
		plan := strings.Join(steps, "\n")
		require.Contains(t, plan, each.expected, each.name)
		require.NotRegexp(t, `SCAN (inbox_messages|inbox_handler_statuses|m)($|\n)`, plan, each.name)
		// a few rows, in an order that no index has
		if each.statement != siblingsSQL && each.statement != base.PendingKeysSQL {
			require.NotContains(t, plan, "TEMP B-TREE FOR ORDER BY", each.name)
		}
	}
}
