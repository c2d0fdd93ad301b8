package models

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/callbacks"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/gorm-inbox/inbox/internal/dialects"
)

// Version is a status's token of optimistic concurrency (contract 3.2). It adds itself to GORM's own statements. An
// update, upsert or delete of a status that was read changes the row only if its version is still the one that was
// read. Otherwise RowsAffected is 0. Every update raises the version, in the row and in the value that was updated;
// on MySQL, where an UPDATE returns nothing, in the row alone: read it again before the next. GORM never writes a
// version that the caller sets.
//
// A statement with conditions and without a status that was read, such as
// db.Model(&HandlerStatus{}).Where(...).Updates(...), has no version to compare. It raises the version, so a write by a
// caller that has read the row before changes nothing. Unscoped leaves the comparison out.
type Version int64

// CreateClauses makes GORM's upserts obey the version.
func (Version) CreateClauses(field *schema.Field) []clause.Interface {
	return []clause.Interface{guardedUpsert{versionGuard{field: field}}}
}

// UpdateClauses makes GORM's updates obey and raise the version.
func (Version) UpdateClauses(field *schema.Field) []clause.Interface {
	return []clause.Interface{guardedUpdate{versionGuard{field: field}}}
}

// DeleteClauses makes GORM's deletes obey the version.
func (Version) DeleteClauses(field *schema.Field) []clause.Interface {
	return []clause.Interface{guardedDelete{versionGuard{field: field}}}
}

var errUpsertOfSeveral = errors.New("statuses that were read cannot be saved or upserted several at a time: save each by itself")

// versionGuard is the common part of the three guards. To GORM it is a clause, but it never becomes part of a
// statement.
type versionGuard struct {
	noClause
	field *schema.Field
}

// noClause is the part of a clause that only modifies its statement.
type noClause struct{}

// Name returns "": no statement has such a clause.
func (noClause) Name() string { return "" }

// Build writes nothing.
func (noClause) Build(clause.Builder) {}

// MergeClause merges nothing.
func (noClause) MergeClause(*clause.Clause) {}

// column returns the version's column, qualified, as an upsert needs it.
func (g versionGuard) column(stmt *gorm.Statement) clause.Column {
	return clause.Column{Table: stmt.Table, Name: g.field.DBName}
}

// raised returns the assignment that raises the version.
func (g versionGuard) raised(stmt *gorm.Statement) clause.Assignment {
	return clause.Assignment{Column: clause.Column{Name: g.field.DBName},
		Value: clause.Expr{SQL: "? + 1", Vars: []any{g.column(stmt)}}}
}

// of returns a row's version. 0 means that the row was not read.
func (g versionGuard) of(stmt *gorm.Statement, row reflect.Value) Version {
	value, _ := g.field.ValueOf(stmt.Context, row)
	version, _ := value.(Version)
	return version
}

// read returns the statuses that a statement is about: its model's, or else its values'. It returns none if none of
// them was read.
func (g versionGuard) read(stmt *gorm.Statement) []reflect.Value {
	for _, given := range []any{stmt.Model, stmt.Dest} {
		rows := structsOf(reflect.ValueOf(given), stmt.Schema.ModelType)
		for _, row := range rows {
			if g.of(stmt, row) != 0 {
				return rows
			}
		}
	}
	return nil
}

// compare adds the condition that rows still have the versions with which they were read. Rows without a version are
// left to the statement's other conditions.
func (g versionGuard) compare(stmt *gorm.Statement, rows []reflect.Value) {
	named := false
	byVersion := map[Version][]any{}
	for _, row := range rows {
		key, isZero := keyOf(stmt, row)
		version := g.of(stmt, row)
		_, noID := idOf(stmt).ValueOf(stmt.Context, row)
		named = named || !isZero || !noID
		byVersion[version] = append(byVersion[version], key)
	}
	if _, given := stmt.Clauses["WHERE"]; !given && !named && !stmt.AllowGlobalUpdate {
		return // GORM refuses a statement without conditions, and a version alone would find rows of others
	}
	var alternatives []clause.Expression
	for version, keys := range byVersion {
		same := clause.Eq{Column: g.column(stmt), Value: int64(version)}
		among := clause.IN{Column: keyColumns(stmt), Values: keys}
		switch {
		case len(rows) == 1:
			alternatives = append(alternatives, g.identified(stmt, rows[0], same))
		case version == 0:
			alternatives = append(alternatives, among)
		default:
			alternatives = append(alternatives, clause.And(same, among))
		}
	}
	// The existing condition may contain an OR, which binds less tightly than the AND to come.
	if given, ok := stmt.Clauses["WHERE"].Expression.(clause.Where); ok && len(given.Exprs) > 1 {
		where := stmt.Clauses["WHERE"]
		where.Expression = clause.Where{Exprs: []clause.Expression{clause.And(given.Exprs...)}}
		stmt.Clauses["WHERE"] = where
	}
	stmt.AddClause(clause.Where{Exprs: []clause.Expression{clause.And(clause.Or(alternatives...))}})
}

