package store

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// Which index serves what on SQLite, by its own word.
func TestSQLitePlans(t *testing.T) {
	db := testenv.SQLite(t)
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	opened, err := New(db, models.Naming{})
	require.NoError(t, err)
	s := opened.(*sqlite)
	now := SQLiteTime(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))
	const (
		due        = "USING INDEX inbox_handler_statuses_due (handler_key=? AND <expr>"
		statusID   = "USING INDEX sqlite_autoindex_inbox_handler_statuses_1 (id=?)"
		messageID  = "USING INDEX sqlite_autoindex_inbox_messages_1 (id=?)"
		number     = "INDEX inbox_messages_number (number=?)"
		byMessage  = "INDEX inbox_handler_statuses_message_handler (message_number=?"
		lane       = "INDEX inbox_handler_statuses_lane (lane_handler=? AND lane_key=?"
		rejectedID = "USING INDEX sqlite_autoindex_inbox_rejected_messages_1 (id=?)"
		holder     = "INDEX inbox_handler_statuses_lane_holder (lane_handler=? AND lane_key=?)"
	)
	for _, each := range []struct {
		name, statement string
		args            []any
		expected        string
	}{
		{"claim", sqliteClaim, []any{now, "w", "mail", 10}, due},
		{"claim from lanes finds the window", sqliteClaimHeads, []any{now, "w", "mail", 10, 1020, "[1, 2]", false}, due},
		{"claim from lanes judges", sqliteClaimHeads, []any{now, "w", "mail", 10, 1020, "[1, 2]", false}, lane + " AND is_poisoned=? AND (sequence,id)<(?,?))"},
		{"claim from lanes asks for the holder", sqliteClaimHeads, []any{now, "w", "mail", 10, 1020, "[1, 2]", false}, holder},
		{"mark the rest of the window", sqliteMarkWindow, []any{now, "w", "mail", 1020, 10}, due + "<?)"},
		{"mark what came due before the last claim", sqliteMarkPassed, []any{now, "w", "mail", "id", 10}, due + "<?)"},
		{"mark what came due with the last claim", sqliteMarkPassed, []any{now, "w", "mail", "id", 10}, due + "=? AND id<?)"},
		{"first of lanes", sqliteFirsts, []any{"[]", now}, lane + " AND is_poisoned=?)"},
		{"holder of lanes", sqliteFirsts, []any{"[]", now}, holder},
		{"let go", sqliteFree, []any{"[]"}, statusID},
		{"waiting lanes", numbered(waitingLanes), []any{1, 2, 3}, "inbox_handler_statuses_waiting_lane (lane_handler=? AND lane_key>?)"},
		{"waiting lane handlers", waitingLaneHandlers, nil, "inbox_handler_statuses_waiting_lane (lane_handler>?)"},
		{"names of lanes", laneHandlers, nil, "INDEX inbox_handler_statuses_lane (lane_handler>?)"},
		{"handler keys of lanes", numbered(laneHandlerKeys), []any{1, 200}, "INDEX inbox_handler_statuses_lane (lane_handler=?"},
		{"release waiting", sqliteReleaseWaiting, []any{"[]", 10}, "inbox_handler_statuses_waiting (handler_key=?)"},
		{"waiting of a key", sqliteWaitingOf, []any{"mail", 10}, "USING INDEX inbox_handler_statuses_waiting (handler_key=?)"},
		{"waiting keys", pendingKeys, nil, "INDEX inbox_handler_statuses_waiting (handler_key>?)"},
		{"next due", sqliteNextDue, []any{"mail", now}, due},
		{"messages of claims", sqliteMessages, []any{"[]"}, number},
		{"load a rejected message", sqliteRejected.load, []any{"id"}, rejectedID},
		{"delete a rejected message", sqliteRejected.remove, []any{"id"}, rejectedID},
		{"set a rejected message's reason", sqliteRejected.reason, []any{"id", "bad"}, rejectedID},
		{"siblings find messages", sqliteSiblings, []any{"[]", "[]"}, messageID},
		{"siblings", sqliteSiblings, []any{"[]", "[]"}, byMessage},
		{"complete", sqliteComplete, []any{now, "[]"}, statusID},
		{"settle", sqliteSettle, []any{"[]"}, statusID},
		{"states", sqliteStates, []any{"[]"}, statusID},
		{"claims of a worker", sqliteClaimsOf, []any{"w", 10}, "USING INDEX inbox_handler_statuses_due"},
		{"stuck claims", sqliteStuckClaims, []any{now, 10}, "USING INDEX inbox_handler_statuses_due"},
		{"pending keys", pendingKeys, nil, "INDEX inbox_handler_statuses_due (handler_key>?)"},
		{"pending of a key", sqlitePendingOf, []any{"mail", 10}, "USING INDEX inbox_handler_statuses_due (handler_key=?)"},
		{"known messages", sqliteAcceptKnown, []any{"[]"}, messageID},
		{"handler keys of known messages", sqliteAcceptKeys, []any{"[]"}, byMessage},
		{"cleanup finds messages", sqliteCandidates, []any{now, now, 0, 10}, "INDEX inbox_messages_received_at ("},
		{"cleanup finds expired messages", sqliteExpired, []any{now, now, 0, 10, now, "[]"}, "INDEX inbox_messages_received_at ("},
		{"cleanup finds their statuses", sqliteExpired, []any{now, now, 0, 10, now, "[]"}, byMessage},
		{"archive sizes", sqliteExpiredSizes, []any{"[]"}, number},
		{"archive loads messages", sqliteExpiredMessages, []any{"[]"}, number},
		{"archive loads statuses", sqliteExpiredStatuses, []any{"[]"}, byMessage},
		{"archive deletes statuses", sqliteDeleteStatuses, []any{"[]"}, statusID},
		{"prune markers", sqliteDeleteMarkers, []any{now, 10}, "INDEX inbox_markers_expires_at (expires_at<?)"},
		{"prune audit rows", sqliteDeleteAudit, []any{now, 10}, "INDEX inbox_audit_occurred_at (occurred_at<?)"},
		{"prune rejected messages", sqliteDeleteRejected, []any{now, 10}, "INDEX inbox_rejected_messages_rejected_at"},
		{"cleanup deletes messages", sqliteCleanupMessages, []any{"[]"}, byMessage},
		{"cleanup deletes statuses", sqliteCleanupStatuses, []any{now, now, 0, 10, now, "[]"}, byMessage},
	} {
		steps, err := query(t.Context(), s.pool(t.Context()), `EXPLAIN QUERY PLAN `+s.text(each.statement), func(rows *sql.Rows, step *string) error {
			var ignored int
			return rows.Scan(&ignored, &ignored, &ignored, step)
		}, each.args...)
		require.NoError(t, err, each.name)
		plan := strings.Join(steps, "\n")
		require.Contains(t, plan, each.expected, each.name)
		if each.statement != sqliteSiblings { // a few rows, in an order that no index has
			require.NotContains(t, plan, "TEMP B-TREE FOR ORDER BY", each.name)
		}
	}
}
