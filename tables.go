package inbox

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"weak"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// tables makes sure that an inbox works on its own tables (contract 3.4): that
// they are there, new enough and carry its name, and that a caller's transaction
// leads to them. What was found to be so is not asked of the database again.
type tables struct {
	ib *Inbox

	mu      sync.Mutex  // held by the check
	checked atomic.Bool // by Start, or by the first call without Start
	id      string      // of the tables; set before checked
	pools   sync.Map    // weak.Pointer[sql.DB] of pools whose transactions lead here
}

// check asks the database.
func (t *tables) check(ctx context.Context) error {
	if err := models.CheckSchema(ctx, t.ib.db, t.ib.naming, t.ib.cfg.name); err != nil {
		return err
	}
	_, id, err := models.Identity(ctx, t.ib.db, t.ib.naming)
	if err != nil {
		return err
	}
	if err := t.ib.warnIsolation(ctx); err != nil {
		return err
	}
	t.id = id
	t.checked.Store(true)
	return nil
}

// ready is check for whoever works without Start: once, until it succeeds.
func (t *tables) ready(ctx context.Context) error {
	if t.checked.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.checked.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.ib.cfg.options.Processor.StatementTimeout)
	defer cancel()
	return t.check(ctx)
}

// checkAtStart is check within Start, which asks each time.
func (t *tables) checkAtStart(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.check(ctx)
}

// checkTx returns an error that names both inboxes unless the caller's
// transaction leads to these tables. One of the inbox's own pool does, and so
// does one of a pool that was found to: neither costs a round trip.
func (t *tables) checkTx(ctx context.Context, tx *gorm.DB) error {
	if tx == nil {
		return nil // refused by whoever uses it
	}
	pool, err := tx.DB()
	known := err == nil
	ours, err := t.ib.db.DB()
	own := known && err == nil && pool == ours
	if own && t.checked.Load() {
		return nil
	}
	if known {
		if _, asked := t.pools.Load(weak.Make(pool)); asked {
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, t.ib.cfg.options.Processor.StatementTimeout)
	defer cancel()
	if err := t.checkOwner(ctx, tx, own); err != nil {
		return fmt.Errorf("the transaction does not lead to this inbox's tables: %w", err)
	}
	if known {
		t.rememberPool(pool)
	}
	return nil
}

// remember notes that transactions of pool lead here, and forgets the pools that
// are gone.
func (t *tables) rememberPool(pool *sql.DB) {
	t.pools.Range(func(key, _ any) bool {
		if key.(weak.Pointer[sql.DB]).Value() == nil {
			t.pools.Delete(key)
		}
		return true
	})
	t.pools.Store(weak.Make(pool), true)
}

// checkOwner reads, in the caller's transaction, whose tables it leads to. It asks that
// connection only where the pool is the inbox's: it may be the pool's only one.
func (t *tables) checkOwner(ctx context.Context, tx *gorm.DB, own bool) error {
	if err := models.CheckTables(ctx, tx, t.ib.naming); err != nil {
		return err
	}
	name, id, err := models.Identity(ctx, tx, t.ib.naming)
	if err != nil {
		return err
	}
	if id != "" && name != t.ib.cfg.name {
		return fmt.Errorf("%w: it leads to those of inbox %q, not of %q: begin the transaction on the inbox's own database",
			models.ErrOtherInbox, name, t.ib.cfg.name)
	}
	if own {
		return nil
	}
	if err := t.ready(ctx); err != nil {
		return err
	}
	if id != t.id {
		return fmt.Errorf("%w: it leads to those of another inbox %q in another database: begin the transaction on the inbox's own database", models.ErrOtherInbox, name)
	}
	return nil
}
