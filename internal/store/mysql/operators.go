package mysql

import (
	"time"

	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
	"github.com/gorm-inbox/inbox/internal/store/operators"
)

// operatorsForm passes lists as JSON, of which the statement's values are made. The parts are documented in the form of
// PostgreSQL.
var operatorsForm = operators.Form{
	Form: base.Form{Parameter: "?", Time: func(t time.Time) any { return mysqldialect.Time(t) }, JSON: true,
		MaxList: longestList},
	Parts: map[string]string{
		"= any":      `IN ({list ?1})`,
		"= any ID":   `IN ({list ?1})`,
		"= any text": `IN ({list ?3})`,
		"list":       `({rows ?1}) AS e`,
		"0":          `c0`, "1": `c1`, "2 as ID": `c2`, "3": `c3`, "4": `c4`,
		"as ID":                   ``,
		"index of":                `INSTR(`,
		"bytewise":                ``,
		"due as stored":           `CAST(due_at AS CHAR)`,
		"received as stored":      `CAST(received_at AS CHAR)`,
		"in another form":         `false`,
		"rejected as stored":      `CAST(rejected_at AS CHAR)`,
		"by id":                   ``,
		"statuses open in a lane": `{statuses} FORCE INDEX (lane) WHERE lane_open = ?1 AND lane_key = ?2 AND version >= 0`,
		"clock":                   `UTC_TIMESTAMP(6)`,
		"at":                      `LEAST(?2, COALESCE({latest}, ?2))`,
		"for update":              `FOR UPDATE`,
		"skip locked":             `FOR UPDATE SKIP LOCKED`,
		"octets":                  `LENGTH(`, "/octets": `)`,
	},
}

// addAuditSQL inserts unconditionally. The stored role is the user of the session.
const addAuditSQL = `
INSERT INTO {audit} (id, actor, action, target, detail, occurred_at, database_role)
VALUES (?1, ?2, ?3, ?4, ?5, COALESCE({latest}, ?6), SUBSTRING_INDEX(USER(), '@', 1))`
