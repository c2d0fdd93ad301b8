package main

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
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
	if err = demo.Read(ctx, db, func(db *gorm.DB) map[string]*gorm.DB {
		return map[string]*gorm.DB{
			"accounts": db.Order("id").Find(&r.Accounts),
			"journal":  db.Order("id").Find(&r.Journal),
			"postings": db.Order("id").Find(&r.Postings),
		}
	}); err != nil {
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

// retried counts the transfers that failed before they succeeded.
func (r Result) retried() (n int) {
	for _, s := range r.Statuses {
		if s.ErrorCount > 0 {
			n++
		}
	}
	return n
}

// refused counts the transfers that were refused.
func (r Result) refused() (n int) {
	for _, entry := range r.Journal {
		if entry.Refused {
			n++
		}
	}
	return n
}

// balance compares the transfers with the result.
type balance struct {
	*demo.Ledger
	Result
	*Replay
	transfers map[string]Transfer
	opening   int64
}

// Balance compares the result with the transfers in the order in which they were accepted, between
// that many accounts with that opening balance. The program's doc comment says what each figure means.
// kills is how often a worker was killed on the way.
func Balance(transfers []Transfer, accounts int, opening int64, result Result, kills int) *demo.Ledger {
	l := balance{new(demo.Ledger), result, NewReplay(transfers, accounts, opening), map[string]Transfer{}, opening}
	for _, t := range transfers {
		l.transfers[t.ID] = t
	}
	demo.Once(l.Ledger, "messages", l.transfers, l.IDs())
	l.statuses()
	lost, doubled, outOfOrder := l.journal()
	l.postings()
	l.accounts()
	reruns := demo.AtLeastOnce(l.Ledger, "calls", l.transfers, l.Calls)

	l.Figure("expected", len(transfers))
	l.Figure("effects", len(l.Journal))
	l.Zero("lost", lost)
	l.Zero("doubled", doubled)
	l.Zero("out_of_order", outOfOrder)
	l.Figure("kills", kills)
	l.Figure("reruns", reruns)
	return l.Ledger
}

// statuses requires one for each transfer, completed.
func (l balance) statuses() {
	var found []string
	for _, s := range l.Statuses {
		found = append(found, s.MessageID)
		switch {
		case s.HandlerKey != applyTransfer:
			l.Problem("%s: a status of handler %q", s.MessageID, s.HandlerKey)
		case s.Claimed:
			l.Problem("%s: still claimed although the workers have stopped", s.MessageID)
		case !s.Processed():
			l.Problem("%s: not completed", s.MessageID)
		}
	}
	demo.Once(l.Ledger, "statuses", l.transfers, found)
}

// journal requires one entry for each transfer, and those of an account in the order of their acceptance.
// Order is judged by the first entry of each, so that a doubled one does not count twice.
func (l balance) journal() (lost, doubled, outOfOrder int) {
	var found []string
	seen := map[string]bool{}
	latest := map[int]int{} // the highest number of each account so far
	for _, entry := range l.Journal {
		found = append(found, entry.TransferID)
		t, known := l.transfers[entry.TransferID]
		if !known || seen[t.ID] {
			continue // reported below
		}
		seen[t.ID] = true
		if t.Number < latest[t.From] {
			outOfOrder++
			l.Problem("%s: number %d of account %d, booked by %s after number %d", t.ID, t.Number, t.From, entry.Worker,
				latest[t.From])
		}
		latest[t.From] = max(latest[t.From], t.Number)
		if entry.Account != t.From || entry.Position != t.Number {
			l.Problem("%s: booked as number %d of account %d, should be %d of %d", t.ID, entry.Position, entry.Account,
				t.Number, t.From)
		}
		if entry.Refused != l.Refused[t.ID] {
			l.Problem("%s: refused is %t, should be %t", t.ID, entry.Refused, l.Refused[t.ID])
		}
	}
	lost, doubled = demo.Once(l.Ledger, "journal entries", l.transfers, found)
	return lost, doubled, outOfOrder
}

// postings requires two of each transfer that was not refused, as the transfer says.
func (l balance) postings() {
	type side struct {
		transfer string
		account  int
		cents    int64
	}
	found := map[side]int{}
	for _, p := range l.Postings {
		found[side{p.TransferID, p.Account, p.Cents}]++
	}
	for id, t := range l.transfers {
		want := 1
		if l.Refused[id] {
			want = 0
		}
		for _, s := range []side{{id, t.From, -t.Cents}, {id, t.To, t.Cents}} {
			if found[s] != want {
				l.Problem("%s: account %d has %d postings of %d cents, should be %d", id, s.account, found[s], s.cents,
					want)
			}
			delete(found, s)
		}
	}
	for s := range found {
		l.Problem("%s: a posting of %d cents to account %d that it does not say", s.transfer, s.cents, s.account)
	}
}

// accounts requires that each has what the replay gives it, and all together have what they had at the
// start.
func (l balance) accounts() {
	l.Expect("accounts", len(l.Result.Accounts), len(l.Replay.Accounts))
	balances, total := map[int]int64{}, int64(0)
	for _, p := range l.Postings {
		balances[p.Account] += p.Cents
		total += p.Cents
	}
	if total != 0 {
		l.Problem("the accounts have %d cents more than at the start", total)
	}
	for _, account := range l.Result.Accounts {
		want, known := l.Replay.Accounts[account.ID]
		if !known {
			l.Problem("account %d: was never opened", account.ID)
			continue
		}
		if account.Available < 0 {
			l.Problem("account %d: overdrawn by %d cents", account.ID, -account.Available)
		}
		if account != want {
			l.Problem("account %d: %d cents available after %d transfers, should be %d after %d", account.ID, account.Available,
				account.Transfers, want.Available, want.Transfers)
		}
		if balance := l.opening + balances[account.ID]; balance != l.Balances[account.ID] {
			l.Problem("account %d: a balance of %d cents, should be %d", account.ID, balance, l.Balances[account.ID])
		}
	}
}
