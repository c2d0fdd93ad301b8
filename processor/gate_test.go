package processor_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// commitGate is a connection pool in which a test can intercept the commits of accepts and the
// responses of claims.
type commitGate struct {
	*sql.DB

	mu    sync.Mutex
	next  []func(tx *sql.Tx) error
	claim func(ctx context.Context) error
}

// gated returns the database opened through a commitGate.
func gated(t *testing.T, d *inboxtest.Database) (*gorm.DB, *commitGate) {
	t.Helper()
	pool, err := d.DB.DB()
	require.NoError(t, err)
	g := &commitGate{DB: pool}
	db := d.DB.Session(&gorm.Session{NewDB: true})
	db.Config.ConnPool, db.Statement.ConnPool = g, g
	return db, g
}

// take makes the next accept commit by calling how.
func (g *commitGate) take(how func(tx *sql.Tx) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next = append(g.next, how)
}

var errLost = errors.New("the answer is lost")

// lose commits the next accept but reports a failure to it.
func (g *commitGate) lose() {
	g.take(func(tx *sql.Tx) error { return errors.Join(tx.Commit(), errLost) })
}

// hold commits the next accept, which gets its response only when open is called.
func (g *commitGate) hold() (committed <-chan struct{}, open func()) {
	done, opened := make(chan struct{}), make(chan struct{})
	g.take(func(tx *sql.Tx) error {
		err := tx.Commit()
		close(done)
		<-opened
		return err
	})
	return done, sync.OnceFunc(func() { close(opened) })
}

// holdClaim commits the next claim of a worker, which gets its response only when open is called or
// until ends its wait. until returns a channel for the claim's context.
func (g *commitGate) holdClaim(until func(context.Context) <-chan struct{}) (committed <-chan struct{}, open func()) {
	done, opened := make(chan struct{}), make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.claim = func(ctx context.Context) error {
		close(done)
		select {
		case <-opened:
			return nil
		case <-until(ctx):
			return nil
		}
	}
	return done, sync.OnceFunc(func() { close(opened) })
}

// claimed is called when a claim is committed.
func (g *commitGate) claimed(ctx context.Context) error {
	g.mu.Lock()
	held := g.claim
	g.claim = nil
	g.mu.Unlock()
	if held == nil {
		return nil
	}
	return held(ctx)
}

// isClaim reports whether a statement claims for a worker.
func isClaim(query string) bool { return strings.Contains(query, "SET processing_started_at = ") }

// QueryContext runs claims on PostgreSQL, which are single statements.
func (g *commitGate) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := g.DB.QueryContext(ctx, query, args...)
	if err == nil && isClaim(query) {
		err = g.claimed(ctx)
	}
	return rows, err
}

func (g *commitGate) GetDBConn() (*sql.DB, error) { return g.DB, nil }

func (g *commitGate) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := g.DB.BeginTx(ctx, opts)
	return &gatedTx{Tx: tx, gate: g, ctx: ctx}, err
}

type gatedTx struct {
	*sql.Tx
	gate    *commitGate
	ctx     context.Context
	accepts bool
	claims  bool
}

func (tx *gatedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	tx.accepts = tx.accepts || strings.Contains(query, "INSERT INTO") && strings.Contains(query, `"inbox_messages"`)
	tx.claims = tx.claims || isClaim(query)
	return tx.Tx.QueryContext(ctx, query, args...)
}

// ExecContext runs inserts and claims on MySQL, where they return no rows.
func (tx *gatedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tx.accepts = tx.accepts || strings.HasPrefix(query, "INSERT INTO") && strings.Contains(query, "`inbox_messages`")
	tx.claims = tx.claims || isClaim(query)
	return tx.Tx.ExecContext(ctx, query, args...)
}

func (tx *gatedTx) Commit() error {
	tx.gate.mu.Lock()
	var how func(*sql.Tx) error
	if tx.accepts && len(tx.gate.next) > 0 {
		how, tx.gate.next = tx.gate.next[0], tx.gate.next[1:]
	}
	tx.gate.mu.Unlock()
	if how != nil {
		return how(tx.Tx)
	}
	err := tx.Tx.Commit()
	if err == nil && tx.claims {
		err = tx.gate.claimed(tx.ctx)
	}
	return err
}
