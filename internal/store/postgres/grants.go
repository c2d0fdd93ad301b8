package postgres

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/models"
)

// Roles are the PostgreSQL roles that Grants grants to. An empty name leaves that role out.
type Roles struct {
	// Application accepts messages, runs handlers, cleans up, and serves the dashboard.
	Application string
	// Operator runs inboxctl.
	Operator string
	// Reader reads everything except the contents of messages and rejected records.
	Reader string
}

// privileges are the rights that each role needs on a table. To lock rows, PostgreSQL requires the right to update at
// least one column. For messages and gaps, which never change, it is a column that decides nothing.
type privileges struct {
	table                         string
	application, operator, reader string
}

// privilegesOn returns the privileges on all tables. No role may change or delete an audit row.
func privilegesOn(n models.Naming) []privileges {
	const everything = `SELECT, INSERT, UPDATE, DELETE`
	return []privileges{
		{n.Messages(), `SELECT, INSERT, UPDATE ("transport_name"), DELETE`, `SELECT, UPDATE ("transport_name"), DELETE`,
			`SELECT ("id", "namespace", "number", "transport_name", "type", "source", "content_type", "received_at")`},
		{n.HandlerStatuses(), everything, `SELECT, UPDATE, DELETE`, `SELECT`},
		{n.RejectedMessages(), `SELECT, INSERT, UPDATE ("reason", "published_at", "requested_by", "requested_at"), DELETE`,
			`SELECT, UPDATE ("requested_by", "requested_at"), DELETE`,
			`SELECT ("id", "channel", "topic", "partition", "record_offset", "record_timestamp", "reason", "rejected_at", "published_at",
				"requested_by", "requested_at")`},
		{n.Gaps(), `SELECT, INSERT, UPDATE ("reason")`, `SELECT`, `SELECT`},
		{n.PartitionRequests(), everything, everything, `SELECT`}, // an operator's replaces an earlier one
		{n.Requests(), everything, `SELECT, INSERT, DELETE`, // an operator's cleanup deletes old ones
			`SELECT ("id", "kind", "target", "actor", "requested_at", "taken_by", "taken_at", "ended_at", "result", "problem")`},
		{n.Partitions(), everything, `SELECT, DELETE`, `SELECT`}, // an operator's cleanup forgets removed ones
		{n.Locks(), everything, everything, `SELECT`},            // cleanup by hand takes its lease
		{n.Workers(), everything, `SELECT, DELETE`, `SELECT`},
		{n.Handlers(), `SELECT, INSERT, UPDATE`, `SELECT, INSERT, UPDATE`, `SELECT`},
		{n.Markers(), everything, `SELECT`, `SELECT`},
		{n.Audit(), `SELECT, INSERT`, `SELECT, INSERT`, `SELECT`},
		{n.Meta(), `SELECT, INSERT`, `SELECT`, `SELECT`}, // the first start names the tables
	}
}

// Grants returns a PostgreSQL script that gives roles the rights that they need on the tables of naming and revokes all
// others from them. The roles and the tables must exist.
func Grants(naming models.Naming, roles Roles) (string, error) {
	if err := naming.Validate(); err != nil {
		return "", err
	}
	var names []string
	for _, role := range []string{roles.Application, roles.Operator, roles.Reader} {
		switch {
		case role == "":
			continue
		case role == "public" || role == "none": // also if quoted
			return "", fmt.Errorf("role %q is not a role of its own: name one that exists", role)
		case strings.ContainsRune(role, 0):
			return "", fmt.Errorf("role %q has a zero byte", role)
		}
		names = append(names, quoteRole(role))
	}
	if len(names) == 0 {
		return "", errors.New("no role is named: name the application's, the operators' or the readers'")
	}
	all := strings.Join(names, ", ")

	var script strings.Builder
	script.WriteString(grantsHead)
	if naming.Schema != "" {
		fmt.Fprintf(&script, "GRANT USAGE ON SCHEMA %s TO %s;\n\n", columns.Quote(naming.Schema), all)
	}
	tables := privilegesOn(naming)
	for _, each := range tables {
		fmt.Fprintf(&script, "REVOKE ALL ON %s FROM PUBLIC, %s;\n", columns.Quote(each.table), all)
	}
	grant := func(comment, role string, of func(privileges) string) {
		if role == "" {
			return
		}
		fmt.Fprintf(&script, "\n%s\n", comment)
		for _, each := range tables {
			fmt.Fprintf(&script, "GRANT %s ON %s TO %s;\n", of(each), columns.Quote(each.table), quoteRole(role))
		}
	}
	grant("-- Accepts, runs handlers, cleans up, and serves the dashboard.", roles.Application,
		func(p privileges) string { return p.application })
	grant("-- Runs inboxctl.", roles.Operator, func(p privileges) string { return p.operator })
	grant("-- Reads all but what messages and rejected records carry.", roles.Reader,
		func(p privileges) string { return p.reader })
	script.WriteString("\nCOMMIT;\n")
	if roles.Application != "" {
		fmt.Fprintf(&script, grantsTail, columns.Quote(naming.Audit()), quoteRole(roles.Application))
	}
	return script.String(), nil
}

const grantsHead = `-- What roles may do with the tables of one inbox. Run it as the owner of the tables, which
-- is the role that has run "inboxctl migrate up", and again after each migration. What
-- these roles, and PUBLIC, could do with these tables before is taken away from them.

BEGIN;

`

const grantsTail = `
-- Where the option AuditRetention is set, the application deletes audit rows:
--   GRANT DELETE ON %[1]s TO %[2]s;

-- Where the application's processes log in as different roles, as while a password is
-- rotated, each must be able to end the others' sessions. Grant each role to the others
-- (GRANT old TO new; GRANT new TO old), or grant to all of them:
--   GRANT pg_read_all_stats, pg_signal_backend TO %[2]s;
`

func quoteRole(name string) string { return pgx.Identifier{name}.Sanitize() }
