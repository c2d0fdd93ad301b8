package ops

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	postgresdriver "gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/sqltest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

var errRollBack = errors.New("roll back")

// explain executes a statement as a prepared one with this plan_cache_mode, and rolls it back.
func explain(t *testing.T, literal *gorm.DB, o *Ops, mode, statement string, args ...any) (explained sqltest.Plan) {
	t.Helper()
	require.ErrorIs(t, literal.Transaction(func(tx *gorm.DB) error {
		connection := tx.Statement.ConnPool
		for _, statement := range []string{`DEALLOCATE ALL`, `SET LOCAL plan_cache_mode = ` + mode, `PREPARE planned AS ` +
			o.text(statement)} {
			_, err := connection.ExecContext(t.Context(), statement)
			require.NoError(t, err, statement)
		}
		execute := `EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE planned`
		if len(args) > 0 {
			places := make([]string, len(args))
			for i := range places {
				places[i] = fmt.Sprintf("$%d", i+1)
			}
			execute += "(" + strings.Join(places, ", ") + ")"
		}
		rows, err := connection.QueryContext(t.Context(), execute, args...)
		require.NoError(t, err)
		defer rows.Close()
		var text strings.Builder
		for rows.Next() {
			var line string
			require.NoError(t, rows.Scan(&line))
			text.WriteString(line)
		}
		require.NoError(t, rows.Err())
		explained = sqltest.ParsePlan(t, text.String())
		return errRollBack
	}), errRollBack)
	return explained
}

// planned is one statement with the index that must serve it.
type planned struct {
	name, statement string
	args            []any
	expected        string  // an index, on PostgreSQL
	most            float64 // rows looked at, there
	sqlite          string  // what SQLite says; empty if it is a table of a few rows
}

// withoutJIT are the statements that readMany runs.
var withoutJIT = []string{"countGroups", "countInDue", "countInGroup", "countInPoisoned", "countInWaiting", "countOpen",
	"failureGroups", "listAudit", "listDue", "listEarliestRejected", "listGroup", "listOfMessage", "listPoisoned",
	"listReceived", "listRejected", "listUnhandled", "listWaiting", "walkGaps"}

