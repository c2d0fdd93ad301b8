package models

import (
	"fmt"
	"maps"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
)

// QueryClauses makes GORM's Preload of a status's message read the messages table beside the
// statuses table, whatever schema and prefix these have (contract 3.4).
func (Message) QueryClauses(field *schema.Field) []clause.Interface {
	return []clause.Interface{beside{field: field}}
}

// beside directs the queries of a model with a Message to the right table. GORM uses the default
// name for a relation. Under another schema or prefix that is a table of another inbox, which has a
// message of the same number.
type beside struct {
	noClause
	field *schema.Field // the field that holds the message
}

// ModifyStatement is called by GORM before it builds the SELECT.
func (b beside) ModifyStatement(stmt *gorm.Statement) {
	if stmt.Schema == nil || stmt.Schema != b.field.Schema || stmt.SQL.Len() > 0 {
		return
	}
	messages, known := b.table(stmt)
	if known && messages == (Message{}).TableName() {
		return
	}
	for _, join := range stmt.Joins {
		if b.names(join.Name) {
			_ = stmt.AddError(fmt.Errorf("Joins(%q) of %s: GORM joins its default table %s, which may be another inbox's: use Preload(%q), or join the table by its name",
				join.Name, stmt.Table, Message{}.TableName(), b.field.Name))
			return
		}
	}
	for name := range stmt.Preloads {
		if !b.names(name) && !b.names(strings.Replace(name, clause.Associations, b.field.Name, 1)) {
			continue
		}
		if !known {
			_ = stmt.AddError(fmt.Errorf("Preload(%q) of %s: the messages beside it are not known: name the statuses' table without an alias, as Inbox.Statuses does",
				b.field.Name, stmt.Table))
			return
		}
		// Copy the map, because sessions share it.
		stmt.Preloads = maps.Clone(stmt.Preloads)
		there := func(tx *gorm.DB) *gorm.DB { return tx.Table(messages) }
		stmt.Preloads[b.field.Name] = append([]any{there}, stmt.Preloads[b.field.Name]...)
		return
	}
}

// names reports whether the name of a relation is the message's, or begins with it.
func (b beside) names(relation string) bool {
	return relation == b.field.Name || strings.HasPrefix(relation, b.field.Name+".")
}

// table returns the name of the messages table beside the statement's statuses table.
func (b beside) table(stmt *gorm.Statement) (name string, known bool) {
	statuses := stmt.Table
	if stmt.TableExpr != nil {
		statuses = strings.NewReplacer(`"`, "", "`", "").Replace(stmt.TableExpr.SQL)
	}
	before, known := strings.CutSuffix(statuses, "handler_statuses")
	return before + "messages", known
}
