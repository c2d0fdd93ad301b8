package engine

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"weak"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/models"
)

// tables makes sure that an inbox uses its own tables: that they exist, are new enough and carry its name, and that a
// caller's transaction leads to them. A positive answer is kept, so that it costs one query only.
type tables struct {
	e *Engine

	lock    routine.Lock // held during check
	checked atomic.Bool  // by Start, or by the first call without Start
	id      string       // identity of the tables; set before checked
	pools   sync.Map     // weak.Pointer[sql.DB] of other pools whose transactions lead to these tables
}

// check queries the database. The caller holds the lock.
func (t *tables) check(ctx context.Context) error {
	if err := models.CheckSchema(ctx, t.e.cfg.DB, t.e.cfg.Naming, t.e.cfg.Name); err != nil {
		return err
	}
	_, id, err := models.Identity(ctx, t.e.cfg.DB, t.e.cfg.Naming)
	if err != nil {
		return err
	}
	if err := t.e.store.KeepSchema(ctx, t.e.cfg.DB.Statement.ConnPool); err != nil {
		return err
	}
	if err := t.e.bounded(ctx, t.e.checkIsolation); err != nil {
		return err
	}
	t.id = id
	t.checked.Store(true)
	return nil
}

// ready checks the tables for calls without Start, until a check has succeeded once.
func (t *tables) ready(ctx context.Context) error {
	if t.checked.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.e.cfg.Processor.StatementTimeout)
	defer cancel()
	if err := t.lock.Acquire(ctx); err != nil {
		return fmt.Errorf("wait for another check of the tables: %w", err)
	}
	defer t.lock.Release()
	if t.checked.Load() {
		return nil
	}
	return t.check(ctx)
}

// checkAtStart checks the tables again, as each Start does.
func (t *tables) checkAtStart(ctx context.Context) error {
	if err := t.lock.Acquire(ctx); err != nil {
		return fmt.Errorf("wait for another check of the tables: %w", err)
	}
	defer t.lock.Release()
	return t.check(ctx)
}

// checkTx returns an error that names both inboxes if the caller's transaction leads to another inbox's tables. A
// transaction of the inbox's own pool, or of a pool that was checked before, costs no round trip.
func (t *tables) checkTx(ctx context.Context, tx *gorm.DB) error {
	if tx == nil {
		return nil // the acceptor refuses it
	}
	pool, err := tx.DB()
	known := err == nil
	ours, err := t.e.cfg.DB.DB()
	own := known && err == nil && pool == ours
	if own && t.checked.Load() {
		return nil
	}
	if known {
		if _, checked := t.pools.Load(weak.Make(pool)); checked {
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, t.e.cfg.Processor.StatementTimeout)
	defer cancel()
	if err := t.checkOwner(ctx, tx, own); err != nil {
		return fmt.Errorf("the transaction does not lead to this inbox's tables: %w", err)
	}
	if known {
		t.rememberPool(pool)
	}
	return nil
}

// rememberPool keeps that transactions of pool lead to these tables, and drops the pools that are garbage.
func (t *tables) rememberPool(pool *sql.DB) {
	t.pools.Range(func(key, _ any) bool {
		if key.(weak.Pointer[sql.DB]).Value() == nil {
			t.pools.Delete(key)
		}
		return true
	})
	t.pools.Store(weak.Make(pool), true)
}

// checkOwner compares the owner of the tables that the transaction leads to with this inbox. It queries in the
// transaction only if the transaction is of the inbox's own pool, because that pool may have no other connection.
func (t *tables) checkOwner(ctx context.Context, tx *gorm.DB, own bool) error {
	if err := models.CheckTables(ctx, tx, t.e.cfg.Naming); err != nil {
		return err
	}
	name, id, err := models.Identity(ctx, tx, t.e.cfg.Naming)
	if err != nil {
		return err
	}
	if id != "" && name != t.e.cfg.Name {
		return fmt.Errorf("%w: it leads to those of inbox %q, not of %q: begin the transaction on the inbox's own database",
			models.ErrOtherInbox, name, t.e.cfg.Name)
	}
	if own {
		return t.e.store.KeepSchema(ctx, tx.Statement.ConnPool)
	}
	if err := t.ready(ctx); err != nil {
		return err
	}
	if id != t.id {
		return fmt.Errorf("%w: it leads to those of another inbox %q in another database: begin the transaction on the inbox's own database",
			models.ErrOtherInbox, name)
	}
	return nil
}