// plansOf returns all statements of the package, with the arguments of a search deep in the list.
func plansOf(o *Ops) []planned {
	id := func(n int) string { return fmt.Sprintf("00000000-0000-7000-8000-%012x", n) }
	lanes := store.LaneHandler("lanes")
	refs := fmt.Sprintf(`[["%s",0],["%s",1]]`, id(1000001), id(1000002))
	now := o.stamp(million)
	const (
		statuses  = "inbox_handler_statuses"
		poisoned  = statuses + "_poisoned"
		due       = statuses + "_due"
		waiting   = statuses + "_waiting"
		failures  = statuses + "_failures"
		lane      = statuses + "_lane"
		statusID  = statuses + "_open"
		ofMessage = statuses + "_pkey"
		auto      = "INDEX sqlite_autoindex_"
	)
	// search returns the arguments of a list from a place on, with this depth.
	search := func(st stage, after place, depth int, of Filter) []any {
		f, err := of.checked()
		if err != nil {
			panic(err)
		}
		args, err := o.scanArguments(f, st, of.HandlerKeys, after, depth, 51)
		if err != nil {
			panic(err)
		}
		return args
	}
	instant := func(n int) string {
		return store.SQLiteTime(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(n) * 80 * time.Millisecond))
	}
	hot := Filter{HandlerKeys: []string{"hot", "idle"}}
	typed := Filter{HandlerKeys: []string{"hot"}, Type: "order.placed", ErrorText: "unknown"}
	lanesOnly := Filter{HandlerKeys: []string{"lanes"}}
	group := Filter{HandlerKeys: []string{"hot", "lanes"}, Fingerprint: "hot"}
	counted := func(before string, most int, of Filter) []any {
		return append([]any{fmt.Sprintf(`[["hot","hot",%q],["lanes","lanes",%q]]`, before, lastID), most},
			o.groupArguments(&filter{Filter: of, states: stateBit(StatePoisoned)})...)
	}
	// unhandled are the arguments of a page of messages in the middle of all.
	middle, err := o.argument(instant(500000))
	if err != nil {
		panic(err)
	}
	unhandled := []any{middle, 500000, `["new","newer"]`, now, 1000, "", "order.placed", true, 2500}
	openOf := []any{`["hot","lanes"]`, now, lookLimit + 1, now}
	added := fmt.Sprintf(`[[7,"m7","%s",null,null],[1000001,"m1000001","%s",-8,9]]`, id(2000001), id(2000002))
	return []planned{
		{"listUnhandled", listUnhandled, unhandled, "inbox_messages_received_at", 1000 * 6,
			"INDEX inbox_messages_received_at ((received_at,number)>(?,?) AND received_at<?)"},
		{"listUnhandled", listUnhandled, unhandled, ofMessage, 1000 * 6, auto + statuses +
			"_1 (message_number=? AND handler_key=?)"},
		{"lockUnhandled", lockUnhandled, []any{`[7,1000001]`}, "inbox_messages_number", 10,
			"INDEX inbox_messages_number (number=?)"},
		{"addStatuses", addStatuses, []any{added, now, `["new","newer"]`, "new"}, ofMessage, 30, auto + statuses +
			"_1 (message_number=?"},
		{"listPoisoned", listPoisoned, search(byPoisoned, place{ID: lastID}, 51, hot), poisoned, 51 * 4, "INDEX " + poisoned +
			" (handler_key=? AND id<?)"},
		{"listPoisoned", listPoisoned, search(byPoisoned, place{ID: id(1005000)}, 5000, typed), poisoned,
			2*5000 + 2*51, "INDEX " + poisoned},
		{"listPoisoned", listPoisoned, search(byPoisoned, place{ID: id(1005000)}, 1000, typed), "inbox_messages_number",
			2*1000 + 2*51, "INDEX inbox_messages_number (number=?)"},
		{"listWaiting", listWaiting, search(byWaiting, place{ID: id(1035000)}, 1000, lanesOnly),
			waiting, 1000 * 4, "INDEX " + waiting + " (handler_key=? AND id<?)"},
		{"listGroup", listGroup, search(byGroup, place{ID: id(1005000)}, 1000, group), failures, 1000 * 4,
			"INDEX " + failures + " (handler_key=? AND fingerprint=? AND id<?)"},
		{"listDue", listDue, search(byDue, place{At: lastTime, ID: lastID}, 1000, hot), due, 1000 * 5,
			"INDEX " + due + " (handler_key=? AND <expr><?)"},
		{"listDue", listDue, search(byDue, place{At: "2026-01-03 12:00:00.000000+00:00", ID: id(1029000)}, 500, hot), due,
			1000 * 6, "INDEX " + due + " (handler_key=? AND <expr>=? AND id<?)"},
		{"listReceived", listReceived, search(byReceived, place{At: instant(500000), Number: 500000}, 1000,
			Filter{Type: "no"}),
			"inbox_messages_received_at", 1000 * 8,
			"INDEX inbox_messages_received_at (received_at>? AND (received_at,number)<(?,?))"},
		{"listReceived", listReceived, search(byReceived, place{At: instant(1000), Number: 1000}, 1000, Filter{
			From: time.Date(2026, 1, 1, 12, 1, 12, 0, time.UTC)}), ofMessage, 115 * 8, auto + statuses +
			"_1 (message_number=?"},
		{"listOfMessage", listOfMessage, search(byMessage, place{At: lastTime}, 51,
			Filter{MessageID: "m7"}), "inbox_messages_pkey", 8, auto + "inbox_messages_1 (id=?)"},
		{"countInPoisoned", countInPoisoned, search(byPoisoned, place{ID: lastID}, 5000, typed), poisoned, 2 * 5000, "INDEX " + poisoned +
			" (handler_key=? AND id<?)"},
		{"countInWaiting", countInWaiting, search(byWaiting, place{ID: lastID}, 5000, lanesOnly), waiting, 5000, "INDEX " + waiting +
			" (handler_key=? AND id<?)"},
		{"countInGroup", countInGroup, search(byGroup, place{ID: lastID}, 5000, group), failures, 2 * 5000,
			"INDEX " + failures + " (handler_key=? AND fingerprint=? AND id<?)"},
		{"countInDue", countInDue, search(byDue, place{At: lastTime, ID: lastID}, 5000, hot), due, 5000,
			"INDEX " + due + " (handler_key=? AND <expr><?)"},
		{"failureGroups", failureGroups, []any{`[["hot",""],["lanes",""]]`, 500}, failures, 20, "INDEX " + failures +
			" (handler_key=? AND fingerprint>?)"},
		{"countGroups", countGroups, counted(id(1028000), 3000, Filter{}), failures, 6000 + 2*5, "INDEX " + failures +
			" (handler_key=? AND fingerprint=? AND id<?)"},
		{"countGroups", countGroups, counted(id(1028000), 3000, Filter{Type: "no"}), "inbox_messages_number", 2*6000 + 2*5,
			"INDEX inbox_messages_number (number=?)"},
		{"namesakes", namesakes, []any{"m7", ""}, "inbox_messages_pkey", 1, auto + "inbox_messages_1 (id=?)"},
		{"loadMessage", loadMessage, []any{7}, "inbox_messages_number", 1, "INDEX inbox_messages_number (number=?)"},
		{"previewMessage", previewMessage, append([]any{7}, o.cuts(PreviewBounds{Content: 10, Key: 10})...),
			"inbox_messages_number", 1, "INDEX inbox_messages_number (number=?)"},
		{"openRows", openRows, []any{fmt.Sprintf(`["%s","%s"]`, id(1000002), id(1000001)), 1000}, statusID, 10,
			"INDEX " + statusID + " (id=?)"},
		{"openRows", openRows, []any{fmt.Sprintf(`["%s","%s"]`, id(1000002), id(1000001)), 1000}, "inbox_messages_number",
			10, "INDEX inbox_messages_number (number=?)"},
		{"rowsOfMessages", rowsOfMessages, []any{`[7,1000001]`, 1000, fmt.Sprintf(`["%s","%s"]`, id(7), id(1000001))},
			ofMessage, 10, auto + statuses + "_1 (message_number=?"},
		{"rowsOfMessages", rowsOfMessages, []any{`[7,1000001]`, 1000, fmt.Sprintf(`["%s","%s"]`, id(7), id(1000001))},
			"inbox_messages_number", 10, "INDEX inbox_messages_number (number=?)"},
		{"rowsOfMessage", rowsOfMessage, []any{1000001, maxListed}, ofMessage, 5, auto + statuses +
			"_1 (message_number=?"},
		{"poisonedKeys", poisonedKeys, []any{maxKeys}, poisoned, 20, "INDEX " + poisoned + " (handler_key>?)"},
		{"dueKeys", dueKeys, []any{maxKeys}, due, 20, "INDEX " + due + " (handler_key>?)"},
		{"waitingKeys", waitingKeys, []any{maxKeys}, waiting, 20, "INDEX " + waiting + " (handler_key>?)"},
		{"failingKeys", failingKeys, []any{maxKeys}, failures, 20, "INDEX " + failures + " (handler_key>?)"},
		{"countOpen", countOpen, openOf, "Index Scan " + statuses + " " + due, 4 * (lookLimit + 51), "INDEX " + due + " (handler_key=? AND <expr><?)"},
		{"countOpen", countOpen, openOf, "Index Only Scan " + statuses + " " + due, 4 * (lookLimit + 51),
			"INDEX " + due + " (handler_key>? AND handler_key<?)"},
		{"countOpen", countOpen, openOf, "Index Only Scan " + statuses + " " + poisoned, 4 * (lookLimit + 51), "INDEX " + poisoned + " (handler_key=?)"},
		{"countOpen", countOpen, openOf, "Index Only Scan " + statuses + " " + waiting, 4 * (lookLimit + 51), "INDEX " + waiting + " (handler_key=?)"},
		{"countPoisoned", countPoisoned, []any{lookLimit + 1, "hot"}, poisoned, lookLimit + 1, "INDEX " + poisoned +
			" (handler_key=?)"},
		{"countRejected", countRejected, []any{lookLimit + 1}, "inbox_rejected_messages_rejected_at", lookLimit + 1,
			"INDEX inbox_rejected_messages_rejected_at"},
		{"countGaps", countGaps, []any{lookLimit + 1}, "inbox_gaps_pkey", lookLimit + 1, auto + "inbox_gaps_1"},
		{"laneAhead", laneAhead, []any{lanes, 1, false, 1040000, lastID, laneCap + 1}, lane, laneCap + 1, "INDEX " + lane +
			" (lane_handler=? AND lane_key=? AND is_poisoned=? AND (sequence,id)<(?,?))"},
		{"laneHead", laneHead, []any{lanes, 1, false}, lane, 2, "INDEX " + lane +
			" (lane_handler=? AND lane_key=? AND is_poisoned=?)"},
		{"sequenceOf", sequenceOf, []any{id(1000001)}, statusID, 1, "INDEX " + statusID + " (id=?)"},
		{"retry", retry, []any{refs, now}, statusID, 10, "INDEX " + statusID + " (id=?)"},
		{"discard", discard, []any{refs, now}, statusID, 10, "INDEX " + statusID + " (id=?)"},
		{"stateNow", stateNow, []any{id(1000001)}, statusID, 1, "INDEX " + statusID + " (id=?)"},
		{"lockMessage", lockMessage, []any{7}, "inbox_messages_number", 1, "INDEX inbox_messages_number (number=?)"},
		{"deleteStatuses", deleteStatuses, []any{1000001}, ofMessage, 2, auto + statuses + "_1 (message_number=?)"},
		{"statusesLeft", statusesLeft, []any{7}, ofMessage, 1, auto + statuses + "_1 (message_number=?)"},
		{"deleteMessage", deleteMessage, []any{7}, "inbox_messages_number", 2, "INDEX inbox_messages_number (number=?)"},
		{"listEarliestRejected", listEarliestRejected, []any{o.stamp(time.Time{}), id(0), o.stamp(time.Time{}), 1000, 51, "", "topic", now,
			"bad", 7}, "inbox_rejected_messages_rejected_at", 1000 * 5,
			"INDEX inbox_rejected_messages_rejected_at ((rejected_at,id)>(?,?) AND rejected_at<?)"},
		{"listRejected", listRejected, []any{now, id(5000), o.stamp(time.Time{}), 1000, 51, "", "", o.stamp(endOfTime),
			"bad", -1},
			"inbox_rejected_messages_rejected_at", 1000 * 5,
			"INDEX inbox_rejected_messages_rejected_at (rejected_at>? AND (rejected_at,id)<(?,?))"},
		{"requestReAccept", requestReAccept, []any{id(7), "ada", now}, "inbox_rejected_messages_pkey", 2, auto +
			"inbox_rejected_messages_1 (id=?)"},
		{"takeReAccept", takeReAccept, []any{id(7), now}, "inbox_rejected_messages_requested", 2, auto +
			"inbox_rejected_messages_1 (id=?)"},
		{"requestedReAccepts", requestedReAccepts, []any{o.stamp(time.Time{}), id(0), MaxLimit},
			"inbox_rejected_messages_requested", 10, "INDEX inbox_rejected_messages_requested ((requested_at,id)>(?,?))"},
		{"oneRejected", oneRejected, []any{id(7)}, "inbox_rejected_messages_pkey", 1, auto +
			"inbox_rejected_messages_1 (id=?)"},
		{"previewRejected", previewRejected, append([]any{id(7)}, o.cuts(PreviewBounds{Content: 10, Key: 10})...),
			"inbox_rejected_messages_pkey", 1, auto + "inbox_rejected_messages_1 (id=?)"},
		{"deleteRejected", deleteRejected, []any{id(7)}, "inbox_rejected_messages_pkey", 2, auto +
			"inbox_rejected_messages_1 (id=?)"},
		{"walkGaps", walkGaps, []any{id(5000), 1000}, "inbox_gaps_pkey", 1000, auto + "inbox_gaps_1 (id<?)"},
		{"markersOf", markersOf, []any{"m500", "", "", maxListed}, "inbox_markers_pkey", 2, auto +
			"inbox_markers_1 (message_id=?)"},
		{"markersOf", markersOf, []any{"m500", "h", "c", maxListed}, "inbox_markers_pkey", 2, auto +
			"inbox_markers_1 (message_id=?)"},
		{"listAudit", listAudit, []any{id(5000), 1000, 51, "", "", "none", o.stamp(time.Time{}), o.stamp(endOfTime), id(1)},
			"inbox_audit_pkey", 1000 * 5, auto + "inbox_audit_1 (id>? AND id<?)"},
		{"auditDetails", auditDetails, []any{fmt.Sprintf(`["%s","%s"]`, id(7), id(1007)), 50}, "inbox_audit_pkey", 2, auto +
			"inbox_audit_1 (id=?)"},
		{"inboxName", inboxName, nil, "", 10, ""},
		{"beginWriting", beginWriting, nil, "", 10, ""},
		{"pausedKeys", pausedKeys, []any{maxListed}, "", 10, ""},
		{"lockPaused", lockPaused, []any{maxListed}, "", 10, ""},
		{"leases", leases, []any{maxListed}, "", 10, ""},
		{"storedConsumers", storedConsumers, []any{maxConsuming}, "", 10, ""},
		{"pendingRequests", pendingRequests, []any{now, maxListed}, "", 10, ""},
		{"requestPartition", requestPartition, []any{"c", "t", 0, id(1), 7, "skip", "ada", now}, "", 10, ""},
		{"expiredRequests", expiredRequests, []any{now}, "", 10, ""},
		{"topicProgress", topicProgress, []any{maxListed}, "", 10, ""},
		{"forgetTopic", forgetTopic, []any{"c", "g", "t", now}, "", 10, ""},
		{"countPartitions", countPartitions, []any{"c", "g", "t"}, "", 10, ""},
		{"pause", pause, []any{"hot", now}, "", 10, ""},
		{"resume", resume, []any{"hot", now}, "", 10, ""},
	}
}

