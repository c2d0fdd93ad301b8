package gormstore_test

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/testenv"
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
	db, closeDB := testenv.ExampleDB()
	defer closeDB()
	err := errors.Join(models.Migrate(context.Background(), db, models.Naming{}, ""), db.AutoMigrate(&Account{}),
		db.Create(&Account{Balance: 100}).Error)
	if err != nil {
		panic(err)
	}
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
