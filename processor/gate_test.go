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

// commitGate is a connection pool in which a test can intercept the commits of accepts.
type commitGate struct {
	*sql.DB

	mu   sync.Mutex
	next []func(tx *sql.Tx) error
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

func (g *commitGate) GetDBConn() (*sql.DB, error) { return g.DB, nil }

func (g *commitGate) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := g.DB.BeginTx(ctx, opts)
	return &gatedTx{Tx: tx, gate: g}, err
}

type gatedTx struct {
	*sql.Tx
	gate    *commitGate
	accepts bool
}

func (tx *gatedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	tx.accepts = tx.accepts || strings.Contains(query, `INSERT INTO "inbox_messages"`)
	return tx.Tx.QueryContext(ctx, query, args...)
}

func (tx *gatedTx) Commit() error {
	tx.gate.mu.Lock()
	var how func(*sql.Tx) error
	if tx.accepts && len(tx.gate.next) > 0 {
		how, tx.gate.next = tx.gate.next[0], tx.gate.next[1:]
	}
	tx.gate.mu.Unlock()
	if how == nil {
		return tx.Tx.Commit()
	}
	return how(tx.Tx)
}
