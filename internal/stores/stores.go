// Package stores chooses the store for a database.
package stores

import (
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/mysql"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
	"github.com/gorm-inbox/inbox/internal/store/postgres"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgdialect"
	"github.com/gorm-inbox/inbox/internal/store/sqlite"
	"github.com/gorm-inbox/inbox/internal/store/sqlite/sqlitedialect"
	"github.com/gorm-inbox/inbox/models"
)

// New returns the store of the inbox whose tables have the names of naming in db. It does not
// access the database. Statements go straight to db's connection pool, so the user's logger and
// plugins are not involved and everything reaches the primary (contract 3.7). New fails for a
// database of no dialect, a db that is inside a transaction, and a bad naming.
func New(db *gorm.DB, naming models.Naming, options store.Options) (store.Store, error) {
	if db == nil {
		return nil, errors.New("store: no database")
	}
	d, err := dialects.Of(db)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return makers[d](db, naming, options)
}

// Maker returns a store for the tables of naming in db.
type Maker func(db *gorm.DB, naming models.Naming, options store.Options) (store.Store, error)

// Register adds a database with the maker of its stores. Call it in an init function, see dialects.Register.
func Register(d *dialect.Dialect, maker Maker) {
	dialects.Register(d)
	makers[d] = maker
}

var makers = map[*dialect.Dialect]Maker{
	pgdialect.Dialect: func(db *gorm.DB, naming models.Naming, options store.Options) (store.Store, error) {
		return checked(postgres.New(db, naming, options))
	},
	mysqldialect.Dialect: func(db *gorm.DB, naming models.Naming, options store.Options) (store.Store, error) {
		return checked(mysql.New(db, naming, options))
	},
	sqlitedialect.Dialect: func(db *gorm.DB, naming models.Naming, options store.Options) (store.Store, error) {
		return checked(sqlite.New(db, naming, options))
	},
}

// checked keeps a nil pointer out of the interface.
func checked[S store.Store](made S, err error) (store.Store, error) {
	if err != nil {
		return nil, err
	}
	return made, nil
}
