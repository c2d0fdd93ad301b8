// Package session refuses GORM sessions with which an inbox would lose its writes, or write elsewhere.
package session

import (
	"errors"
	"fmt"

	"gorm.io/gorm"
)

// Check returns an error if db, a session or a transaction of the application's, is a dry run, carries an error, or is
// pinned to a replica of dbresolver's (contract 3.7).
func Check(db *gorm.DB) error {
	if db.Error != nil {
		return fmt.Errorf("the *gorm.DB carries an error of an earlier statement, pass a session without one: %w", db.Error)
	}
	if db.DryRun {
		return errors.New("the *gorm.DB is a session with DryRun, which writes nothing: pass one without it")
	}
	// dbresolver's own names: the module does not depend on it.
	_, reads := db.Statement.Settings.Load("gorm:db_resolver:read")
	_, writes := db.Statement.Settings.Load("gorm:db_resolver:write")
	if _, named := db.Statement.Clauses["gorm:db_resolver:using"]; reads || named && !writes {
		return errors.New("the *gorm.DB is pinned to a replica by dbresolver.Read or Use: " +
			"pass one without it, or with dbresolver.Write")
	}
	return nil
}
