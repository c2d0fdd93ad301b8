package pgxtx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"gorm.io/gorm"
)

// Session returns a session of db that begins its transactions as Begin does. Where pgx cannot be reached, the settings
// take one more round trip. Only PostgreSQL has connections that may be lost: elsewhere Session returns db.
func Session(db *gorm.DB, bound Bound, settings ...string) *gorm.DB {
	if db.Dialector.Name() != "postgres" {
		return db
	}
	pool := db.Statement.ConnPool
	if prepared, ok := pool.(*gorm.PreparedStmtDB); ok && bound == ByDeadline {
		pool = prepared.ConnPool // also where pgx cannot be reached
	}
	db = db.Session(&gorm.Session{})
	db.Statement.ConnPool = bounded{pool, bound, settings}
	return db
}

// bounded is a pool that begins transactions with a bound.
type bounded struct {
	gorm.ConnPool
	bound    Bound
	settings []string
}

// BeginTx implements gorm.ConnPoolBeginner.
func (b bounded) BeginTx(ctx context.Context, options *sql.TxOptions) (gorm.ConnPool, error) {
	pool := b.ConnPool
	if prepared, ok := pool.(*gorm.PreparedStmtDB); ok {
		pool = prepared.ConnPool // pgx itself prepares statements
	}
	if pool, ok := pool.(*sql.DB); ok {
		tx, err := Begin(ctx, pool, options, b.bound, b.settings...)
		if err == nil {
			return tx, nil
		}
		if !errors.Is(err, ErrUnavailable) {
			return nil, err
		}
	}
	tx, err := begin(ctx, b.ConnPool, options)
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, oneStatement(append(b.bound.settings(ctx), b.settings...), true)); err != nil {
		return nil, errors.Join(fmt.Errorf("bound the transaction: %w", err), tx.(gorm.TxCommitter).Rollback())
	}
	return tx, nil
}

// oneStatement turns SET LOCAL statements into one that every driver can run, for the transaction or else for the
// session.
func oneStatement(settings []string, local bool) string {
	var calls []string
	for _, statement := range settings {
		name, value, _ := strings.Cut(strings.TrimPrefix(statement, "set local "), " = ")
		calls = append(calls, fmt.Sprintf("set_config('%s', '%s', %t)", name, value, local))
	}
	return "SELECT " + strings.Join(calls, ", ")
}

func begin(ctx context.Context, pool gorm.ConnPool, options *sql.TxOptions) (gorm.ConnPool, error) {
	switch pool := pool.(type) {
	case gorm.TxBeginner:
		return pool.BeginTx(ctx, options)
	case gorm.ConnPoolBeginner:
		return pool.BeginTx(ctx, options)
	}
	return nil, gorm.ErrInvalidTransaction
}
