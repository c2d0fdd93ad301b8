package main

import (
	"fmt"
	"io"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// Ledger is what was accepted and what the books say, side by side. The doc
// comment of the program says what each figure means.
type Ledger struct {
	Expected, Effects, Lost, Doubled, OutOfOrder, Kills, Reruns int
	Retried, Refused                                            int

	scratch.Problems

	transfers map[string]Transfer
	replayed  *Replay
}

// Balance compares what the books say with the transfers in the order in
// which they were accepted, between so many accounts that had the opening
// balance each. kills is how often a worker was killed on the way.
func Balance(transfers []Transfer, accounts int, opening int64, books Books, kills int) *Ledger {
	l := &Ledger{Expected: len(transfers), Effects: len(books.Journal), Kills: kills,
		transfers: map[string]Transfer{}, replayed: NewReplay(transfers, accounts, opening)}
	for _, t := range transfers {
		l.transfers[t.ID] = t
	}
	l.messages(books)
	l.statuses(books)
	l.journal(books)
	l.postings(books)
	l.accounts(books, opening)
	l.calls(books)
	for what, n := range map[string]int{"lost": l.Lost, "doubled": l.Doubled, "out of order": l.OutOfOrder} {
		if n > 0 {
			l.Problem("%s: %d", what, n)
		}
	}
	return l
}

// messages: each transfer's is there once, and no other is.
func (l *Ledger) messages(books Books) {
	found := map[string]int{}
	for _, id := range books.Messages {
		found[id]++
	}
	l.once("messages", found)
}

// once: each transfer is found once, and no other is.
func (l *Ledger) once(what string, found map[string]int) {
	for id := range l.transfers {
		if found[id] != 1 {
			l.Problem("transfer %s: %d %s", id, found[id], what)
		}
	}
	for id := range found {
		if _, known := l.transfers[id]; !known {
			l.Problem("%s of a transfer %q that nobody made", what, id)
		}
	}
}

// statuses: each transfer's is there once, and completed.
func (l *Ledger) statuses(books Books) {
	found := map[string]int{}
	for _, s := range books.Statuses {
		found[s.MessageID]++
		switch {
		case s.HandlerKey != applyTransfer:
			l.Problem("transfer %s: a status of handler %q", s.MessageID, s.HandlerKey)
		case s.Claimed:
			l.Problem("transfer %s: still claimed although the workers have stopped", s.MessageID)
		case !s.Completed || s.Outcome != "processed":
			l.Problem("transfer %s: not completed", s.MessageID)
		}
		if s.ErrorCount > 0 {
			l.Retried++
		}
	}
	l.once("statuses", found)
}

// journal: each transfer is in it once, and those of an account are in the
// order of their acceptance. Order is judged by the first entry of each, so
// that a doubled one does not count twice.
func (l *Ledger) journal(books Books) {
	found := map[string]int{}
	latest := map[int]int{} // the highest number of each account so far
	for _, entry := range books.Journal {
		found[entry.TransferID]++
		t, known := l.transfers[entry.TransferID]
		switch {
		case !known:
			l.Problem("journal: a transfer %q that nobody made", entry.TransferID)
			continue
		case found[entry.TransferID] > 1:
			l.Doubled++
			l.Problem("transfer %s: booked again, by %s", entry.TransferID, entry.Worker)
			continue
		case t.Number < latest[t.From]:
			l.OutOfOrder++
			l.Problem("transfer %s: number %d of account %d, booked by %s after number %d", t.ID, t.Number, t.From, entry.Worker,
				latest[t.From])
		}
		latest[t.From] = max(latest[t.From], t.Number)
		if entry.Account != t.From || entry.Position != t.Number {
			l.Problem("transfer %s: booked as number %d of account %d, should be %d of %d", t.ID, entry.Position, entry.Account,
				t.Number, t.From)
		}
		if entry.Refused != l.replayed.Refused[t.ID] {
			l.Problem("transfer %s: refused is %t, should be %t", t.ID, entry.Refused, l.replayed.Refused[t.ID])
		}
		if entry.Refused {
			l.Refused++
		}
	}
	for id := range l.transfers {
		if found[id] == 0 {
			l.Lost++
			l.Problem("transfer %s: not booked", id)
		}
	}
}

// postings: two of each transfer that was not refused, as the transfer says.
func (l *Ledger) postings(books Books) {
	type side struct {
		transfer string
		account  int
		cents    int64
	}
	found := map[side]int{}
	for _, p := range books.Postings {
		found[side{p.TransferID, p.Account, p.Cents}]++
	}
	for id, t := range l.transfers {
		want := 1
		if l.replayed.Refused[id] {
			want = 0
		}
		for _, s := range []side{{id, t.From, -t.Cents}, {id, t.To, t.Cents}} {
			if found[s] != want {
				l.Problem("transfer %s: account %d has %d postings of %d cents, should be %d", id, s.account, found[s], s.cents,
					want)
			}
			delete(found, s)
		}
	}
	for s := range found {
		l.Problem("transfer %s: a posting of %d cents to account %d that it does not say", s.transfer, s.cents, s.account)
	}
}

// accounts: each has what the replay gives it, and all together have what
// they had at the start.
func (l *Ledger) accounts(books Books, opening int64) {
	if len(books.Accounts) != len(l.replayed.Accounts) {
		l.Problem("accounts: %d, should be %d", len(books.Accounts), len(l.replayed.Accounts))
	}
	balances, total := map[int]int64{}, int64(0)
	for _, p := range books.Postings {
		balances[p.Account] += p.Cents
		total += p.Cents
	}
	if total != 0 {
		l.Problem("the accounts have %d cents more than at the start", total)
	}
	for _, account := range books.Accounts {
		want, known := l.replayed.Accounts[account.ID]
		if !known {
			l.Problem("account %d: nobody opened it", account.ID)
			continue
		}
		if account.Available < 0 {
			l.Problem("account %d: overdrawn by %d cents", account.ID, -account.Available)
		}
		if account != want {
			l.Problem("account %d: %d cents available after %d transfers, should be %d after %d", account.ID, account.Available,
				account.Transfers, want.Available, want.Transfers)
		}
		if balance := opening + balances[account.ID]; balance != l.replayed.Balances[account.ID] {
			l.Problem("account %d: a balance of %d cents, should be %d", account.ID, balance, l.replayed.Balances[account.ID])
		}
	}
}

// calls: the handler was called for each transfer, and for no other.
func (l *Ledger) calls(books Books) {
	called := map[string]bool{}
	for _, id := range books.Calls {
		if _, known := l.transfers[id]; !known {
			l.Problem("a call for a transfer %q that nobody made", id)
		}
		if called[id] {
			l.Reruns++
		}
		called[id] = true
	}
	for id := range l.transfers {
		if !called[id] {
			l.Problem("transfer %s: the handler was never called for it", id)
		}
	}
}

// Print writes the problems, if any, and the figures.
func (l *Ledger) Print(out io.Writer) {
	l.Problems.Print(out)
	figure := func(name string, value int) { fmt.Fprintf(out, "%s: %d\n", name, value) }
	figure("expected", l.Expected)
	figure("effects", l.Effects)
	figure("lost", l.Lost)
	figure("doubled", l.Doubled)
	figure("out_of_order", l.OutOfOrder)
	figure("kills", l.Kills)
	figure("reruns", l.Reruns)
}
