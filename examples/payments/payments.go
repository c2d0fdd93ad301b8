package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
)

// applyPayment is the handler's key: stored with every marker, so it stays for
// ever.
const applyPayment = "apply-payment"

// Payment is the message, of whichever transport.
type Payment struct {
	ID      string `json:"id"`
	Account int    `json:"account"`
	Cents   int64  `json:"cents"`
}

// MessageID is what a payment is known by when it comes again.
func (p Payment) MessageID() string { return p.ID }

// Account is what payments go to.
type Account struct {
	ID      int   `gorm:"primaryKey;autoIncrement:false"`
	Balance int64 `gorm:"not null"`
}

// Entry records that a payment was applied. Nothing but the store's marker keeps
// a payment from having two.
type Entry struct {
	ID        int64  `gorm:"primaryKey"`
	PaymentID string `gorm:"not null"`
	Account   int    `gorm:"not null"`
	Cents     int64  `gorm:"not null"`
	Worker    string `gorm:"not null"`
}

// Book is what the handler needs.
type Book struct {
	worker string
	calls  *scratch.Calls // for the demonstration: how often the handler ran, whatever came of it
}

// Apply applies a payment. It looks for nothing and expects to run once: that is
// the store's part.
func (b *Book) Apply(ctx context.Context, tx *gorm.DB, p Payment) error {
	if err := b.calls.Note(p.ID); err != nil {
		return err
	}
	if err := tx.Create(&Entry{PaymentID: p.ID, Account: p.Account, Cents: p.Cents, Worker: b.worker}).Error; err != nil {
		return fmt.Errorf("enter payment %s: %w", p.ID, err)
	}
	reach(ctx, inBody)
	done := tx.Model(&Account{}).Where("id = ?", p.Account).Update("balance", gorm.Expr("balance + ?", p.Cents))
	switch {
	case done.Error != nil:
		return fmt.Errorf("apply payment %s: %w", p.ID, done.Error)
	case done.RowsAffected != 1:
		return fmt.Errorf("apply payment %s: there is no account %d", p.ID, p.Account)
	}
	return nil
}

// handleFunc is what a transport calls: nil means that it may acknowledge.
type handleFunc = func(ctx context.Context, p Payment) error

// InDatabase keeps the marker beside the effects, in one transaction: they
// happen exactly once.
func (b *Book) InDatabase(store *gormstore.Store) (handleFunc, error) {
	return gormstore.Wrap(store, applyPayment, func(ctx context.Context, tx *gorm.DB, p Payment) error {
		if err := b.Apply(ctx, tx, p); err != nil {
			return err
		}
		reach(ctx, afterBody) // nothing is committed yet
		return nil
	})
}

// InRedis keeps the marker in Redis, and the effects in a database that knows
// nothing of it. A process that dies between the two leaves the effects without
// a marker, and they happen again: effectively once.
func (b *Book) InRedis(store *redisstore.Store, db *gorm.DB) (handleFunc, error) {
	return idempotent.Wrap(store, applyPayment, func(ctx context.Context, p Payment) error {
		err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return b.Apply(ctx, tx, p) })
		if err != nil {
			return err
		}
		reach(ctx, afterBody) // the effects are committed, and nobody remembers them
		return nil
	})
}

// NewGORMStore and NewRedisStore differ from those in production in their
// impatience: a killed worker's payment is taken over in seconds.
func NewGORMStore(db *gorm.DB) (*gormstore.Store, error) {
	return gormstore.New(db, func(o *gormstore.Options) { o.LockTimeout = 5 * time.Second })
}

// NewRedisStore has keys of the run's own.
func NewRedisStore(address, run string) (*redisstore.Store, error) {
	return redisstore.Open(address, func(o *redisstore.Options) {
		o.KeyPrefix = run
		o.Lease = 2 * time.Second
		o.WaitTimeout = 5 * time.Second
	})
}

// OpenAccounts makes the application's tables, and accounts 1 to n.
func OpenAccounts(ctx context.Context, db *gorm.DB, n int) error {
	db = db.WithContext(ctx)
	accounts := make([]Account, n)
	for i := range accounts {
		accounts[i].ID = i + 1
	}
	if err := errors.Join(db.AutoMigrate(&Account{}, &Entry{}), db.Create(&accounts).Error); err != nil {
		return fmt.Errorf("open accounts: %w", err)
	}
	return nil
}
