package sqlite

import (
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/operators"
)

// OperatorsForm passes lists as JSON. The parts are documented in the form of PostgreSQL.
var OperatorsForm = operators.Form{
	Form:      base.Form{Parameter: "?", Time: func(t time.Time) any { return store.SQLiteTime(t) }, JSON: true},
	TextTimes: true, WritesFirst: true,
	Parts: map[string]string{
		"= any":      `IN (SELECT value FROM json_each(?1))`,
		"= any ID":   `IN (SELECT value FROM json_each(?1))`,
		"= any text": `IN (SELECT value FROM json_each(?3))`,
		"refs":       `(SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS version FROM json_each(?1))`,
		"list":       `json_each(?1) AS e`,
		"fifth list": `(SELECT value FROM json_each(?5))`,
		"0":          `json_extract(value, '$[0]')`, "1": `json_extract(value, '$[1]')`, "2 as ID": `json_extract(value, '$[2]')`,
		"3": `json_extract(value, '$[3]')`, "4": `json_extract(value, '$[4]')`, "5 as time": `json_extract(value, '$[5]')`,
		"as ID": ``,
		// No join knows the tables to its left, but the subquery of a condition does.
		"each":                    `CROSS JOIN {statuses} s ON (s.message_number, s.handler_key) IN (SELECT message_number, handler_key`,
		"/each":                   `)`,
		"index of":                `instr(`,
		"bytewise":                ``, // as all are, and lower knows ASCII alone
		"due as stored":           `CAST(` + operators.Due + ` AS text)`,
		"received as stored":      `CAST(received_at AS text)`,
		"in another form":         `length(received_at) <> 32`,
		"rejected as stored":      `CAST(rejected_at AS text)`,
		"by id":                   ``,
		"statuses open in a lane": `{statuses} WHERE lane_handler = ?1 AND lane_key = ?2 AND completed_at IS NULL`,
		"changed":                 `id, message_id, handler_key, lane_handler, lane_key`, // RETURNING knows no alias
		"clock":                   `NULL`,
		"at":                      `?2`,
		"attempts with a retry":   base.SQLiteAttemptsSQL("s", "json_object('at', ?2, 'retried', json('true'))"),
		"attempts with a release": base.SQLiteAttemptsSQL("s", "json_object('at', ?2, 'claimed_at', s.processing_started_at, "+
			"'worker_id', s.worker_id, 'error', '"+operators.ReleasedError+"')"),
		"for update": ``, "skip locked": ``, "as accepts lock": ``,
		"octets": `length(CAST(`, "/octets": ` AS BLOB))`, // octet_length is of 3.43
	},
}

// addAuditSQL inserts unconditionally.
const addAuditSQL = `
INSERT INTO {audit} (id, actor, action, target, detail, occurred_at, database_role) VALUES (?1, ?2, ?3, ?4, ?5, ?6, '')`
