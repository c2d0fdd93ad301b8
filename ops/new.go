package ops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/dialects"
	"github.com/gorm-inbox/inbox/models"
)

func newOps(db *gorm.DB, options []Option) (*Ops, error) {
	s := settings{clock: clock.System{}, statementTimeout: 10 * time.Second}
	for _, option := range options {
		option(&s)
	}
	switch {
	case db == nil:
		return nil, errors.New("ops: no database")
	case s.statementTimeout <= 0:
		return nil, fmt.Errorf("ops: option StatementTimeout = %s: must be more than 0", s.statementTimeout)
	case s.connectionsSet && s.connections < 1:
		return nil, fmt.Errorf("ops: option Connections = %d: must be 1 or more", s.connections)
	case s.clock == nil:
		return nil, errors.New("ops: option Clock is nil")
	}
	if s.cleanup == nil && s.live != nil {
		s.cleanup = s.live.Cleanup
	}
	dialect := db.Dialector.Name()
	// On PostgreSQL it announces whether anybody listens or not.
	st, err := dialects.New(db, s.naming, store.Options{Announces: dialect == "postgres"})
	if err != nil {
		return nil, fmt.Errorf("ops: %w", err)
	}
	db = db.Session(&gorm.Session{NewDB: true})
	if !s.connectionsSet {
		s.connections = fewConnections(db)
	}
	o := &Ops{settings: s, inUse: make(chan struct{}, s.connections), db: db, store: st, singles: store.NewSingles(db),
		sqlite: dialect == "sqlite"}
	names := append(tables(s.naming), dialectTexts[dialect]...)
	if dialect == "postgres" {
		names = append(names, "{at}", at(s.clock))
	} else {
		names = append(names, "{each}", `CROSS JOIN `+models.Quote(s.naming.HandlerStatuses())+` s ON s.id IN (SELECT id`)
	}
	o.names = strings.NewReplacer(names...)
	return o, nil
}

// fewConnections is the default of Connections.
func fewConnections(db *gorm.DB) int {
	const most = 4
	pool, err := db.DB()
	if err != nil { // wrapped by the user: its size is not known
		return most
	}
	limit := pool.Stats().MaxOpenConnections
	if limit == 0 {
		return most
	}
	return min(max(limit/4, 1), most)
}

// CheckSchema returns an error that says what to do if the tables are missing or too old for this
// program (contract 3.4). It only reads.
func (o *Ops) CheckSchema(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, o.statementTimeout)
	defer cancel()
	return models.CheckTables(ctx, o.db, o.naming)
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
		"{messages}", models.Quote(naming.Messages()),
		"{statuses}", models.Quote(naming.HandlerStatuses()),
		"{rejected}", models.Quote(naming.RejectedMessages()),
		"{gaps}", models.Quote(naming.Gaps()),
		"{locks}", models.Quote(naming.Locks()),
		"{handlers}", models.Quote(naming.Handlers()),
		"{audit}", models.Quote(naming.Audit()),
		"{meta}", models.Quote(naming.Meta()),
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
