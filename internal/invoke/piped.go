package invoke

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/pgxtx"
)

// BeginPiped is Begin for a transaction that is steered often: on PostgreSQL,
// what SteerLater sends goes together with the statement that follows, which
// saves a round trip each time, wherever pgx can be spoken to.
func BeginPiped(ctx context.Context, db *gorm.DB, timeout time.Duration) (*Tx, error) {
	pool, ok := db.Statement.ConnPool.(*sql.DB)
	if ok && db.Dialector.Name() == "postgres" {
		db = db.Session(&gorm.Session{NewDB: true, Context: ctx})
		db.Statement.ConnPool = piping{pool}
	}
	return Begin(ctx, db, timeout)
}

// piping begins pipedTx where it can.
type piping struct{ *sql.DB }

// BeginTx implements gorm.ConnPoolBeginner.
func (p piping) BeginTx(ctx context.Context, options *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := pgxtx.Begin(ctx, p.DB, options)
	if errors.Is(err, pgxtx.ErrUnavailable) {
		return p.DB.BeginTx(ctx, options)
	}
	if err != nil {
		return nil, err
	}
	return &pipedTx{Tx: tx, pool: p.DB}, nil
}

// pipedTx keeps what steers it until its next statement.
type pipedTx struct {
	*pgxtx.Tx
	pool *sql.DB

	// mu is held while what is pending is on its way: were it not, another
	// statement of the handler's, from a goroutine of its own, could overtake a
	// savepoint that it must stand behind.
	mu      sync.Mutex
	pending []string
	failed  error
}

// SteerLater is Steer at the latest before tx's next statement. That it failed
// is known from Steered then; the statement that came with it has the error, too.
func SteerLater(ctx context.Context, tx *gorm.DB, statements ...string) error {
	t, ok := tx.Statement.ConnPool.(*pipedTx)
	if !ok {
		return Steer(ctx, tx, strings.Join(statements, "; "))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = append(t.pending, statements...)
	return nil
}

// Steered returns what SteerLater's statements failed with.
func Steered(tx *gorm.DB) error {
	t, ok := tx.Statement.ConnPool.(*pipedTx)
	if !ok {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// ExecContext runs a statement, together with what is pending.
func (t *pipedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.pending) == 0 || !pipeable(args) {
		if err := t.flush(ctx); err != nil {
			return nil, err
		}
		return t.Tx.ExecContext(ctx, query, args...)
	}
	var affected int64
	err := t.Do(func(c *pgx.Conn) error {
		var batch pgx.Batch
		for _, statement := range t.pending {
			batch.Queue(statement)
		}
		batch.Queue(query, args...)
		results := c.SendBatch(ctx, &batch)
		for _, statement := range t.pending {
			if _, err := results.Exec(); err != nil {
				t.failed = fmt.Errorf("%s: %w", strings.ToLower(statement), err)
				return errors.Join(t.failed, results.Close())
			}
		}
		tag, err := results.Exec()
		affected = tag.RowsAffected()
		if end := results.Close(); err == nil {
			err = end
		}
		return err
	})
	t.pending = t.pending[:0]
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(affected), nil
}

// pipeable says whether a batch treats a statement with these arguments as
// database/sql does. Without arguments it may be several statements in one.
func pipeable(args []any) bool {
	for _, arg := range args {
		switch arg.(type) {
		case sql.NamedArg, sql.Out, pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID, pgx.QueryRewriter:
			return false
		}
	}
	return len(args) > 0
}

// flush sends what is pending by itself.
func (t *pipedTx) flush(ctx context.Context) error {
	if len(t.pending) == 0 {
		return nil
	}
	statements := strings.Join(t.pending, "; ")
	t.pending = t.pending[:0]
	if _, err := t.Tx.ExecContext(ctx, statements); err != nil {
		t.failed = fmt.Errorf("%s: %w", strings.ToLower(statements), err)
		return t.failed
	}
	return nil
}

func (t *pipedTx) flushed(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.flush(ctx)
}

// QueryContext runs a query after what is pending.
func (t *pipedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := t.flushed(ctx); err != nil {
		return nil, err
	}
	return t.Tx.QueryContext(ctx, query, args...)
}

// QueryRowContext runs a query after what is pending; a failure of that has
// aborted the transaction, which the query then says.
func (t *pipedTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	_ = t.flushed(ctx)
	return t.Tx.QueryRowContext(ctx, query, args...)
}

// PrepareContext prepares a statement after what is pending.
func (t *pipedTx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	if err := t.flushed(ctx); err != nil {
		return nil, err
	}
	return t.Tx.PrepareContext(ctx, query)
}

// GetDBConn lets gorm.DB.DB find the pool.
func (t *pipedTx) GetDBConn() (*sql.DB, error) { return t.pool, nil }
