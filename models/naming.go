package models

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/gorm-inbox/inbox/internal/columns"
)

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Naming is where an inbox's tables are (contract 3.4). The zero value is the default: the connection's own schema and
// the prefix "inbox_". Two inboxes share a database under different prefixes or schemas.
//
// As a clause it directs a GORM statement to the table of the statement's model:
//
//	db.Clauses(naming).Where("is_poisoned").Find(&statuses)
//	db.Clauses(naming).Model(&models.Marker{}).Count(&n)
//	gorm.G[models.HandlerStatus](db, naming).Where("is_poisoned").Find(ctx)
type Naming struct {
	// Schema is a schema of PostgreSQL, or a database of MySQL and MariaDB. Empty leaves it to the search path or the
	// connection. Do not set it on SQLite, which has no schemas: use Prefix.
	Schema string
	// Prefix begins the name of every table and index. Empty means "inbox_".
	Prefix string
}

// Validate returns an error that names the field, its value and what is allowed.
func (n Naming) Validate() error {
	if n.Schema != "" && (len(n.Schema) > columns.MaxSchema || !identifier.MatchString(n.Schema)) {
		return fmt.Errorf("schema = %q: must be letters, digits and underscores, not a digit first, %d characters at most",
			n.Schema, columns.MaxSchema)
	}
	if n.Prefix != "" && (len(n.Prefix) > columns.MaxPrefix || !identifier.MatchString(n.Prefix)) {
		return fmt.Errorf("table prefix = %q: must be letters, digits and underscores, not a digit first, %d characters at most",
			n.Prefix, columns.MaxPrefix)
	}
	return nil
}

// Messages returns the qualified name of the messages table. Like the names of the methods below it is unquoted, as
// db.Table expects it. In plain SQL quote each part of it if one holds capitals.
func (n Naming) Messages() string { return n.table("messages") }

// HandlerStatuses returns the qualified name of the statuses table.
func (n Naming) HandlerStatuses() string { return n.table("handler_statuses") }

// RejectedMessages returns the qualified name of the rejected messages table.
func (n Naming) RejectedMessages() string { return n.table("rejected_messages") }

// Gaps returns the qualified name of the gaps table.
func (n Naming) Gaps() string { return n.table("gaps") }

// PartitionRequests returns the qualified name of the table of requests about halted partitions.
func (n Naming) PartitionRequests() string { return n.table("partition_requests") }

// Requests returns the qualified name of the table of requests to workers.
func (n Naming) Requests() string { return n.table("requests") }

// Partitions returns the qualified name of the table of partitions' progress.
func (n Naming) Partitions() string { return n.table("partitions") }

// Locks returns the qualified name of the leases table.
func (n Naming) Locks() string { return n.table("locks") }

// Workers returns the qualified name of the workers table.
func (n Naming) Workers() string { return n.table("workers") }

// Handlers returns the qualified name of the handlers table.
func (n Naming) Handlers() string { return n.table("handlers") }

// Markers returns the qualified name of the inline markers table.
func (n Naming) Markers() string { return n.table("markers") }

// Audit returns the qualified name of the audit table.
func (n Naming) Audit() string { return n.table("audit") }

// Meta returns the qualified name of the meta table.
func (n Naming) Meta() string { return n.table("meta") }

// Build writes nothing. With ModifyStatement it makes a Naming a clause.
func (n Naming) Build(clause.Builder) {}

// ModifyStatement is called by GORM when a Naming is added to a statement. The rows are known later.
func (n Naming) ModifyStatement(stmt *gorm.Statement) {
	if stmt.DB.Scopes(n.direct).Statement != stmt {
		_ = stmt.AddError(errors.New("the tables of an inbox were added to a statement outside of db.Clauses and gorm.G"))
	}
}

// direct is a scope. It gives a statement the table of its model's rows, or an error if these are no inbox's.
func (n Naming) direct(db *gorm.DB) *gorm.DB {
	model := db.Statement.Model
	if model == nil {
		model = db.Statement.Dest
	}
	parsed := &gorm.Statement{DB: db}
	if err := parsed.Parse(model); err == nil {
		for _, row := range All() {
			if row.(schema.Tabler).TableName() == parsed.Table {
				return db.Table(n.table(strings.TrimPrefix(parsed.Table, columns.DefaultPrefix)))
			}
		}
	}
	fail(db.Statement, fmt.Errorf("a statement of %T is directed to the tables of an inbox, which have no such rows: "+
		"name some by Model, as in Model(&models.HandlerStatus{})", model))
	return db
}

// fail reports an error of a statement. GORM ignores the errors of a subquery and would leave its text empty, with
// which the outer statement can be valid and mean every row. So the text becomes one that no database accepts.
func fail(stmt *gorm.Statement, err error) {
	_ = stmt.AddError(err)
	if stmt.DryRun && stmt.SQL.Len() == 0 {
		stmt.SQL.WriteString("not rows of the inbox")
	}
}

func (n Naming) table(name string) string {
	if n.Schema == "" {
		return n.prefix() + name
	}
	return n.Schema + "." + n.prefix() + name
}

func (n Naming) prefix() string {
	if n.Prefix == "" {
		return columns.DefaultPrefix
	}
	return n.Prefix
}

// describe names the schema and prefix in error messages.
func (n Naming) describe() string {
	if n.Schema == "" {
		return fmt.Sprintf("table prefix %q", n.prefix())
	}
	return fmt.Sprintf("schema %q, table prefix %q", n.Schema, n.prefix())
}
