package postgres

import (
	"time"

	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/operators"
)

// operatorsForm passes lists as JSON. The database's clock limits the time of an action, because a machine may be ahead
// of it; no clock limits a test's.
var operatorsForm = operators.Form{
	Form: base.Form{Parameter: "$", Time: func(t time.Time) any { return t.UTC() }},
	Parts: map[string]string{
		// The first parameter, a list of numbers.
		"= any": `= ANY (ARRAY(SELECT value::text::bigint FROM json_array_elements($1::text::json)))`,
		// The third parameter, a list of texts.
		"= any text": `= ANY (ARRAY(SELECT value FROM json_array_elements_text($3::text::json) AS k(value)))`,
		// The first parameter, a list of IDs.
		"= any ID": `= ANY (ARRAY(SELECT value::uuid FROM json_array_elements_text($1::text::json) AS e(value)))`,
		// The first parameter, a list of IDs with versions.
		"refs": `(SELECT (value->>0)::uuid AS id, (value->>1)::bigint AS version FROM json_array_elements($1::text::json))`,
		// The first parameter, a list of texts or of lists: a row of each, its value.
		"list": `json_array_elements_text($1::text::json) AS e(value)`,
		// The fifth parameter, a list of texts.
		"fifth list": `(SELECT value FROM json_array_elements_text($5::text::json) AS k(value))`,
		"0":          `(value::json->>0)`, "1": `(value::json->>1)`, "2 as ID": `(value::json->>2)::uuid`,
		"3": `(value::json->>3)`, "4": `(value::json->>4)`, "5 as time": `(value::json->>5)::timestamptz`,
		"as ID": `::uuid`,
		// The two enclose a query that runs for each row before it, and whose rows are called s.
		"each": `CROSS JOIN LATERAL (SELECT *`, "/each": `) s`,
		"index of": `strpos(`,
		// After a text, so that no locale of the database decides on its order and its lower case.
		"bytewise":           ` COLLATE "C"`,
		"due as stored":      operators.Due,
		"received as stored": `received_at`,
		"in another form":    `false`, // received_at than store.ListTime's
		"rejected as stored": `rejected_at`,
		// The first two parameters are the lane.
		"statuses open in a lane": `{statuses} WHERE lane_handler = $1 AND lane_key = $2 AND completed_at IS NULL`,
		// By ID, however few poisoned rows there were when statistics were made.
		"by id":   `s.id = ANY (ARRAY(SELECT (value->>0)::uuid FROM json_array_elements($1::text::json))) AND`,
		"changed": `s.id, s.message_id, s.handler_key, s.lane_handler, s.lane_key`,
		"clock":   `clock_timestamp()`,
		"at":      atSQL,
		"attempts with a retry": base.PostgresAttemptsSQL("s",
			"jsonb_build_object('at', "+atSQL+", 'retried', true)"),
		"attempts with a release": base.PostgresAttemptsSQL("s", "jsonb_build_object('at', "+atSQL+", 'claimed_at', s.processing_started_at, "+
			"'worker_id', s.worker_id, 'error', '"+operators.ReleasedError+"')"),
		"for update":  `FOR UPDATE`,
		"skip locked": `FOR NO KEY UPDATE SKIP LOCKED`,
		// Locks messages in the order of all accepts, so that the two cannot deadlock.
		"as accepts lock": `ORDER BY id COLLATE "C", namespace COLLATE "C" FOR NO KEY UPDATE`,
		// How many bytes a text has.
		"octets": `octet_length(`, "/octets": `)`,
	},
}

// atSQL is the second parameter, the time of an action.
const atSQL = `LEAST($2::timestamptz, {latest})`

// addAuditSQL inserts unconditionally. The stored role is the one that the session has logged in as. Neither a role
// that it has taken since nor the actor changes that.
const addAuditSQL = `
INSERT INTO {audit} (id, actor, action, target, detail, occurred_at, database_role)
VALUES ($1::text::uuid, $2, $3, $4, $5, COALESCE({latest}, $6::timestamptz), session_user)`
