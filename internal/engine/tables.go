package engine

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/models"
)

// tables makes sure that an inbox uses its own tables: that they exist, are new enough and carry its name, and that a
// caller's transaction leads to them. It also declares the legacy keys of the handlers in them, before the first row
// under a new key. A positive answer is kept, so that it costs one query only.
type tables struct {
	e *Engine

	lock    routine.Lock // held during check and declare
	checked atomic.Bool  // by Start, or by the first call without Start
	id      string       // identity of the tables; set before checked
	pools   sync.Map     // weak.Pointer[sql.DB] of other pools whose transactions lead to these tables

	declared atomic.Bool // the legacy keys are committed
	inCalls  atomic.Bool // they could not be declared beside a caller's transaction
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

// declare stores the legacy keys of the handlers that have statuses. The caller holds the lock.
func (t *tables) declare(ctx context.Context) error {
	if _, err := t.e.store.DeclareLegacyKeys(ctx, nil, t.e.legacyKeys(), t.e.cfg.Clock.Now()); err != nil {
		return err
	}
	t.declared.Store(true)
	return nil
}

// legacyKeys returns the legacy keys of all handlers that have statuses, by handler key.
func (e *Engine) legacyKeys() map[string][]string {
	keys := map[string][]string{}
	for s := range e.cfg.Registry.Subscriptions() {
		if !s.Synchronous {
			keys[s.Handler.Key()] = s.Handler.LegacyKeys()
		}
	}
	return keys
}

// ready checks the tables and declares the legacy keys for calls without Start, until that has succeeded once.
func (t *tables) ready(ctx context.Context) error {
	return t.once(ctx, &t.declared, func(ctx context.Context) error {
		if !t.checked.Load() {
			if err := t.check(ctx); err != nil {
				return err
			}
		}
		return t.declare(ctx)
	})
}

// once does work, which sets done, unless that is set.
func (t *tables) once(ctx context.Context, done *atomic.Bool, work func(context.Context) error) error {
	if done.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.e.cfg.Processor.StatementTimeout)
	defer cancel()
	if err := t.lock.Acquire(ctx); err != nil {
		return fmt.Errorf("wait for another check of the tables: %w", err)
	}
	defer t.lock.Release()
	if done.Load() {
		return nil
	}
	return work(ctx)
}

// checkAtStart checks the tables and declares the legacy keys again, as each Start does.
func (t *tables) checkAtStart(ctx context.Context) error {
	if err := t.lock.Acquire(ctx); err != nil {
		return fmt.Errorf("wait for another check of the tables: %w", err)
	}
	defer t.lock.Release()
	if err := t.check(ctx); err != nil {
		return err
	}
	return t.declare(ctx) // it may have to wait for a caller's transaction, see declareFor
}

// checkTx returns an error that names both inboxes if the caller's transaction leads to another inbox's tables.
func (t *tables) checkTx(ctx context.Context, tx *gorm.DB) error {
	if tx == nil {
		return nil // the acceptor refuses it
	}
	if err := t.checkOwnerOnce(ctx, tx); err != nil || t.declared.Load() {
		return err
	}
	return t.declareFor(ctx, tx)
}

// declareFor declares the legacy keys before the first row of a caller's transaction, if there are any. It does so
// beside the transaction, which would hold their rows until it ends, and with them each start of this program. Where
// the pool has no other connection in time, and on SQLite, where a write would wait for the transaction, it declares
// them in the transaction, each time, because it may be rolled back.
func (t *tables) declareFor(ctx context.Context, tx *gorm.DB) error {
	keys := t.e.legacyKeys()
	if !slices.ContainsFunc(slices.Collect(maps.Values(keys)), func(legacy []string) bool { return len(legacy) > 0 }) {
		return nil
	}
	if !t.e.store.SingleWriter() && !t.inCalls.Load() {
		short, cancel := context.WithTimeout(ctx, time.Second)
		err := t.once(short, &t.declared, t.declare)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		t.inCalls.Store(true)
	}
	ctx, cancel := context.WithTimeout(ctx, t.e.cfg.Processor.StatementTimeout)
	defer cancel()
	_, err := t.e.store.DeclareLegacyKeys(ctx, tx, keys, t.e.cfg.Clock.Now())
	return err
}

// checkOwnerOnce costs no round trip for a transaction of the inbox's own pool, or of a pool that was checked before.
func (t *tables) checkOwnerOnce(ctx context.Context, tx *gorm.DB) error {
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
	if err := t.once(ctx, &t.checked, t.check); err != nil {
		return err
	}
	if id != t.id {
		return fmt.Errorf("%w: it leads to those of another inbox %q in another database: begin the transaction on the inbox's own database",
			models.ErrOtherInbox, name)
	}
	return nil
}