// keyOf returns the values of a row's primary key, and whether the row has none.
func keyOf(stmt *gorm.Statement, row reflect.Value) (key []any, isZero bool) {
	isZero = true
	for _, field := range stmt.Schema.PrimaryFields {
		value, zero := field.ValueOf(stmt.Context, row)
		key, isZero = append(key, value), isZero && zero
	}
	return key, isZero
}

// keyColumns returns the columns of the primary key, as keyOf has their values.
func keyColumns(stmt *gorm.Statement) []clause.Column {
	var columns []clause.Column
	for _, name := range stmt.Schema.PrimaryFieldDBNames {
		columns = append(columns, clause.Column{Table: stmt.Table, Name: name})
	}
	return columns
}

// idOf returns the field of a status's ID.
func idOf(stmt *gorm.Statement) *schema.Field { return stmt.Schema.LookUpField("ID") }

// identified adds the row's primary key and ID, as far as they were read, to a condition about one row. A part of the
// key alone would find other rows, too.
func (versionGuard) identified(stmt *gorm.Statement, row reflect.Value, condition clause.Expression) clause.Expression {
	all, parts := []clause.Expression{condition}, 0
	for _, field := range append(slices.Clone(stmt.Schema.PrimaryFields), idOf(stmt)) {
		value, isZero := field.ValueOf(stmt.Context, row)
		if isZero {
			continue
		}
		parts++
		all = append(all, clause.Eq{Column: clause.Column{Table: stmt.Table, Name: field.DBName}, Value: value})
	}
	if _, noID := idOf(stmt).ValueOf(stmt.Context, row); noID && parts > 0 && parts < len(stmt.Schema.PrimaryFields) {
		_ = stmt.AddError(fmt.Errorf("%w: only a part of it was read: read all of it, or the ID", gorm.ErrPrimaryKeyRequired))
	}
	return clause.And(all...)
}

type guardedUpdate struct{ versionGuard }

// ModifyStatement is called by GORM before it builds the UPDATE.
func (g guardedUpdate) ModifyStatement(stmt *gorm.Statement) {
	if stmt.SQL.Len() > 0 {
		return // the caller's own SQL
	}
	rows := g.read(stmt)
	if len(rows) == 0 && reflect.TypeOf(stmt.Dest).Comparable() && stmt.Dest == stmt.Model && writesAll(stmt) {
		rows = structsOf(reflect.ValueOf(stmt.Dest), stmt.Schema.ModelType) // saved without having been read
	}
	if len(rows) > 0 && !stmt.Unscoped {
		g.compare(stmt, rows)
	}
	set, given := stmt.Clauses["SET"].Expression.(clause.Set)
	if !given {
		set = callbacks.ConvertToAssignments(stmt)
	}
	if len(set) == 0 {
		return // GORM has nothing to update
	}
	g.raise(stmt, append(set, g.raised(stmt)), given)
	if returns(stmt) && len(rows) == 1 && rows[0].CanAddr() && stmt.ReflectValue.Kind() == reflect.Struct &&
		stmt.ReflectValue.CanAddr() {
		if _, given := stmt.Clauses["RETURNING"]; !given {
			stmt.AddClause(clause.Returning{Columns: []clause.Column{{Name: g.field.DBName}}})
		}
	}
}

// returns reports whether the database has the statements that read the version back. Elsewhere the value keeps the
// version at which it was read, so that it must be read again before it is saved again.
func returns(stmt *gorm.Statement) bool {
	d, err := dialects.Of(stmt.DB)
	return err != nil || d.Returning
}

