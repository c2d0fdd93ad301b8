package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
	"github.com/gorm-inbox/inbox/models"
)

// applyPayment is the handler's key. It is stored with every marker, so it must never change.
const applyPayment = "apply-payment"

// Payment is the message, of whichever transport.
type Payment struct {
	ID      string `json:"id"`
	Account int    `json:"account"`
	Cents   int64  `json:"cents"`
	// KillAt says, for the demonstration, where this delivery kills its worker.
	KillAt Point `json:"kill_at,omitempty"`
}

// MessageID identifies a payment that comes again.
func (p Payment) MessageID() string { return p.ID }

// Account is what payments go to.
type Account struct {
	ID      int   `gorm:"primaryKey;autoIncrement:false"`
	Balance int64 `gorm:"not null"`
}

// Entry records that a payment was applied. Only the store's marker prevents a second one for the same
// payment.
type Entry struct {
	ID        int64  `gorm:"primaryKey"`
	PaymentID string `gorm:"not null"`
	Account   int    `gorm:"not null"`
	Cents     int64  `gorm:"not null"`
}

// Handler applies payments. It does not check whether it has run before: that is the store's part.
type Handler struct {
	calls io.Writer // for the demonstration: a line for each call of the handler
}

// Apply applies a payment.
func (h *Handler) Apply(_ context.Context, tx *gorm.DB, p Payment) error {
	if _, err := fmt.Fprintln(h.calls, p.ID); err != nil {
		return err
	}
	if err := tx.Create(&Entry{PaymentID: p.ID, Account: p.Account, Cents: p.Cents}).Error; err != nil {
		return fmt.Errorf("enter payment %s: %w", p.ID, err)
	}
	p.reach(inHandler)
	done := tx.Model(&Account{}).Where("id = ?", p.Account).Update("balance", gorm.Expr("balance + ?", p.Cents))
	switch {
	case done.Error != nil:
		return fmt.Errorf("apply payment %s: %w", p.ID, done.Error)
	case done.RowsAffected != 1:
		return fmt.Errorf("apply payment %s: there is no account %d", p.ID, p.Account)
	}
	return nil
}

// handleFunc is what a transport calls. It may acknowledge if the error is nil.
type handleFunc = func(ctx context.Context, p Payment) error

// Markers remember which payments were processed.
type Markers struct {
	idempotent.Store
	Handle handleFunc // the wrapped handler
}

// OpenMarkers uses Redis if there is an address, otherwise the database. Only the timing differs from production:
// a killed worker's payment is taken over in seconds.
func (h *Handler) OpenMarkers(db *gorm.DB, address, prefix string) (Markers, error) {
	if address == "" {
		return h.inDatabase(db)
	}
	return h.inRedis(db, address, prefix)
}

// inDatabase stores the marker and the effects in one transaction: they happen exactly once.
func (h *Handler) inDatabase(db *gorm.DB) (m Markers, err error) {
	store, err := gormstore.New(db, func(o *gormstore.Options) { o.LockTimeout = 5 * time.Second })
	if err != nil {
		return m, err
	}
	m.Store = store
	m.Handle, err = gormstore.Wrap(store, applyPayment, func(ctx context.Context, tx *gorm.DB, p Payment) error {
		if err := h.Apply(ctx, tx, p); err != nil {
			return err
		}
		p.reach(afterHandler) // nothing is committed yet
		return nil
	})
	return m, err
}

// inRedis stores the marker in Redis, and the effects in a database. A process that is killed between the
// two leaves the effects without a marker, and they happen again: effectively once.
func (h *Handler) inRedis(db *gorm.DB, address, prefix string) (m Markers, err error) {
	store, err := redisstore.Open(address, func(o *redisstore.Options) {
		o.KeyPrefix = prefix
		o.Lease = 2 * time.Second
		o.WaitTimeout = 5 * time.Second
	})
	if err != nil {
		return m, err
	}
	m.Store = store
	m.Handle, err = idempotent.Wrap(store, applyPayment, func(ctx context.Context, p Payment) error {
		err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return h.Apply(ctx, tx, p) })
		if err != nil {
			return err
		}
		p.reach(afterHandler) // the effects are committed, without a marker
		return nil
	})
	return m, err
}

// Remove closes Redis, and removes a run's keys from it unless keep is true.
func (m Markers) Remove(ctx context.Context, address, prefix string, keep bool) error {
	store, ok := m.Store.(*redisstore.Store)
	if !ok {
		return nil // they are in the database
	}
	err := store.Close()
	if keep {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	options, parseErr := redis.ParseURL(address)
	if parseErr != nil {
		return errors.New("the address of Redis is not a URL") // the address may hold a password
	}
	client := redis.NewClient(options)
	keys := client.Scan(ctx, 0, prefix+":*", 1000).Iterator()
	for keys.Next(ctx) {
		err = errors.Join(err, client.Del(ctx, keys.Val()).Err())
	}
	return errors.Join(err, keys.Err(), client.Close())
}

// CreateTables creates the markers' table (the database needs all of an inbox's), the application's tables,
// and the accounts.
func CreateTables(ctx context.Context, db *gorm.DB) error {
	db = db.WithContext(ctx)
	rows := make([]Account, accounts)
	for i := range rows {
		rows[i].ID = i + 1
	}
	err := errors.Join(models.Migrate(ctx, db, models.Naming{}, ""), db.AutoMigrate(&Account{}, &Entry{}),
		db.Create(&rows).Error)
	if err != nil {
		return fmt.Errorf("create tables: %w", err)
	}
	return nil
}
