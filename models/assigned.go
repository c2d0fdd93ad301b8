package models

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/dialects"
)

var errMixedBatch = errors.New("set in some of the rows created together: set it in all of them or in none")

// assigned changes a Create whose rows leave a field at 0, so that the field is assigned. It cannot be a default in the
// field's tag: AutoMigrate would find that the column has no default and recreate SQLite's table each time.
type assigned struct {
	noClause
	field *schema.Field
	table string // without its prefix
	key   string // key of the counter's row in the meta table, on SQLite
}

// ModifyStatement is called by GORM before it builds the INSERT. Rows given as maps leave the column out anyway.
func (a assigned) ModifyStatement(stmt *gorm.Statement) {
	rows := structs(stmt)
	unset := slices.DeleteFunc(slices.Clone(rows), func(row reflect.Value) bool {
		_, isZero := a.field.ValueOf(stmt.Context, row)
		return !isZero
	})
	switch {
	case len(unset) == 0:
	case len(unset) < len(rows):
		_ = stmt.AddError(fmt.Errorf("%s: %w", a.field.DBName, errMixedBatch))
	case identity(stmt.DB) != "":
		a.leaveOut(stmt)
	case !stmt.DryRun:
		_ = stmt.AddError(a.count(stmt, unset))
	}
}

// structs returns the rows to create.
func structs(stmt *gorm.Statement) []reflect.Value {
	return structsOf(stmt.ReflectValue, stmt.Schema.ModelType)
}

// structsOf returns the structs of type model that a value is, points to or lists.
func structsOf(value reflect.Value, model reflect.Type) []reflect.Value {
	for value.Kind() == reflect.Pointer {
		value = value.Elem()
	}
	var rows []reflect.Value
	switch value.Kind() {
	case reflect.Struct:
		rows = append(rows, value)
	case reflect.Slice, reflect.Array:
		for i := range value.Len() {
			rows = append(rows, reflect.Indirect(value.Index(i)))
		}
	}
	return slices.DeleteFunc(rows, func(row reflect.Value) bool { return !row.IsValid() || row.Type() != model })
}

// leaveOut omits the column, so that PostgreSQL's identity assigns it, and returns the assigned value into the row.
func (a assigned) leaveOut(stmt *gorm.Statement) {
	stmt.Omits = append(slices.Clone(stmt.Omits), a.field.DBName)
	if _, given := stmt.Clauses["RETURNING"]; given {
		return
	}
	stmt.AddClause(returning(stmt, a.field))
}

// returning returns a clause that reads a field back after an INSERT, together with those that GORM reads.
func returning(stmt *gorm.Statement, field *schema.Field) clause.Returning {
	columns := []clause.Column{{Name: field.DBName}}
	for _, field := range stmt.Schema.FieldsWithDefaultDBValue {
		columns = append(columns, clause.Column{Name: field.DBName})
	}
	return clause.Returning{Columns: columns}
}

// count takes numbers from the counter that accepting uses, in the transaction of the INSERT. It writes first, so that
// two of them wait for each other. It also reads the highest stored number, by its index, because of rows that were
// inserted by hand.
func (a assigned) count(stmt *gorm.Statement, rows []reflect.Value) error {
	prefix, ours := strings.CutSuffix(stmt.Table, a.table)
	if !ours {
		return nil // another application's table, which no counter belongs to
	}
	highest := fmt.Sprintf(`(SELECT COALESCE(max(%s), 0) FROM %s)`, columns.Quote(a.field.DBName), columns.Quote(stmt.Table))
	last := `CAST("value" AS INTEGER)`
	if a.key == "number" {
		last = `max(` + last + `, ` + highest + `)`
	}
	before, found, err := one[int64](stmt.Context, stmt.ConnPool, `INSERT INTO `+columns.Quote(prefix+"meta")+` ("key", "value") VALUES ($1, `+highest+` + $2)
		ON CONFLICT ("key") DO UPDATE SET "value" = `+last+` + $2 RETURNING CAST("value" AS INTEGER) - $2`, a.key, len(rows))
	if err == nil && !found {
		err = errors.New("no row returned")
	}
	if err != nil {
		return fmt.Errorf("take the next %s from %s: %w", a.key, prefix+"meta", err)
	}
	for i, row := range rows {
		if err := a.field.Set(stmt.Context, row, before+int64(i)+1); err != nil {
			return fmt.Errorf("set %s: %w", a.field.DBName, err)
		}
	}
	return nil
}

// Sequence is a status's place in the order of acceptance (contract 5.12): higher is later. Gaps are normal. PostgreSQL
// assigns it as an identity column. On SQLite the accepting statement does. If it is 0, GORM's Create has it assigned
// (contract 3.4). On MySQL Create leaves it at 0 in the value.
type Sequence int64

// GormDBDataType makes AutoMigrate create the identity column that accepting relies on.
func (Sequence) GormDBDataType(db *gorm.DB, _ *schema.Field) string { return identity(db) }

// CreateClauses makes GORM's Create assign a Sequence that is 0.
func (Sequence) CreateClauses(field *schema.Field) []clause.Interface {
	return []clause.Interface{assigned{field: field, table: "handler_statuses", key: "sequence"}}
}

// MessageNumber is a message's short name within its inbox, from 1. It is assigned as a Sequence is. It says nothing
// about order, and is never given out again, even after its message was deleted. GORM never updates it. On MySQL,
// unlike MariaDB, an INSERT returns nothing, and Create leaves it at 0: read the message.
type MessageNumber int64

// GormDBDataType makes AutoMigrate create the identity column that accepting relies on.
func (MessageNumber) GormDBDataType(db *gorm.DB, _ *schema.Field) string { return identity(db) }

// CreateClauses makes GORM's Create assign a MessageNumber that is 0.
func (MessageNumber) CreateClauses(field *schema.Field) []clause.Interface {
	return []clause.Interface{assigned{field: field, table: "messages", key: "number"}}
}

func identity(db *gorm.DB) string {
	if d, err := dialects.Of(db); err == nil {
		return d.Identity
	}
	return "" // GORM's own choice
}
