// Package dialects finds the description of a database.
package dialects

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgdialect"
	"github.com/gorm-inbox/inbox/internal/store/sqlite/sqlitedialect"
)

// all are the databases that an inbox can live in.
var all = []*dialect.Dialect{pgdialect.Dialect, sqlitedialect.Dialect, mysqldialect.Dialect}

// Register adds a database. It panics if there is one of that name. Call it in an init function: it is not safe for
// concurrent use.
func Register(d *dialect.Dialect) {
	if slices.Contains(Names(), d.Name) {
		panic(fmt.Sprintf("dialects: %q is registered twice", d.Name))
	}
	all = append(all, d)
}

// Names returns the dialects' names.
func Names() []string {
	var names []string
	for _, d := range all {
		names = append(names, d.Name)
	}
	return names
}

// Of returns the dialect of a session's database.
func Of(db *gorm.DB) (*dialect.Dialect, error) { return Named(db.Dialector.Name()) }

// Named returns the dialect with a name.
func Named(name string) (*dialect.Dialect, error) {
	for _, d := range all {
		if d.Name == name {
			return d, nil
		}
	}
	return nil, fmt.Errorf("dialect %q is not supported: use \"%s\"", name, strings.Join(Names(), `" or "`))
}

// RefusedIsolation returns which levels transactions can have if level is one of no database, and nothing
// otherwise.
func RefusedIsolation(level sql.IsolationLevel) (allowed string) {
	for _, d := range all {
		refused := d.RefusedIsolation(level)
		if refused == "" {
			return ""
		}
		if len(refused) > len(allowed) {
			allowed = refused
		}
	}
	return allowed
}

// Classify says what an error of any database means. It reports false for one that is not a database's.
func Classify(err error) (dialect.Class, bool) {
	if err == nil {
		return 0, false
	}
	for _, d := range all {
		if class, found := d.Classify(err); found {
			return class, true
		}
	}
	return 0, false
}
