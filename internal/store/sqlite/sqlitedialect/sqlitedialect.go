// Package sqlitedialect describes SQLite.
package sqlitedialect

import (
	"database/sql"

	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/txcontrol"
)

// Dialect is SQLite 3.35 or later, with any driver. Its transactions are serializable by any name.
var Dialect = &dialect.Dialect{
	Title:              "SQLite",
	Name:               "sqlite",
	Classify:           classify,
	SingleWriter:       true,
	Isolations:         []sql.IsolationLevel{sql.LevelSerializable},
	Stated:             sql.LevelDefault,
	Migrations:         migrations,
	BeginMigration:     beginMigration,
	ColumnsSQL:         columnsSQL,
	GoesOn:             true,
	CommitsByStatement: true,
	Syntax: &txcontrol.Syntax{
		Boundaries: txcontrol.Boundaries,
		Quotes:     "'\"`[",
		LineEnds:   "\n",
		Body:       "BEGIN",
	},
}
