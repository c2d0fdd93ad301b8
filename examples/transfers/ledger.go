package main

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/models"
)

// Result is everything that is left when all has ended. Nothing in it comes from a counter.
type Result struct {
	demo.Stored
	Accounts []Account
	Journal  []JournalEntry // in the order of booking
	Postings []Posting
	Calls    []string // a transfer's ID for each call of the handler
}

// ReadResult reads the database and the file of the handler's calls.
func ReadResult(ctx context.Context, db *gorm.DB, calls string) (r Result, err error) {
	if r.Stored, err = demo.ReadStored(ctx, db); err != nil {
		return r, err
	}
	if err := demo.Read(ctx, db, &r.Accounts, &r.Journal, &r.Postings); err != nil {
		return r, err
	}
	r.Calls, err = demo.ReadLines(calls)
	return r, err
}

// ReadLastWorker returns the name of the worker that booked last; empty if none has.
func ReadLastWorker(ctx context.Context, db *gorm.DB) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = db.WithContext(ctx).Model(&JournalEntry{}).Select("worker").Order("id DESC").Limit(1).Scan(&name).Error
	if err != nil {
		return "", fmt.Errorf("read who booked last: %w", err)
	}
	return name, nil
}

// Replay returns what should be left when transfers between that many accounts, with that opening balance, are
// booked one by one in the order of their acceptance.
func Replay(transfers []Transfer, accounts int, opening int64) (r Result) {
	for id := range accounts {
		r.Accounts = append(r.Accounts, Account{ID: id + 1, Available: opening})
	}
	for _, t := range transfers {
		payer := &r.Accounts[t.From-1]
		payer.Transfers++
		refused := payer.Available < t.Cents
		if !refused {
			payer.Available -= t.Cents
			r.Postings = append(r.Postings, Posting{TransferID: t.ID, Account: t.From, Cents: -t.Cents},
				Posting{TransferID: t.ID, Account: t.To, Cents: t.Cents})
		}
		r.Journal = append(r.Journal, JournalEntry{TransferID: t.ID, Account: t.From, Position: t.Number, Refused: refused})
		r.Messages = append(r.Messages, demo.Message{ID: t.ID})
		r.Statuses = append(r.Statuses, demo.Status{MessageID: t.ID, HandlerKey: applyTransfer, Completed: true,
			Outcome: models.OutcomeProcessed})
	}
	return r
}

// String says what became of the transfer.
func (e JournalEntry) String() string {
	return fmt.Sprintf("%s: number %d of account %d, refused: %t", e.TransferID, e.Position, e.Account, e.Refused)
}

// String says who was paid.
func (p Posting) String() string {
	return fmt.Sprintf("%s: %d cents for account %d", p.TransferID, p.Cents, p.Account)
}

// String says what the account has left.
func (a Account) String() string {
	return fmt.Sprintf("account %d: %d cents available after %d transfers", a.ID, a.Available, a.Transfers)
}

// Balance compares the result with the replay of the transfers that were accepted. The program's doc comment
// says what each figure means. kills is how often a worker was killed on the way.
func Balance(transfers []Transfer, replay, result Result, kills int) *demo.Ledger {
	l, accepted := new(demo.Ledger), map[string]Transfer{}
	for _, t := range transfers {
		accepted[t.ID] = t
	}
	booked := make([]string, len(result.Journal))
	for i, entry := range result.Journal {
		booked[i] = entry.TransferID
	}
	lost, doubled := demo.Once(l, "journal entries", accepted, booked)
	outOfOrder := requireOrder(l, accepted, result.Journal)
	demo.Same(l, "bookings", replay.Journal, result.Journal)
	demo.Same(l, "postings", replay.Postings, result.Postings)
	demo.Same(l, "accounts", replay.Accounts, result.Accounts)
	demo.Same(l, "messages", replay.Messages, result.Messages)
	demo.Same(l, "statuses", replay.Statuses, result.Statuses)
	reruns := demo.AtLeastOnce(l, "calls", accepted, result.Calls)

	l.Figure("expected", len(transfers))
	l.Figure("effects", len(result.Journal))
	l.Zero("lost", len(lost))
	l.Zero("doubled", doubled)
	l.Zero("out_of_order", outOfOrder)
	l.Figure("kills", kills)
	l.Figure("reruns", reruns)
	return l
}

// requireOrder requires that the entries of an account are in the order of their acceptance. It judges by the
// first entry of each transfer, so that a doubled one does not count twice.
func requireOrder(l *demo.Ledger, accepted map[string]Transfer, journal []JournalEntry) (outOfOrder int) {
	seen, latest := map[string]bool{}, map[int]int{} // the highest number of each account so far
	for _, entry := range journal {
		t, known := accepted[entry.TransferID]
		if !known || seen[t.ID] {
			continue
		}
		seen[t.ID] = true
		if t.Number < latest[t.From] {
			outOfOrder++
			l.Problem("%s: number %d of account %d, booked by %s after number %d", t.ID, t.Number, t.From, entry.Worker,
				latest[t.From])
		}
		latest[t.From] = max(latest[t.From], t.Number)
	}
	return outOfOrder
}