// raise sets the assignments. It removes those that GORM would have made after they are written, as GORM does, so that
// a statement can be used again.
func (g guardedUpdate) raise(stmt *gorm.Statement, set clause.Set, keep bool) {
	c := clause.Clause{Name: set.Name(), Expression: set}
	if !keep {
		c.Builder = func(c clause.Clause, builder clause.Builder) {
			clause.Clause{Name: c.Name, Expression: c.Expression}.Build(builder)
			delete(stmt.Clauses, c.Name)
		}
	}
	stmt.Clauses[c.Name] = c
}

func writesAll(stmt *gorm.Statement) bool {
	return len(stmt.Selects) > 0 && stmt.Selects[0] == "*"
}

type guardedDelete struct{ versionGuard }

// ModifyStatement is called by GORM before it builds the DELETE.
func (g guardedDelete) ModifyStatement(stmt *gorm.Statement) {
	if rows := g.read(stmt); len(rows) > 0 && stmt.SQL.Len() == 0 && !stmt.Unscoped {
		g.compare(stmt, rows)
	}
}

type guardedUpsert struct{ versionGuard }

// ModifyStatement is called by GORM before it builds the INSERT. It obeys the version if the INSERT would become an
// update. Save is such a statement if it is given a slice, or after its UPDATE has found no row.
func (g guardedUpsert) ModifyStatement(stmt *gorm.Statement) {
	conflict, upsert := stmt.Clauses["ON CONFLICT"].Expression.(clause.OnConflict)
	if !upsert || conflict.DoNothing {
		return
	}
	rows := structs(stmt)
	read := slices.ContainsFunc(rows, func(row reflect.Value) bool { return g.of(stmt, row) != 0 })
	same := clause.Expr{SQL: "? = ?", Vars: []any{g.column(stmt), clause.Column{Table: "excluded", Name: g.field.DBName}}}
	switch {
	case !read && len(rows) > 0 && !returns(stmt):
		stmt.AddClause(clause.OnConflict{DoNothing: true}) // a row that exists is left alone
		return
	case !read && len(rows) > 0:
		same = clause.Expr{SQL: "1 = 0"} // none was read, so no row exists in a version that was read
	case len(rows) > 1:
		_ = stmt.AddError(errUpsertOfSeveral)
		return
	case read:
		g.insertNothing(stmt, rows[0])
	}
	conflict.Where.Exprs = append([]clause.Expression{same}, conflict.Where.Exprs...)
	conflict.DoUpdates = append(clause.Set{g.raised(stmt)}, conflict.DoUpdates...)
	stmt.AddClause(conflict)
}

// insertNothing makes the upsert of a status that was read find no values to insert unless the row still exists in that
// version. A status that was deleted and inserted again would run its handler again.
func (g guardedUpsert) insertNothing(stmt *gorm.Statement, row reflect.Value) {
	same := g.identified(stmt, row, clause.Eq{Column: clause.Column{Table: stmt.Table, Name: g.field.DBName},
		Value: int64(g.of(stmt, row))})
	if stmt.ReflectValue.Kind() == reflect.Struct && !row.CanAddr() { // saved by value, into which GORM cannot write
		stmt.ReflectValue = reflect.New(row.Type()).Elem()
		stmt.ReflectValue.Set(row)
	}
	lock := ""
	if !returns(stmt) { // the upsert's update has no condition on MySQL: lock the row in the version that was found
		lock = " FOR UPDATE"
	}
	stmt.Clauses["VALUES"] = clause.Clause{Builder: func(c clause.Clause, builder clause.Builder) {
		values, _ := c.Expression.(clause.Values)
		clause.Expr{
			SQL:                "(?) SELECT ? WHERE EXISTS (SELECT 1 FROM ? WHERE ?" + lock + ")",
			Vars:               []any{values.Columns, values.Values[0], clause.Table{Name: clause.CurrentTable}, same},
			WithoutParentheses: true,
		}.Build(builder)
	}}
	if _, given := stmt.Clauses["RETURNING"]; !given && row.CanAddr() {
		stmt.AddClause(returning(stmt, g.field))
	}
}
