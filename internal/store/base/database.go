// Package base has what the stores of all dialects have in common: how a statement gets
// the names of the tables, the algorithm of accepting, and the scanning of rows. It is for
// the dialects alone.
package base

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// Database is what both dialects run their statements on.
type Database struct {
	DB        *gorm.DB
	names     *strings.Replacer
	Isolation *sql.TxOptions // of transactions; nil on SQLite
	Singles   store.Singles
	texts     *sync.Map // statement with placeholders → with the tables' names
}

// NewDatabase checks what a store is made of. It touches no database.
func NewDatabase(db *gorm.DB, naming models.Naming, isolation *sql.TxOptions, options store.Options) (Database, error) {
	if _, err := models.SQL(db.Dialector.Name(), naming); err != nil {
		return Database{}, fmt.Errorf("store: %w", err)
	}
	if inTransaction(db) {
		return Database{}, errors.New("store: the database session is inside a transaction")
	}
	latest := `clock_timestamp()`
	if options.TestClock {
		latest = `NULL::timestamptz`
	}
	db = db.Session(&gorm.Session{NewDB: true}) // no inherited clauses, no dry run
	return Database{texts: new(sync.Map), DB: db, Singles: store.NewSingles(db), Isolation: isolation,
		names: strings.NewReplacer(
			"{messages}", models.Quote(naming.Messages()),
			"{statuses}", models.Quote(naming.HandlerStatuses()),
			"{rejected}", models.Quote(naming.RejectedMessages()),
			"{gaps}", models.Quote(naming.Gaps()),
			"{locks}", models.Quote(naming.Locks()),
			"{workers}", models.Quote(naming.Workers()),
			"{handlers}", models.Quote(naming.Handlers()),
			"{markers}", models.Quote(naming.Markers()),
			"{audit}", models.Quote(naming.Audit()),
			"{meta}", models.Quote(naming.Meta()),
			// One channel for each table, by whatever schema or search path it is reached.
			"{channel}", "('inbox_' || '"+models.Quote(naming.HandlerStatuses())+"'::regclass::oid)",
			"{latest}", latest,
		)}, nil
}

// Text fills the tables' names into a statement, once.
func (d Database) Text(statement string) string {
	if text, ok := d.texts.Load(statement); ok {
		return text.(string)
	}
	text := d.names.Replace(statement)
	d.texts.Store(statement, text)
	return text
}

// Pool runs statements outside any transaction.
func (d Database) Pool(ctx context.Context) gorm.ConnPool {
	return d.Singles.Pool(ctx)
}

// Transaction commits what work did unless it fails or panics. See
// MayBeCommitted for its errors.
func (d Database) Transaction(ctx context.Context, work func(gorm.ConnPool) error) error {
	worked := false
	err := d.DB.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		err := work(tx.Statement.ConnPool)
		worked = err == nil
		return err
	}, d.Isolation)
	if err = store.WithContextError(ctx, err); err != nil && worked {
		return store.FailedCommit(err)
	}
	return err
}

// Joined is the pool of the caller's transaction.
func Joined(tx *gorm.DB) (gorm.ConnPool, error) {
	if tx == nil || !inTransaction(tx) {
		return nil, store.ErrNoTransaction
	}
	return tx.Statement.ConnPool, nil
}

func inTransaction(db *gorm.DB) bool {
	_, ok := db.Statement.ConnPool.(gorm.TxCommitter)
	return ok
}

// Doing names the operation in an error.
func Doing(operation string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", operation, err)
}
