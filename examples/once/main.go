// Command once is the shortest whole program that handles each message once:
//
//	go run -C examples ./once
//
// docs/idempotent.md shows a part of it. It delivers a payment three
// times, as a transport does that is not sure, and prints the account. The other
// files are the code of docs/idempotent.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	_ "modernc.org/sqlite" // the driver "sqlite", pure Go: no C compiler needed

	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/models"
)

//page:begin consume

type Payment struct {
	ID, Account string
	Cents       int64
}

func (p Payment) MessageID() string { return p.ID } // what it is known by when it comes again

func consume(ctx context.Context, db *gorm.DB, deliveries <-chan Delivery) error {
	store, err := gormstore.New(db) // remembers in a table of your own database
	if err != nil {
		return err
	}
	apply, err := gormstore.Wrap(store, "apply-payment", func(_ context.Context, tx *gorm.DB, p Payment) error {
		return tx.Exec("UPDATE accounts SET cents = cents + ? WHERE name = ?", p.Cents, p.Account).Error
	})
	if err != nil {
		return err
	}
	for d := range deliveries { // of any transport that delivers again what was not acknowledged
		if apply(ctx, d.Payment) == nil {
			d.Acknowledge()
		}
	}
	return nil
}

//page:end

// Delivery is a transport's.
type Delivery struct {
	Payment
	Acknowledge func()
}

// Account is the application's.
type Account struct {
	Name  string `gorm:"primaryKey"`
	Cents int64  `gorm:"not null"`
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "once:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	directory, err := os.MkdirTemp("", "inbox-once-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	db, err := gorm.Open(sqlite.Dialector{DriverName: "sqlite", DSN: "file:" +
		filepath.ToSlash(filepath.Join(directory, "once.db")) + "?_txlock=immediate"},
		&gorm.Config{Logger: logger.Discard})
	if err != nil {
		return err
	}
	pool, err := db.DB()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	if err := prepare(ctx, db); err != nil {
		return err
	}
	if err := errors.Join(db.AutoMigrate(&Account{}), db.Create(&Account{Name: "tea"}).Error); err != nil {
		return err
	}
	deliveries := make(chan Delivery, 3)
	for i := range cap(deliveries) {
		deliveries <- Delivery{Payment{"p-1", "tea", 4_200}, func() { fmt.Println("acknowledged delivery", i+1) }}
	}
	close(deliveries)
	if err := consume(ctx, db, deliveries); err != nil {
		return err
	}
	var account Account
	if err := db.Take(&account).Error; err != nil {
		return err
	}
	fmt.Printf("account %s: %d cents\n", account.Name, account.Cents)
	return nil
}

// prepare makes the store's table, at the application's start.
func prepare(ctx context.Context, db *gorm.DB) error {
	if err := models.Migrate(ctx, db, models.Naming{}, ""); err != nil {
		return err
	}
	store, err := gormstore.New(db)
	if err != nil {
		return err
	}
	return store.Check(ctx) // or find out with the first message
}
