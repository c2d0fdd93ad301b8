package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// New returns the store of the inbox whose tables live under naming in db. It
// touches no database. Statements go straight to db's connection pool, so the
// user's logger and plugins are not involved and everything reaches the
// primary (contract 3.7). Another dialect than PostgreSQL or SQLite, a db that
// is inside a transaction, or a bad naming is an error.
func New(db *gorm.DB, naming models.Naming, options ...Option) (Store, error) {
	if db == nil {
		return nil, errors.New("store: no database")
	}
	dialect := db.Dialector.Name()
	if _, err := models.SQL(dialect, naming); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if inTransaction(db) {
		return nil, errors.New("store: the database session is inside a transaction")
	}
	db = db.Session(&gorm.Session{NewDB: true}) // no inherited clauses, no dry run
	tables := database{texts: new(sync.Map), db: db, singles: NewSingles(db)}
	names := []string{
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
		// Whoever uses the same table uses the same channel, by whatever
		// schema or search path; nobody else does.
		"{channel}", "('inbox_' || '" + models.Quote(naming.HandlerStatuses()) + "'::regclass::oid)",
	}
	for _, option := range options {
		option(&tables)
	}
	latest := `clock_timestamp()`
	if tables.testClock {
		latest = `NULL::timestamptz`
	}
	tables.names = strings.NewReplacer(append(names, "{latest}", latest)...)
	if dialect == "sqlite" {
		if tables.announces {
			return nil, errors.New("store: SQLite has no notifications")
		}
		return newSQLite(tables), nil
	}
	tables.isolation = readCommitted
	return newPostgres(tables), nil
}

// database is what both dialects run their statements on.
type database struct {
	db        *gorm.DB
	names     *strings.Replacer
	isolation *sql.TxOptions // of transactions; nil on SQLite
	singles   Singles
	texts     *sync.Map // statement with placeholders → with the tables' names
	announces bool      // see Announcing
	testClock bool      // see TestClock
}

// Option adjusts a store.
type Option func(*database)

// Announcing makes accepts tell the Listeners of other processes. PostgreSQL
// only.
func Announcing() Option { return func(d *database) { d.announces = true } }

// TestClock says that the batches' times are those of a test's clock, which the
// database's clock does not bound: a status is then created at AcceptBatch.Now.
// Otherwise it is created no later than the database's clock (contract 3.5).
func TestClock() Option { return func(d *database) { d.testClock = true } }

// text fills the tables' names into a statement, once.
func (d database) text(statement string) string {
	if text, ok := d.texts.Load(statement); ok {
		return text.(string)
	}
	text := d.names.Replace(statement)
	d.texts.Store(statement, text)
	return text
}

// pool runs statements outside any transaction.
func (d database) pool(ctx context.Context) gorm.ConnPool {
	return d.singles.Pool(ctx)
}

// transaction commits what work did unless it fails or panics. See
// MayBeCommitted for its errors.
func (d database) transaction(ctx context.Context, work func(gorm.ConnPool) error) error {
	worked := false
	err := d.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		err := work(tx.Statement.ConnPool)
		worked = err == nil
		return err
	}, d.isolation)
	if err = WithContextError(ctx, err); err != nil && worked {
		return &commitError{err}
	}
	return err
}

// joined is the pool of the caller's transaction.
func joined(tx *gorm.DB) (gorm.ConnPool, error) {
	if tx == nil || !inTransaction(tx) {
		return nil, ErrNoTransaction
	}
	return tx.Statement.ConnPool, nil
}

func inTransaction(db *gorm.DB) bool {
	_, ok := db.Statement.ConnPool.(gorm.TxCommitter)
	return ok
}

// WithContextError adds the context's end to an error that hides it, such as
// "transaction has already been committed or rolled back".
func WithContextError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("%w: %w", ctx.Err(), err)
}

// Query collects the rows of a statement. There is no QueryRowContext here:
// with PrepareStmt, GORM's returns a row that panics when preparing fails.
func Query[T any](ctx context.Context, pool gorm.ConnPool, statement string, scan func(*sql.Rows, *T) error, args ...any) (found []T, err error) {
	err = alone(ctx, pool, func(pool gorm.ConnPool) (err error) {
		found, err = collect(ctx, pool, statement, scan, args)
		return err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

func collect[T any](ctx context.Context, pool gorm.ConnPool, statement string, scan func(*sql.Rows, *T) error, args []any) ([]T, error) {
	rows, err := pool.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, WithContextError(ctx, err)
	}
	defer rows.Close()
	var found []T
	for rows.Next() {
		var row T
		if err := scan(rows, &row); err != nil {
			return nil, err
		}
		found = append(found, row)
	}
	if err := rows.Err(); err != nil {
		return nil, WithContextError(ctx, err)
	}
	return found, WithContextError(ctx, rows.Close())
}

// Value scans a row of one column.
func Value[T any](rows *sql.Rows, into *T) error { return rows.Scan(into) }

// Exec returns how many rows a statement affected.
func Exec(ctx context.Context, pool gorm.ConnPool, statement string, args ...any) (affected int64, err error) {
	err = alone(ctx, pool, func(pool gorm.ConnPool) error {
		result, err := pool.ExecContext(ctx, statement, args...)
		if err == nil {
			affected, err = result.RowsAffected()
		}
		return WithContextError(ctx, err)
	})
	if err != nil {
		return 0, err
	}
	return affected, nil
}

// doing names the operation in an error.
func doing(operation string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", operation, err)
}
