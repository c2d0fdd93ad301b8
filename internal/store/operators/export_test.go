package operators

import (
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

// Million is the time at which the statements run whose plans are checked.
var Million = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

var endOfTime = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)

const (
	look     = 10_000 // rows that a page, a count or a failure overview reads
	lastTime = "9999-12-31 23:59:59.999999+00:00"
	lastID   = "ffffffff-ffff-ffff-ffff-ffffffffffff"
)

// StatementText returns a statement as it runs.
func (q Queries) StatementText(statement string) string { return q.text(statement) }

// Planned is one statement with the index that must serve it.
type Planned struct {
	Name, Statement string
	Args            []any
	Expected        string  // an index, on PostgreSQL
	Max             float64 // rows read, there
	SQLite          string  // what SQLite says; empty if it is a table of a few rows
}

// WithoutJIT are the statements that package ops runs without compiling them.
var WithoutJIT = []string{"countGroups", "countInDue", "countInGroup", "countInPoisoned", "countInWaiting", "countOpen",
	"failureGroups", "listAudit", "listClaims", "listDue", "listEarliestRejected", "listGroup", "listOfMessage", "listParked", "listPoisoned",
	"listReceived", "listRejected", "listUnhandled", "listWaiting",
	"recentStatuses", "walkGaps"}