// TestEveryStatementsPlanIsChecked proves that plansOf has every statement of the package.
func TestEveryStatementsPlanIsChecked(t *testing.T) {
	var names []string
	for _, each := range plansOf(&Ops{}) {
		names = append(names, each.name)
	}
	require.Empty(t, slices.DeleteFunc(sqltest.Statements(t), func(name string) bool {
		return slices.Contains(names, name)
	}))
}

// TestPostgresPlans proves which index serves each statement among a million completed and 10,000
// poisoned statuses. No statement scans a table that grows, and none reads more than it shows. This
// holds for generic plans of prepared statements, which never see their arguments, and for custom
// plans, before and after statistics are collected.
func TestPostgresPlans(t *testing.T) {
	t.Parallel() // much of it waits for disks
	dsn := testenv.PostgresDSN(t)
	db := testenv.OpenPostgres(t, dsn)
	literal := testenv.Open(t, postgresdriver.New(postgresdriver.Config{DSN: dsn, PreferSimpleProtocol: true}),
		gorm.Config{})
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	loadMillion(t, db)
	o, err := New(db)
	require.NoError(t, err)

	look := func(t *testing.T, mode string, analyzed bool) {
		for _, each := range plansOf(o) {
			t.Run(each.name, func(t *testing.T) {
				explained := explain(t, literal, o, mode, each.statement, each.args...)
				scans := strings.Join(explained.Scans(), "\n") + "\n"
				for _, table := range growing[:2] {
					require.NotContains(t, scans, "Seq Scan inbox_"+table)
				}
				if !analyzed {
					return
				}
				for _, table := range growing {
					require.NotContains(t, scans, "Seq Scan inbox_"+table)
				}
				if each.expected != "" {
					require.Contains(t, scans, each.expected+"\n")
				}
				require.LessOrEqual(t, explained.RowsRead(), each.most, scans)
				if !slices.Contains(withoutJIT, each.name) {
					require.LessOrEqual(t, explained.Cost, sqltest.JITCost)
					require.False(t, explained.Compiled)
				}
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

	// Whole calls are fast, too.
	page, err := o.List(t.Context(), Filter{States: []State{StatePoisoned}, ErrorText: "unknown"}, "", 100)
	require.NoError(t, err)
	require.Len(t, page.Items, 100)
	failures, err := o.Failures(t.Context(), Filter{})
	require.NoError(t, err)
	require.True(t, failures.Capped)
	require.Equal(t, lookLimit, failures.Looked)
	require.Len(t, failures.Groups, 2)
	require.Equal(t, "customer # is unknown", failures.Groups[0].Error)
	overview, err := o.Overview(t.Context())
	require.NoError(t, err)
	require.Equal(t, Count{N: lookLimit}, overview.Handlers[0].Poisoned)
	require.Equal(t, Count{N: lookLimit, Capped: true}, overview.Rejected)
}

// TestSQLitePlans proves the same on SQLite, by EXPLAIN QUERY PLAN.
func TestSQLitePlans(t *testing.T) {
	t.Parallel()
	db := testenv.SQLite(t)
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	o, err := New(db)
	require.NoError(t, err)
	for _, each := range plansOf(o) {
		t.Run(each.name, func(t *testing.T) {
			steps, err := readRows(t.Context(), o, `EXPLAIN QUERY PLAN `+each.statement,
				func(rows *sql.Rows, step *string) error {
					var ignored int
					return rows.Scan(&ignored, &ignored, &ignored, step)
				}, each.args...)
			require.NoError(t, err)
			plan := strings.Join(steps, "\n")
			require.Contains(t, plan, each.sqlite)
			if each.sqlite != "" {
				require.NotRegexp(t, `SCAN inbox_\w+($|\n)`, plan)
				if !strings.Contains(plan, "CO-ROUTINE s") { // then s is a table
					require.NotRegexp(t, `SCAN s($|\n)`, plan)
				}
			}
			// Lists sort what they have looked at; a table of few rows needs no order of an index.
			if !strings.HasPrefix(each.name, "list") && each.sqlite != "" {
				require.NotContains(t, plan, "TEMP B-TREE FOR ORDER BY")
			}
		})
	}
}
