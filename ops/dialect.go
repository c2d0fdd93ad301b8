package ops

import (
	"strings"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/models"
)

// texts fills in the dialect's texts and the tables' names.
func texts(dialect string, opts Options) *strings.Replacer {
	names := append(tables(opts.Naming), dialectTexts[dialect]...)
	if dialect == "postgres" {
		names = append(names, "{at}", at(opts.Clock))
	} else {
		statuses := columns.Quote(opts.Naming.HandlerStatuses())
		names = append(names, "{each}", `CROSS JOIN `+statuses+` s ON s.id IN (SELECT id`)
	}
	return strings.NewReplacer(names...)
}

// at returns the SQL of the second parameter, a time. On PostgreSQL the database's clock limits a
// machine's time, but not a test's (contract 3.5).
func at(c clock.Clock) string {
	if clock.IsTest(c) {
		return `$2::timestamptz`
	}
	return `LEAST($2::timestamptz, clock_timestamp())`
}

func tables(naming models.Naming) []string {
	return []string{
		"{messages}", columns.Quote(naming.Messages()),
		"{statuses}", columns.Quote(naming.HandlerStatuses()),
		"{rejected}", columns.Quote(naming.RejectedMessages()),
		"{gaps}", columns.Quote(naming.Gaps()),
		"{locks}", columns.Quote(naming.Locks()),
		"{handlers}", columns.Quote(naming.Handlers()),
		"{audit}", columns.Quote(naming.Audit()),
		"{meta}", columns.Quote(naming.Meta()),
	}
}

// dialectTexts are the parts of this package's statements that differ by dialect. Lists are passed
// as JSON.
var dialectTexts = map[string][]string{
	"postgres": {
		// The first parameter, a list of numbers.
		"{= any}", `= ANY (ARRAY(SELECT value::text::bigint FROM json_array_elements($1::text::json)))`,
		// The first parameter, a list of IDs.
		"{= any ID}", `= ANY (ARRAY(SELECT value::uuid FROM json_array_elements_text($1::text::json) AS e(value)))`,
		// The first parameter, a list of IDs with versions.
		"{refs}", `(SELECT (value->>0)::uuid AS id, (value->>1)::bigint AS version FROM json_array_elements($1::text::json))`,
		// The first parameter, a list of texts or of lists: a row of each, its value.
		"{list}", `json_array_elements_text($1::text::json) AS e(value)`,
		"{0}", `(value::json->>0)`, "{1}", `(value::json->>1)`, "{2 as ID}", `(value::json->>2)::uuid`,
		"{as ID}", `::uuid`,
		// What a statement has as s for each row before it: as many statuses as stand between
		// the two.
		"{each}", `CROSS JOIN LATERAL (SELECT *`, "{/each}", `) s`,
		"{index of}", `strpos(`,
		// Behind a text, so that no locale of the database decides on its order and its lower case.
		"{bytewise}", ` COLLATE "C"`,
		"{due as stored}", due,
		"{received as stored}", `received_at`,
		"{in another form}", `false`, // received_at than store.SQLiteTime's
		"{rejected as stored}", `rejected_at`,
		// By ID, however few poisoned rows there were when statistics were made.
		"{by id}", `s.id = ANY (ARRAY(SELECT (value->>0)::uuid FROM json_array_elements($1::text::json))) AND`,
		"{changed}", `s.id, s.message_id, s.handler_key, s.lane_handler, s.lane_key`,
		"{clock}", `clock_timestamp()`,
		"{for update}", `FOR UPDATE`,
		// How many bytes a text has.
		"{octets}", `octet_length(`, "{/octets}", `)`,
	},
	"sqlite": {
		"{= any}", `IN (SELECT value FROM json_each(?1))`,
		"{= any ID}", `IN (SELECT value FROM json_each(?1))`,
		"{refs}", `(SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS version FROM json_each(?1))`,
		"{list}", `json_each(?1) AS e`,
		"{0}", `json_extract(value, '$[0]')`, "{1}", `json_extract(value, '$[1]')`, "{2 as ID}",
		`json_extract(value, '$[2]')`,
		"{as ID}", ``,
		// No join knows the tables to its left, but the subquery of a condition does.
		"{/each}", `)`,
		"{index of}", `instr(`,
		"{bytewise}", ``, // as all are, and lower knows ASCII alone
		"{due as stored}", `CAST(` + due + ` AS text)`,
		"{received as stored}", `CAST(received_at AS text)`,
		"{in another form}", `length(received_at) <> 32`,
		"{rejected as stored}", `CAST(rejected_at AS text)`,
		"{by id}", ``,
		"{changed}", `id, message_id, handler_key, lane_handler, lane_key`, // RETURNING knows no alias
		"{clock}", `NULL`,
		"{at}", `?2`, // as at is
		"{for update}", ``,
		"{octets}", `length(CAST(`, "{/octets}", ` AS BLOB))`, // octet_length is of 3.43
	},
}
