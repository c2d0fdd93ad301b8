package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
)

// bookDeposit is the handler's key. It is stored with every status, so it must never change.
const bookDeposit = "book-deposit"

// Deposit is the payload of "deposit.made". Its record's key is the account.
type Deposit struct {
	ID      string `json:"id"`
	Account string `json:"account"`
	Cents   int64  `json:"cents"`
	// Number counts the account's deposits, from 1, in the order in which they are sent. The ledger judges the order by
	// it; the handler does not use it.
	Number int `json:"number"`
	// Failures says, for the demonstration, how many attempts are to fail.
	Failures int `json:"failures,omitempty"`
}

// Account is in the database of the shard that owns its partition: that of its key.
type Account struct {
	ID        string `gorm:"primaryKey;size:40"`
	Partition int    `gorm:"not null;index"` // which accounts move with a partition
	Deposits  int    `gorm:"not null"`
	Cents     int64  `gorm:"not null"`
}

// Entry records one deposit, in the database of its account. Only the inbox prevents a second one for the same deposit.
type Entry struct {
	ID        string `gorm:"primaryKey;size:26"` // random, so that it is another one in no shard
	DepositID string `gorm:"not null"`
	Partition int    `gorm:"not null;index"`
	Account   string `gorm:"not null"`
	// Position is the account's count of deposits, with this one, as the handler found it.
	Position int `gorm:"not null"`
}

// Book is what the handler needs.
type Book struct {
	calls io.Writer // for the demonstration: a line for each call of the handler
}

// Deposit is a transactional handler: what it writes through tx is committed together with the completion of its
// status, or not at all. It reads the account and writes it without a lock: the deposits of one account are a lane, of
// which one runs at a time.
func (b *Book) Deposit(_ context.Context, tx *gorm.DB, m handler.Message[Deposit]) error {
	d := m.Payload
	if _, err := fmt.Fprintln(b.calls, d.ID); err != nil {
		return err
	}
	account := Account{ID: d.Account, Partition: m.Properties.Kafka.Partition}
	if err := tx.Limit(1).Find(&account, "id = ?", d.Account).Error; err != nil {
		return fmt.Errorf("read account %s: %w", d.Account, err)
	}
	account.Deposits++
	account.Cents += d.Cents
	if err := tx.Save(&account).Error; err != nil {
		return fmt.Errorf("save account %s: %w", d.Account, err)
	}
	entry := Entry{ID: rand.Text(), DepositID: d.ID, Partition: account.Partition, Account: d.Account,
		Position: account.Deposits}
	if err := tx.Create(&entry).Error; err != nil {
		return fmt.Errorf("book deposit %s: %w", d.ID, err)
	}
	// Fail after the writes, so that there is something to roll back.
	if m.Attempt <= d.Failures {
		return fmt.Errorf("deposit %s: attempt %d of %d that are to fail", d.ID, m.Attempt, d.Failures)
	}
	return nil
}
