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
	RolledBack:         rolledBack,
	CommitsByStatement: true,
	Syntax: &txcontrol.Syntax{
		Boundaries: txcontrol.Boundaries,
		Quotes:     "'\"`[",
		LineEnds:   "\n",
		Body:       "BEGIN",
	},
}

// rolledBack asks SQLite whether a statement that failed has rolled back the whole transaction, as it does for
// ON CONFLICT ROLLBACK, RAISE(ROLLBACK) or a full disk: the error does not say so. Within a transaction BEGIN is
// refused. If the transaction is gone, BEGIN begins another one, which the end of the attempt undoes.
func rolledBack(_ error, run func(statement string) error) bool { return run("BEGIN") == nil }