// PlansOf returns all statements of the package, with the arguments of a search deep in the list.
func PlansOf(q Queries) []Planned {
	id := func(n int) string { return fmt.Sprintf("00000000-0000-7000-8000-%012x", n) }
	lanes := store.LaneHandler("lanes")
	refs := fmt.Sprintf(`[["%s",0],["%s",1]]`, id(1000001), id(1000002))
	now := q.form.Time(Million)
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
	must := func(args []any, err error) []any {
		if err != nil {
			panic(err)
		}
		return args
	}
	// search returns the arguments of a list from a place on, with this depth.
	search := func(st store.Stage, after store.ListPlace, depth int, of store.StatusScan) []any {
		of.Stage, of.After, of.Depth, of.Limit, of.PerMessage = st, after, depth, 51, look
		if after.At == "" {
			of.After.At = lastTime
		}
		if of.From.IsZero() {
			of.From = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
		} else {
			of.ComparesMessage = true
		}
		if of.To = endOfTime; of.States == 0 {
			of.States = 127
		}
		return must(q.scanArguments(of))
	}
	instant := func(n int) string {
		return store.ListTime(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(n) * 80 * time.Millisecond))
	}
	const poisonedOrFailing = 8 | 64
	hot := store.StatusScan{HandlerKeys: []string{"hot", "idle"}}
	typed := store.StatusScan{HandlerKeys: []string{"hot"}, Type: "order.placed", ErrorText: "unknown",
		ComparesMessage: true, States: poisonedOrFailing}
	lanesOnly := store.StatusScan{HandlerKeys: []string{"lanes"}}
	group := store.StatusScan{HandlerKeys: []string{"hot", "lanes"}, Fingerprint: "hot", States: poisonedOrFailing}
	counted := func(before string, depth int, messageType string) []any {
		return q.groupArguments(store.GroupScan{Groups: []store.FailureGroup{{HandlerKey: "hot", Fingerprint: "hot", Before: before},
			{HandlerKey: "lanes", Fingerprint: "lanes", Before: lastID}}, Depth: depth, States: 8, Type: messageType, From: time.Time{}, To: endOfTime,
			ComparesMessage: messageType != ""})
	}
	// unhandled are the arguments of a page of messages in the middle of all.
	unhandled := must(q.unhandledArguments(store.UnhandledScan{After: store.ListPlace{At: instant(500000), Number: 500000},
		Keys: []string{"new", "newer"}, To: Million, Limit: 1000, Type: "order.placed", ReadsProperties: 2500}))
	cuts := cutArguments(store.PreviewCuts{ContentWhole: 10, ContentHead: 10, KeyWhole: 10, KeyHead: 10,
		Properties: 1 << 20})
	openOf := []any{`["hot","lanes"]`, now, look + 1, now, fmt.Sprintf(`["%s"]`, id(1))}
	recent := []any{"hot", q.form.Time(time.Time{}), now, look}
	added := fmt.Sprintf(`[[7,"m7","%s",null,null],[1000001,"m1000001","%s",-8,9]]`, id(2000001), id(2000002))
	return []Planned{
		{"listUnhandled", listUnhandled, unhandled, "inbox_messages_received_at", 1000 * 6,
			"INDEX inbox_messages_received_at ((received_at,number)>(?,?) AND received_at<?)"},
		{"listUnhandled", listUnhandled, unhandled, ofMessage, 1000 * 6, auto + statuses +
			"_1 (message_number=? AND handler_key=?)"},
		{"lockUnhandled", lockUnhandled, []any{`[7,1000001]`}, "inbox_messages_number", 10,
			"INDEX inbox_messages_number (number=?)"},
		{"addStatuses", addStatuses, []any{added, now, `["new","newer"]`, "new"}, ofMessage, 30, auto + statuses +
			"_1 (message_number=?"},
		{"listPoisoned", listPoisoned, search(store.StagePoisoned, store.ListPlace{ID: lastID}, 51, hot), poisoned, 51 * 4, "INDEX " + poisoned +
			" (handler_key=? AND id<?)"},
		{"listPoisoned", listPoisoned, search(store.StagePoisoned, store.ListPlace{ID: id(1005000)}, 5000, typed), poisoned,
			2*5000 + 2*51, "INDEX " + poisoned},
		{"listPoisoned", listPoisoned, search(store.StagePoisoned, store.ListPlace{ID: id(1005000)}, 1000, typed), "inbox_messages_number",
			2*1000 + 2*51, "INDEX inbox_messages_number (number=?)"},
		{"listWaiting", listWaiting, search(store.StageWaiting, store.ListPlace{ID: id(1035000)}, 1000, lanesOnly),
			waiting, 1000 * 4, "INDEX " + waiting + " (handler_key=? AND id<?)"},
		{"listGroup", listGroup, search(store.StageGroup, store.ListPlace{ID: id(1005000)}, 1000, group), failures, 1000 * 4,
			"INDEX " + failures + " (handler_key=? AND fingerprint=? AND id<?)"},
		{"listDue", listDue, search(store.StageDue, store.ListPlace{At: lastTime, ID: lastID}, 1000, hot), due, 1000 * 5,
			"INDEX " + due + " (handler_key=? AND <expr><?)"},
		{"listDue", listDue, search(store.StageDue, store.ListPlace{At: "2026-01-03 12:00:00.000000+00:00", ID: id(1029000)}, 500, hot), due,
			1000 * 6, "INDEX " + due + " (handler_key=? AND <expr>=? AND id<?)"},
		{"listReceived", listReceived, search(store.StageReceived, store.ListPlace{At: instant(500000), Number: 500000}, 1000,
			store.StatusScan{Type: "no", ComparesMessage: true}),
			"inbox_messages_received_at", 1000 * 8,
			"INDEX inbox_messages_received_at (received_at>? AND (received_at,number)<(?,?))"},
		{"listReceived", listReceived, search(store.StageReceived, store.ListPlace{At: instant(1000), Number: 1000}, 1000, store.StatusScan{
			From: time.Date(2026, 1, 1, 12, 1, 12, 0, time.UTC)}), ofMessage, 115 * 8, auto + statuses +
			"_1 (message_number=?"},
		{"listOfMessage", listOfMessage, search(store.StageMessage, store.ListPlace{At: lastTime}, 51,
			store.StatusScan{MessageID: "m7"}), "inbox_messages_pkey", 8, auto + "inbox_messages_1 (id=?)"},
		{"countInPoisoned", countInPoisoned, search(store.StagePoisoned, store.ListPlace{ID: lastID}, 5000, typed), poisoned, 2 * 5000, "INDEX " + poisoned +
			" (handler_key=? AND id<?)"},
		{"countInWaiting", countInWaiting, search(store.StageWaiting, store.ListPlace{ID: lastID}, 5000, lanesOnly), waiting, 5000, "INDEX " + waiting +
			" (handler_key=? AND id<?)"},
		{"countInGroup", countInGroup, search(store.StageGroup, store.ListPlace{ID: lastID}, 5000, group), failures, 2 * 5000,
			"INDEX " + failures + " (handler_key=? AND fingerprint=? AND id<?)"},
		{"countInDue", countInDue, search(store.StageDue, store.ListPlace{At: lastTime, ID: lastID}, 5000, hot), due, 5000,
			"INDEX " + due + " (handler_key=? AND <expr><?)"},
		{"failureGroups", failureGroups, []any{`[["hot",""],["lanes",""]]`, 500}, failures, 20, "INDEX " + failures +
			" (handler_key=? AND fingerprint>?)"},
		{"countGroups", countGroups, counted(id(1028000), 3000, ""), failures, 6000 + 2*5, "INDEX " + failures +
			" (handler_key=? AND fingerprint=? AND id<?)"},
		{"countGroups", countGroups, counted(id(1028000), 3000, "no"), "inbox_messages_number", 2*6000 + 2*5,
			"INDEX inbox_messages_number (number=?)"},
		{"namesakes", namesakes, []any{"m7", ""}, "inbox_messages_pkey", 1, auto + "inbox_messages_1 (id=?)"},
		{"loadMessage", loadMessage, []any{7}, "inbox_messages_number", 1, "INDEX inbox_messages_number (number=?)"},
		{"previewMessage", previewMessage, append([]any{7}, cuts...),
			"inbox_messages_number", 1, "INDEX inbox_messages_number (number=?)"},
		{"openRows", openRows, []any{fmt.Sprintf(`["%s","%s"]`, id(1000002), id(1000001)), 1000}, statusID, 10,
			"INDEX " + statusID + " (id=?)"},
		{"openRows", openRows, []any{fmt.Sprintf(`["%s","%s"]`, id(1000002), id(1000001)), 1000}, "inbox_messages_number",
			10, "INDEX inbox_messages_number (number=?)"},
		{"rowsOfMessages", rowsOfMessages, []any{`[7,1000001]`, 1000, fmt.Sprintf(`["%s","%s"]`, id(7), id(1000001))},
			ofMessage, 10, auto + statuses + "_1 (message_number=?"},
		{"rowsOfMessages", rowsOfMessages, []any{`[7,1000001]`, 1000, fmt.Sprintf(`["%s","%s"]`, id(7), id(1000001))},
			"inbox_messages_number", 10, "INDEX inbox_messages_number (number=?)"},
		{"rowsOfMessage", rowsOfMessage, []any{1000001, 1000}, ofMessage, 5, auto + statuses +
			"_1 (message_number=?"},
		{"poisonedKeys", poisonedKeys, []any{1000}, poisoned, 20, "INDEX " + poisoned + " (handler_key>?)"},
		{"dueKeys", dueKeys, []any{1000}, due, 20, "INDEX " + due + " (handler_key>?)"},
		{"waitingKeys", waitingKeys, []any{1000}, waiting, 20, "INDEX " + waiting + " (handler_key>?)"},
		{"failingKeys", failingKeys, []any{1000}, failures, 20, "INDEX " + failures + " (handler_key>?)"},
		{"countOpen", countOpen, openOf, "Index Scan " + statuses + " " + due, 4 * (look + 51), "INDEX " + due + " (handler_key=? AND <expr><?)"},
		{"countOpen", countOpen, openOf, "Index Only Scan " + statuses + " " + due, 4 * (look + 51),
			"INDEX " + due + " (handler_key>? AND handler_key<?)"},
		{"countOpen", countOpen, openOf, "Index Only Scan " + statuses + " " + poisoned, 4 * (look + 51), "INDEX " + poisoned + " (handler_key=?)"},
		{"countOpen", countOpen, openOf, "Index Only Scan " + statuses + " " + waiting, 4 * (look + 51), "INDEX " + waiting + " (handler_key=?)"},
		{"listClaims", listClaims, []any{"hot", now, look, 100}, due, 3*look + 500, "INDEX " + due + " (handler_key=? AND <expr><?)"},
		{"listParked", listParked, []any{"lanes", 1000, look}, poisoned, 2*look + 2000, "INDEX " + poisoned + " (handler_key=?)"},
		{"listParked", listParked, []any{"lanes", 1000, look}, lane, 2*look + 2000,
			"INDEX " + lane + " (lane_handler=? AND lane_key=? AND is_poisoned=? AND sequence>?)"},
		{"recentStatuses", recentStatuses, recent, "inbox_messages_received_at", 6 * look,
			"INDEX inbox_messages_received_at (received_at>? AND received_at<?)"},
		{"recentStatuses", recentStatuses, recent, ofMessage, 6 * look, auto + statuses +
			"_1 (message_number=? AND handler_key=?)"},
		{"storedSettings", storedSettings, []any{500}, "", 10, ""},
		{"countPoisoned", countPoisoned, []any{look + 1, "hot"}, poisoned, look + 1, "INDEX " + poisoned +
			" (handler_key=?)"},
		{"countRejected", countRejected, []any{look + 1}, "inbox_rejected_messages_rejected_at", look + 1,
			"INDEX inbox_rejected_messages_rejected_at"},
		{"countGaps", countGaps, []any{look + 1}, "inbox_gaps_pkey", look + 1, auto + "inbox_gaps_1"},
		{"laneAhead", laneAhead, []any{lanes, 1, false, 1040000, lastID, 1000 + 1}, lane, 1000 + 1, "INDEX " + lane +
			" (lane_handler=? AND lane_key=? AND is_poisoned=? AND (sequence,id)<(?,?))"},
		{"laneHead", laneHead, []any{lanes, 1, false}, lane, 2, "INDEX " + lane +
			" (lane_handler=? AND lane_key=? AND is_poisoned=?)"},
		{"sequenceOf", sequenceOf, []any{id(1000001)}, statusID, 1, "INDEX " + statusID + " (id=?)"},
		{"retry", retry, []any{refs, now}, statusID, 10, "INDEX " + statusID + " (id=?)"},
		{"discard", discard, []any{refs, now}, statusID, 10, "INDEX " + statusID + " (id=?)"},
		{"reschedule", reschedule, []any{refs, now, now}, statusID, 10, "INDEX " + statusID + " (id=?)"},
		{"rerun", rerun, []any{7, now, "hot", 1}, ofMessage, 2, auto + statuses +
			"_1 (message_number=? AND handler_key=?)"},
		{"releaseClaim", releaseClaim, []any{id(1000001), now, 1}, statusID, 2, "INDEX " + statusID + " (id=?)"},
		{"stateNow", stateNow, []any{id(1000001)}, statusID, 1, "INDEX " + statusID + " (id=?)"},
		{"lockID", lockID, []any{7}, "inbox_messages_number", 1, "INDEX inbox_messages_number (number=?)"},
		{"lockMessage", lockMessage, []any{7}, "inbox_messages_number", 1, "INDEX inbox_messages_number (number=?)"},
		{"deleteStatuses", deleteStatuses, []any{1000001}, ofMessage, 2, auto + statuses + "_1 (message_number=?)"},
		{"statusesLeft", statusesLeft, []any{7}, ofMessage, 1, auto + statuses + "_1 (message_number=?)"},
		{"deleteMessage", deleteMessage, []any{7}, "inbox_messages_number", 2, "INDEX inbox_messages_number (number=?)"},
		{"listEarliestRejected", listEarliestRejected, []any{q.form.Time(time.Time{}), id(0), q.form.Time(time.Time{}), 1000, 51, "", "topic", now,
			"bad", 7}, "inbox_rejected_messages_rejected_at", 1000 * 5,
			"INDEX inbox_rejected_messages_rejected_at ((rejected_at,id)>(?,?) AND rejected_at<?)"},
		{"listRejected", listRejected, []any{now, id(5000), q.form.Time(time.Time{}), 1000, 51, "", "", q.form.Time(endOfTime),
			"bad", -1},
			"inbox_rejected_messages_rejected_at", 1000 * 5,
			"INDEX inbox_rejected_messages_rejected_at (rejected_at>? AND (rejected_at,id)<(?,?))"},
		{"requestReAccept", requestReAccept, []any{id(7), "ada", now}, "inbox_rejected_messages_pkey", 2, auto +
			"inbox_rejected_messages_1 (id=?)"},
		{"hasRejected", hasRejected, []any{id(7)}, "inbox_rejected_messages_pkey", 1, auto + "inbox_rejected_messages_1 (id=?)"},
		{"takeReAccept", takeReAccept, []any{id(7), now}, "inbox_rejected_messages_requested", 2, auto +
			"inbox_rejected_messages_1 (id=?)"},
		{"requestedReAccepts", requestedReAccepts, []any{q.form.Time(time.Time{}), id(0), 1000},
			"inbox_rejected_messages_requested", 10, "INDEX inbox_rejected_messages_requested ((requested_at,id)>(?,?))"},
		{"oneRejected", oneRejected, []any{id(7)}, "inbox_rejected_messages_pkey", 1, auto +
			"inbox_rejected_messages_1 (id=?)"},
		{"previewRejected", previewRejected, append([]any{id(7)}, cuts...),
			"inbox_rejected_messages_pkey", 1, auto + "inbox_rejected_messages_1 (id=?)"},
		{"deleteRejected", deleteRejected, []any{id(7)}, "inbox_rejected_messages_pkey", 2, auto +
			"inbox_rejected_messages_1 (id=?)"},
		{"addRequest", addRequest, []any{id(9999), "cancel", "hot", "{}", "ada", now}, "", 10, ""},
		{"openRequests", openRequests, []any{q.form.Time(Million.Add(-time.Hour)), id(0), `["cancel","replay"]`, 100}, "",
			10, "INDEX inbox_requests_requested_at ((requested_at,id)>(?,?))"},
		{"takeRequest", takeRequest, []any{id(1), "p", now, now}, "", 10, auto + "inbox_requests_1 (id=?)"},
		{"requestArgument", requestArgument, []any{id(1)}, "", 10, auto + "inbox_requests_1 (id=?)"},
		{"endRequest", endRequest, []any{id(1), "{}", "", now}, "", 10, auto + "inbox_requests_1 (id=?)"},
		{"loadRequest", loadRequest, []any{id(1)}, "", 10, auto + "inbox_requests_1 (id=?)"},
		{"deleteRequests", deleteRequests, []any{now, 100}, "", 10, "INDEX inbox_requests_requested_at (requested_at<?)"},
		{"walkGaps", walkGaps, []any{id(5000), 1000}, "inbox_gaps_pkey", 1000, auto + "inbox_gaps_1 (id<?)"},
		{"markersOf", markersOf, []any{"m500", "", "", 1000}, "inbox_markers_pkey", 2, auto +
			"inbox_markers_1 (message_id=?)"},
		{"markersOf", markersOf, []any{"m500", "h", "c", 1000}, "inbox_markers_pkey", 2, auto +
			"inbox_markers_1 (message_id=?)"},
		{"listAudit", listAudit, []any{id(5000), 1000, 51, "", "", "none", q.form.Time(time.Time{}), q.form.Time(endOfTime), id(1)},
			"inbox_audit_pkey", 1000 * 5, auto + "inbox_audit_1 (id>? AND id<?)"},
		{"auditDetails", auditDetails, []any{fmt.Sprintf(`["%s","%s"]`, id(7), id(1007)), 50}, "inbox_audit_pkey", 2, auto +
			"inbox_audit_1 (id=?)"},
		{"inboxName", inboxName, nil, "", 10, ""},
		{"beginWriting", beginWriting, nil, "", 10, ""},
		{"pausedKeys", pausedKeys, []any{1000}, "", 10, ""},
		{"lockPaused", lockPaused, []any{1000}, "", 10, ""},
		{"leases", leases, []any{1000}, "", 10, ""},
		{"lastHeartbeat", lastHeartbeat, nil, "", 10, ""},
		{"storedConsumers", storedConsumers, []any{500}, "", 10, ""},
		{"pendingRequests", pendingRequests, []any{now, 1000}, "", 10, ""},
		{"requestPartition", requestPartition, []any{"c", "t", 0, id(1), 7, "skip", "ada", now}, "", 10, ""},
		{"expiredRequests", expiredRequests, []any{now}, "", 10, ""},
		{"topicProgress", topicProgress, []any{1000}, "", 10, ""},
		{"forgetTopic", forgetTopic, []any{"c", "g", "t", now}, "", 10, ""},
		{"countPartitions", countPartitions, []any{"c", "g", "t"}, "", 10, ""},
		{"pause", pause, []any{"hot", now}, "", 10, ""},
		{"resume", resume, []any{"hot", now}, "", 10, ""},
	}
}
