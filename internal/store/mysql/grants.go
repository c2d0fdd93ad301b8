package mysql

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
	"github.com/gorm-inbox/inbox/models"
)

// Accounts are the users of MySQL that Grants grants to, as name or name@host. The host of a name alone is "%". An
// empty name leaves that account out.
type Accounts struct {
	// Application accepts messages, runs handlers, cleans up, and serves the dashboard.
	Application string
	// Operator runs inboxctl.
	Operator string
	// Reader reads everything except the contents of messages and rejected records.
	Reader string
}

// privileges are the rights that each account needs on a table. An insert that passes over known rows sets a column to
// itself, and needs the right to update that one. The right to reference shows the columns to the check of the tables.
type privileges struct {
	table                         string
	application, operator, reader string
}

// privilegesOn returns the privileges on all tables. No account may change or delete an audit row.
func privilegesOn(n models.Naming) []privileges {
	const everything = "SELECT, INSERT, UPDATE, DELETE"
	return []privileges{
		{n.Messages(), "SELECT, INSERT, DELETE", "SELECT, DELETE",
			"REFERENCES, SELECT (`id`, `namespace`, `number`, `transport_name`, `type`, `source`, `content_type`, `received_at`)"},
		{n.HandlerStatuses(), everything, "SELECT, UPDATE, DELETE", "SELECT"},
		{n.RejectedMessages(), "SELECT, INSERT, UPDATE (`id`, `reason`, `published_at`, `requested_by`, `requested_at`), DELETE",
			"SELECT, UPDATE (`requested_by`, `requested_at`), DELETE",
			"REFERENCES, SELECT (`id`, `channel`, `topic`, `partition`, `record_offset`, `record_timestamp`, `reason`, `rejected_at`, " +
				"`published_at`, `requested_by`, `requested_at`)"},
		{n.Gaps(), "SELECT, INSERT, UPDATE (`id`, `reason`)", "SELECT", "SELECT"},
		{n.PartitionRequests(), everything, everything, "SELECT"}, // an operator's replaces an earlier one
		{n.Requests(), everything, "SELECT, INSERT, DELETE", // an operator's cleanup deletes old ones
			"REFERENCES, SELECT (`id`, `kind`, `target`, `actor`, `requested_at`, `taken_by`, `taken_at`, `ended_at`, `result`, `problem`)"},
		{n.Partitions(), everything, "SELECT, DELETE", "SELECT"}, // an operator's cleanup forgets removed ones
		{n.Locks(), everything, everything, "SELECT"},            // cleanup by hand takes its lease
		{n.Workers(), everything, "SELECT, DELETE", "SELECT"},
		{strings.TrimSuffix(n.Workers(), "workers") + "worker_locks", everything, "SELECT, DELETE", "SELECT"},
		{n.Handlers(), "SELECT, INSERT, UPDATE", "SELECT, INSERT, UPDATE", "SELECT"},
		{n.Markers(), everything, "SELECT", "SELECT"},
		{n.Audit(), "SELECT, INSERT", "SELECT, INSERT", "SELECT"},
		{n.Meta(), "SELECT, INSERT, UPDATE (`key`)", "SELECT", "SELECT"}, // the first start names the tables
	}
}

// Grants returns a script that gives accounts the rights that they need on the tables of naming. The accounts and the
// tables must exist. It takes nothing away, because MariaDB cannot revoke what was never granted.
func Grants(naming models.Naming, accounts Accounts) (string, error) {
	if err := naming.Validate(); err != nil {
		return "", err
	}
	var script strings.Builder
	script.WriteString(grantsHead)
	tables := privilegesOn(naming)
	granted := false
	for i, account := range []string{accounts.Application, accounts.Operator, accounts.Reader} {
		if account == "" {
			continue
		}
		to, err := quotedAccount(account)
		if err != nil {
			return "", err
		}
		granted = true
		fmt.Fprintf(&script, "\n-- %s\n", tasks[i])
		for _, p := range tables {
			rights := []string{p.application, p.operator, p.reader}[i]
			fmt.Fprintf(&script, "GRANT %s ON %s TO %s;\n", rights, mysqldialect.Dialect.Quoted(p.table), to)
		}
	}
	if !granted {
		return "", errors.New("no account is named: name the application's, the operators' or the readers'")
	}
	if accounts.Application != "" {
		to, _ := quotedAccount(accounts.Application)
		fmt.Fprintf(&script, grantsTail, mysqldialect.Dialect.Quoted(naming.Audit()), to)
	}
	return script.String(), nil
}

// tasks say what the application, operators and readers do.
var tasks = []string{"Accepts, runs handlers, cleans up, and serves the dashboard.", "Runs inboxctl.",
	"Reads all but what messages and rejected records carry."}

const grantsHead = `-- What accounts may do with the tables of one inbox. Run it as a user who may grant, in the
-- tables' database, and again after each migration. It takes nothing away: an account that
-- has rights on the whole database keeps them.
`

const grantsTail = `
-- Where the option AuditRetention is set, the application deletes audit rows:
--   GRANT DELETE ON %s TO %s;
`

func quotedAccount(account string) (string, error) {
	name, host := account, "%"
	if at := strings.LastIndex(account, "@"); at >= 0 {
		name, host = account[:at], account[at+1:]
	}
	if name == "" || host == "" || strings.ContainsRune(account, 0) {
		return "", fmt.Errorf("account %q must be name or name@host", account)
	}
	return quoted(name) + "@" + quoted(host), nil
}

func quoted(text string) string {
	return `'` + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text) + `'`
}
