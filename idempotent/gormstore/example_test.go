package gormstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/models"
)

// Placed is a message of any transport.
type Placed struct {
	ID     string
	Amount int
}

// MessageID returns the ID by which a repeated delivery is recognised.
func (p Placed) MessageID() string { return p.ID }

// Account is a table of the application.
type Account struct{ Balance int }

func Example() {
	db, closeDB, err := exampleDB()
	if err != nil {
		panic(err)
	}
	defer closeDB()
	if err := charging(context.Background(), db); err != nil {
		panic(err)
	}
	// Output:
	// <nil>
	// <nil>
	// <nil>
	// balance: 70
}

func charging(ctx context.Context, db *gorm.DB) error {
	store, err := gormstore.New(db)
	if err == nil {
		err = store.Check(ctx)
	}
	if err != nil {
		return err
	}
	charge, err := gormstore.Wrap(store, "billing-charge", func(_ context.Context, tx *gorm.DB, m Placed) error {
		return tx.Model(&Account{}).Where("true").Update("balance", gorm.Expr("balance - ?", m.Amount)).Error
	})
	if err != nil {
		return err
	}
	for range 3 { // as a transport does that is not sure
		fmt.Println(charge(ctx, Placed{ID: "order-1", Amount: 30}))
	}
	var account Account
	if err := db.Take(&account).Error; err != nil {
		return err
	}
	fmt.Println("balance:", account.Balance)
	return nil
}

// exampleDB opens an SQLite file with the tables and an account.
func exampleDB() (db *gorm.DB, closeDB func(), err error) {
	directory, err := os.MkdirTemp("", "inbox")
	if err != nil {
		return nil, nil, err
	}
	dsn := "file:" + filepath.Join(directory, "inbox.db") +
		"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_txlock=immediate"
	db, err = gorm.Open(sqlite.Dialector{DriverName: "sqlite", DSN: dsn}, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(directory))
	}
	closeDB = func() {
		if pool, err := db.DB(); err == nil {
			pool.Close()
		}
		os.RemoveAll(directory)
	}
	err = errors.Join(models.Migrate(context.Background(), db, models.Naming{}, ""), db.AutoMigrate(&Account{}),
		db.Create(&Account{Balance: 100}).Error)
	return db, closeDB, err
}
