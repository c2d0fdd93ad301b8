package main

import (
	"context"
	"fmt"
	"io"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
)

// applyTransfer is the handler's key. It is stored with every status, so it must never change.
const applyTransfer = "apply-transfer"

// Transfer is the payload of "transfer.requested".
type Transfer struct {
	ID    string `json:"id"`
	From  int    `json:"from"`
	To    int    `json:"to"`
	Cents int64  `json:"cents"`
	// Number counts the transfers of the paying account, from 1, in the order of acceptance. The ledger
	// judges the order by it; the handler does not use it.
	Number int `json:"number"`
	// Failures says, for the demonstration, how many attempts are to fail.
	Failures int `json:"failures,omitempty"`
}

// Account is a bank account. Its row is only written by transfers that it pays: they are its lane.
type Account struct {
	ID int `gorm:"primaryKey;autoIncrement:false"`
	// Available is what it may still spend today. What it is paid today it may spend tomorrow, so that
	// refusals depend on its own transfers only, and on their order.
	Available int64 `gorm:"not null"`
	// Transfers counts those it was to pay, refused ones included.
	Transfers int `gorm:"not null"`
}

// JournalEntry records what became of one transfer. Only the inbox prevents a second one for the same
// transfer.
type JournalEntry struct {
	ID         int64  `gorm:"primaryKey"` // ascending in the order of booking within a lane
	TransferID string `gorm:"not null"`
	Account    int    `gorm:"not null"` // the paying one
	// Position is the account's count of transfers as the handler read it.
	Position int    `gorm:"not null"`
	Refused  bool   `gorm:"not null"`
	Worker   string `gorm:"not null"`
}

// Posting is one side of a booked transfer. A balance is the sum of an account's postings, and no column:
// transfers from different accounts to the same one would write the same row, and wait for each other's
// commit.
type Posting struct {
	ID         int64  `gorm:"primaryKey"`
	TransferID string `gorm:"not null"`
	Account    int    `gorm:"not null"`
	Cents      int64  `gorm:"not null"` // negative: paid
}

// Bank is what the handler needs.
type Bank struct {
	worker string
	calls  io.Writer // for the demonstration: a line for each call of the handler
}

// ApplyTransfer is a transactional handler: what it writes through tx is committed together with the
// completion of its status, or not at all.
//
// It reads the account, decides and writes, without a lock: the transfers of one account are a lane, of
// which one runs at a time across all workers.
func (b *Bank) ApplyTransfer(_ context.Context, tx *gorm.DB, m handler.Message[Transfer]) error {
	t := m.Payload
	if _, err := fmt.Fprintln(b.calls, t.ID); err != nil {
		return err
	}
	var payer Account
	if err := tx.Take(&payer, t.From).Error; err != nil {
		return fmt.Errorf("read account %d: %w", t.From, err)
	}
	entry := JournalEntry{TransferID: t.ID, Account: t.From, Position: payer.Transfers + 1,
		Refused: payer.Available < t.Cents, Worker: b.worker}
	payer.Transfers++
	if !entry.Refused {
		payer.Available -= t.Cents
		sides := []Posting{{TransferID: t.ID, Account: t.From, Cents: -t.Cents},
			{TransferID: t.ID, Account: t.To, Cents: t.Cents}}
		if err := tx.Create(&sides).Error; err != nil {
			return fmt.Errorf("post transfer %s: %w", t.ID, err)
		}
	}
	if err := tx.Save(&payer).Error; err != nil {
		return fmt.Errorf("save account %d: %w", t.From, err)
	}
	if err := tx.Create(&entry).Error; err != nil {
		return fmt.Errorf("journal transfer %s: %w", t.ID, err)
	}
	// Fail after the writes, so that there is something to roll back.
	if m.Attempt <= t.Failures {
		return fmt.Errorf("transfer %s: attempt %d of %d that are to fail", t.ID, m.Attempt, t.Failures)
	}
	return nil
}

// OpenAccounts creates the bank's tables, and accounts 1 to n with that opening balance.
func OpenAccounts(ctx context.Context, db *gorm.DB, n int, cents int64) error {
	db = db.WithContext(ctx)
	if err := db.AutoMigrate(&Account{}, &JournalEntry{}, &Posting{}); err != nil {
		return fmt.Errorf("create the bank's tables: %w", err)
	}
	accounts := make([]Account, n)
	for i := range accounts {
		accounts[i] = Account{ID: i + 1, Available: cents}
	}
	if err := db.CreateInBatches(accounts, 1000).Error; err != nil {
		return fmt.Errorf("open accounts: %w", err)
	}
	return nil
}
