package models

import (
	"cmp"
	"fmt"
	"maps"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
)

// QueryClauses makes GORM's Preload and Joins of a status's message read the messages table beside the statuses table,
// in any schema and with any prefix (contract 3.4).
func (Message) QueryClauses(field *schema.Field) []clause.Interface {
	return []clause.Interface{beside{field: field}}
}

// beside directs the queries of a model with a Message to the right table. GORM uses the default name for a relation.
// Under another schema or prefix that is a table of another inbox, which has a message of the same number.
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
	for i, join := range stmt.Joins {
		if join.Name != b.field.Name || join.Expression != nil {
			continue
		}
		if !known {
			b.refuse(stmt, "Joins")
			return
		}
		joined := clause.Table{Name: messages, Alias: cmp.Or(join.Alias, join.Name)}
		stmt.Joins[i].Expression = b.join(stmt, join.JoinType, joined, join.On)
	}
	for name := range stmt.Preloads {
		path := b.field.EmbeddedBindNames
		if relation, _, _ := strings.Cut(name, "."); relation != path[0] && relation != clause.Associations {
			continue
		}
		if !known || len(path) > 1 { // a status that is a field of the model's is preloaded by another name
			b.refuse(stmt, "Preload")
			return
		}
		// Copy the map, because sessions share it.
		stmt.Preloads = maps.Clone(stmt.Preloads)
		there := func(tx *gorm.DB) *gorm.DB { return tx.Table(messages) }
		stmt.Preloads[b.field.Name] = append([]any{there}, stmt.Preloads[b.field.Name]...)
		return
	}
}

func (b beside) refuse(stmt *gorm.Statement, method string) {
	fail(stmt, fmt.Errorf("%s(%q) of %s: the messages beside it are not known: "+
		"name the statuses' table without an alias, as Inbox.Tables does, and read models.HandlerStatus",
		method, b.field.Name, stmt.Table))
}

// join returns the join that GORM would write with the messages' default table.
func (b beside) join(
	stmt *gorm.Statement, how clause.JoinType, messages clause.Table, given *clause.Where,
) clause.Join {
	reference := stmt.Schema.Relationships.Relations[b.field.Name].References[0]
	on := []clause.Expression{clause.Eq{
		Column: clause.Column{Table: stmt.Table, Name: reference.ForeignKey.DBName},
		Value:  clause.Column{Table: messages.Alias, Name: reference.PrimaryKey.DBName},
	}}
	if given != nil {
		on = append(on, conditions{on: messages.Alias, where: *given})
	}
	return clause.Join{Type: how, Table: messages, ON: clause.Where{Exprs: on}}
}

// conditions are the further conditions of a join. Their columns are the joined table's.
type conditions struct {
	on    string
	where clause.Where
}

// Build writes the conditions.
func (c conditions) Build(builder clause.Builder) {
	if stmt, ok := builder.(*gorm.Statement); ok {
		defer func(table string) { stmt.Table = table }(stmt.Table)
		stmt.Table = c.on
	}
	_ = builder.WriteByte('(')
	c.where.Build(builder)
	_ = builder.WriteByte(')')
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
