package store

import (
	"database/sql"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/sqltest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// Which index serves what on SQLite, by its own word, statement by statement: one
// that is not listed here fails the test.
func TestSQLitePlans(t *testing.T) {
	s := openMigrated(t, testenv.SQLite(t)).(*sqlite)
	now := SQLiteTime(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))
	const (
		due        = "USING INDEX inbox_handler_statuses_due (handler_key=? AND <expr>"
		statusID   = "USING INDEX sqlite_autoindex_inbox_handler_statuses_1 (id=?)"
		messageID  = "USING INDEX sqlite_autoindex_inbox_messages_1 (id=? AND namespace=?)"
		number     = "INDEX inbox_messages_number (number=?)"
		byMessage  = "INDEX inbox_handler_statuses_message_handler (message_number=?"
		lane       = "INDEX inbox_handler_statuses_lane (lane_handler=? AND lane_key=?"
		rejectedID = "USING INDEX sqlite_autoindex_inbox_rejected_messages_1 (id=?)"
		holder     = "INDEX inbox_handler_statuses_lane_holder (lane_handler=? AND lane_key=?)"
	)
	plans := []struct {
		name, statement string
		args            []any
		expected        string
	}{
		{"sqliteClaim", sqliteClaim, []any{now, "w", "mail", 10}, due},
		{"sqliteClaimHeads", sqliteClaimHeads, []any{now, "w", "mail", 10, 1020, "[1, 2]", false}, due},
		{"sqliteClaimHeads", sqliteClaimHeads, []any{now, "w", "mail", 10, 1020, "[1, 2]", false}, lane + " AND is_poisoned=? AND (sequence,id)<(?,?))"},
		{"sqliteClaimHeads", sqliteClaimHeads, []any{now, "w", "mail", 10, 1020, "[1, 2]", false}, holder},
		{"sqliteMarkWindow", sqliteMarkWindow, []any{now, "w", "mail", 1020, 10}, due + "<?)"},
		{"sqliteMarkPassed", sqliteMarkPassed, []any{now, "w", "mail", "id", 10}, due + "<?)"},
		{"sqliteMarkPassed", sqliteMarkPassed, []any{now, "w", "mail", "id", 10}, due + "=? AND id<?)"},
		{"sqliteFirsts", sqliteFirsts, []any{"[]", now}, lane + " AND is_poisoned=?)"},
		{"sqliteFirsts", sqliteFirsts, []any{"[]", now}, holder},
		{"sqliteFree", sqliteFree, []any{"[]"}, statusID},
		{"waitingLanes", numbered(waitingLanes), []any{1, 2, 3}, "inbox_handler_statuses_waiting_lane (lane_handler=? AND lane_key>?)"},
		{"waitingLaneHandlers", waitingLaneHandlers, nil, "inbox_handler_statuses_waiting_lane (lane_handler>?)"},
		{"laneHandlers", laneHandlers, nil, "INDEX inbox_handler_statuses_lane (lane_handler>?)"},
		{"laneHandlerKeys", numbered(laneHandlerKeys), []any{1, 200}, "INDEX inbox_handler_statuses_lane (lane_handler=?"},
		{"sqliteReleaseWaiting", sqliteReleaseWaiting, []any{"[]", 10}, "inbox_handler_statuses_waiting (handler_key=?)"},
		{"sqliteWaitingOf", sqliteWaitingOf, []any{"mail", 10}, "USING INDEX inbox_handler_statuses_waiting (handler_key=?)"},
		{"pendingKeys", pendingKeys, nil, "INDEX inbox_handler_statuses_waiting (handler_key>?)"},
		{"sqliteNextDue", sqliteNextDue, []any{"mail", now}, due},
		{"sqliteMessages", sqliteMessages, []any{"[]"}, number},
		{"sqliteRejected.load", sqliteRejected.load, []any{"id"}, rejectedID},
		{"sqliteRejected.remove", sqliteRejected.remove, []any{"id"}, rejectedID},
		{"sqliteRejected.reason", sqliteRejected.reason, []any{"id", "bad"}, rejectedID},
		{"sqliteSiblings", sqliteSiblings, []any{"[]", "[]"}, byMessage},
		{"sqliteComplete", sqliteComplete, []any{now, "[]"}, statusID},
		{"sqliteSettle", sqliteSettle, []any{"[]"}, statusID},
		{"sqliteStates", sqliteStates, []any{"[]"}, statusID},
		{"sqliteClaimsOf", sqliteClaimsOf, []any{"w", 10}, "USING INDEX inbox_handler_statuses_due"},
		{"sqliteOldestClaimsOf", sqliteOldestClaimsOf, []any{"w", "mail", 10}, "USING INDEX inbox_handler_statuses_due (handler_key=?)"},
		{"sqliteStuckClaims", sqliteStuckClaims, []any{now, 10}, "USING INDEX inbox_handler_statuses_due"},
		{"pendingKeys", pendingKeys, nil, "INDEX inbox_handler_statuses_due (handler_key>?)"},
		{"sqliteBacklog", sqliteBacklog, []any{now, nil, "mail", 10, nil, "[1]", false}, due},
		{"sqliteBacklog", sqliteBacklog, []any{now, nil, "mail", 10, nil, "[1]", false}, lane + " AND is_poisoned=? AND (sequence,id)<(?,?))"},
		{"sqliteBacklog", sqliteBacklog, []any{now, nil, "mail", 10, nil, "[1]", false}, "inbox_handler_statuses_waiting (handler_key=?)"},
		{"sqliteBacklog", sqliteBacklog, []any{now, nil, "mail", 10, nil, "[1]", false}, "inbox_handler_statuses_poisoned (handler_key=?)"},
		{"sqlitePendingOf", sqlitePendingOf, []any{"mail", 10}, "USING INDEX inbox_handler_statuses_due (handler_key=?)"},
		{"sqliteAcceptKnown", sqliteAcceptKnown, []any{"[]"}, messageID},
		{"sqliteAcceptKeys", sqliteAcceptKeys, []any{"[]"}, byMessage},
		{"sqliteCandidates", sqliteCandidates, []any{now, now, 0, 10}, "INDEX inbox_messages_received_at ("},
		{"sqliteExpired", sqliteExpired, []any{now, now, 0, 10, now, "[]"}, "INDEX inbox_messages_received_at ("},
		{"sqliteExpired", sqliteExpired, []any{now, now, 0, 10, now, "[]"}, byMessage},
		{"sqliteExpiredSizes", sqliteExpiredSizes, []any{"[]"}, number},
		{"sqliteExpiredMessages", sqliteExpiredMessages, []any{"[]"}, number},
		{"sqliteExpiredStatuses", sqliteExpiredStatuses, []any{"[]"}, byMessage},
		{"sqliteDeleteStatuses", sqliteDeleteStatuses, []any{"[]"}, statusID},
		{"sqliteHasMarker", sqliteHasMarker, []any{"m", "h", ""}, "INDEX sqlite_autoindex_inbox_markers_1 (message_id=? AND handler_key=? AND namespace=?)"},
		{"sqliteDeleteMarkers", sqliteDeleteMarkers, []any{now, 10}, "INDEX inbox_markers_expires_at (expires_at<?)"},
		{"sqliteDeleteAudit", sqliteDeleteAudit, []any{now, 10}, "INDEX inbox_audit_occurred_at (occurred_at<?)"},
		{"sqliteDeleteRejected", sqliteDeleteRejected, []any{now, 10}, "INDEX inbox_rejected_messages_rejected_at"},
		{"sqliteCleanupMessages", sqliteCleanupMessages, []any{"[]"}, byMessage},
		{"sqliteCleanupStatuses", sqliteCleanupStatuses, []any{now, now, 0, 10, now, "[]"}, byMessage},
		{"sqliteCounters", sqliteCounters, []any{1}, "SEARCH inbox_messages USING COVERING INDEX inbox_messages_number"},
		{"sqliteCounters", sqliteCounters, []any{1}, "INDEX sqlite_autoindex_inbox_meta_1 (key=?)"},
		{"sqliteAcceptStatuses", sqliteAcceptStatuses, []any{"[]", 1, now}, "SCAN r VIRTUAL TABLE"},
		{"sqliteAcceptClaimed", sqliteAcceptClaimed, []any{"[]", 1, now, "w"}, "USING INDEX sqlite_autoindex_inbox_workers_1 (id=?)"},
		{"sqliteAcceptDelete", sqliteAcceptDelete, []any{"[]"}, "INDEX sqlite_autoindex_inbox_handler_statuses_1 (id=?)"},
		{"sqliteAnyDue", sqliteAnyDue, []any{now, "mail"}, due},
		{"sqliteCurrent", sqliteCurrent, []any{"[]"}, statusID},
		{"sqliteDeleteWorkers", sqliteDeleteWorkers, []any{"[]"}, "USING INDEX inbox_handler_statuses_due"},
	}
	listed := []string{
		"sqliteFile",                                                                 // reads no table
		"sqliteMakeCounters",                                                         // reads the tables, once
		"sqliteAcceptRejected", "sqliteKeepGap", "sqliteAddMarker", "sqliteAddAudit", // no condition
		// All of tables with a few rows.
		"sqliteAcquireLease", "sqliteLeaseOwner", "sqliteReleaseLease", "sqliteDeleteLeases", "sqlitePaused", "sqliteSetPaused",
		"sqliteHeartbeat", "sqliteRecordDrain", "sqliteWorkerLives", "sqliteStopWorker", "sqliteWorkers", "sqliteMarkReleased",
	}
	for _, each := range plans {
		listed = append(listed, each.name)
	}
	unlisted := slices.DeleteFunc(sqltest.Statements(t), func(name string) bool { return strings.HasPrefix(name, "postgres") || slices.Contains(listed, name) })
	require.Empty(t, unlisted, "statements whose plan nobody looks at")
	for _, each := range plans {
		steps, err := Query(t.Context(), s.pool(t.Context()), `EXPLAIN QUERY PLAN `+s.text(each.statement), func(rows *sql.Rows, step *string) error {
			var ignored int
			return rows.Scan(&ignored, &ignored, &ignored, step)
		}, each.args...)
		require.NoError(t, err, each.name)
		plan := strings.Join(steps, "\n")
		require.Contains(t, plan, each.expected, each.name)
		require.NotRegexp(t, `SCAN (inbox_messages|inbox_handler_statuses|m)($|\n)`, plan, each.name)
		if each.statement != sqliteSiblings && each.statement != pendingKeys { // a few rows, in an order that no index has
			require.NotContains(t, plan, "TEMP B-TREE FOR ORDER BY", each.name)
		}
	}
}
