package main

import (
	"fmt"
	"io"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// Ledger is what was sent and what the books say, side by side. The doc comment
// of the program says what each figure means.
type Ledger struct {
	Payments, Applied, Lost, Doubled, Duplicates, Kills, CallsAgain, Reruns int

	scratch.Problems

	payments map[string]Payment
	redis    bool
}

// Balance compares what the books say with the payments and with what the
// transport has seen. With redis, effects may happen again where the transport
// saw why.
func Balance(payments []Payment, books Books, seen Deliveries, redis bool) *Ledger {
	l := &Ledger{Payments: len(payments), Duplicates: seen.Sent - len(payments), Kills: len(seen.Killed),
		payments: map[string]Payment{}, redis: redis}
	for _, p := range payments {
		l.payments[p.ID] = p
	}
	l.entries(books, seen)
	l.accounts(books)
	l.remembered(books, seen)
	l.calls(books)
	for what, n := range map[string]int{"lost": l.Lost, "doubled": l.Doubled} {
		if n > 0 {
			l.Problem("%s: %d", what, n)
		}
	}
	return l
}

// entries: one of each payment, as the payment says. With Redis one more for each
// delivery that ended while the handler may have run and nobody remembered it.
func (l *Ledger) entries(books Books, seen Deliveries) {
	found := map[string]int{}
	for _, e := range books.Entries {
		p, known := l.payments[e.PaymentID]
		if !known {
			l.Problem("an entry of a payment %q that nobody made", e.PaymentID)
			continue
		}
		if e.Account != p.Account || e.Cents != p.Cents {
			l.Problem("payment %s: %d cents entered for account %d, should be %d for %d", p.ID, e.Cents, e.Account, p.Cents,
				p.Account)
		}
		found[p.ID]++
	}
	for id := range l.payments {
		n := found[id]
		if n == 0 {
			l.Lost++
			l.Problem("payment %s: not applied", id)
			continue
		}
		l.Applied++
		again := 0
		if l.redis {
			again = min(n-1, seen.Unsure[id])
		}
		l.Reruns += again
		if doubled := n - 1 - again; doubled > 0 {
			l.Doubled += doubled
			l.Problem("payment %s: applied %d times, and %d of its deliveries ended while that may have been unknown", id, n,
				seen.Unsure[id])
		}
	}
}

// accounts: each has what its entries say, so that no transaction was half
// committed.
func (l *Ledger) accounts(books Books) {
	want := map[int]int64{}
	for _, e := range books.Entries {
		want[e.Account] += e.Cents
	}
	if len(books.Accounts) != accounts {
		l.Problem("accounts: %d, should be %d", len(books.Accounts), accounts)
	}
	for _, a := range books.Accounts {
		if a.Balance != want[a.ID] {
			l.Problem("account %d: a balance of %d cents, its entries say %d", a.ID, a.Balance, want[a.ID])
		}
	}
}

// remembered: each payment is, and was acknowledged.
func (l *Ledger) remembered(books Books, seen Deliveries) {
	for id := range l.payments {
		if !books.Remembered[id] {
			l.Problem("payment %s: the store does not remember it", id)
		}
		if seen.Acknowledged[id] == 0 {
			l.Problem("payment %s: not acknowledged", id)
		}
	}
}

// calls: the handler was called for each payment, and for no other.
func (l *Ledger) calls(books Books) {
	called := map[string]int{}
	for _, id := range books.Calls {
		if _, known := l.payments[id]; !known {
			l.Problem("a call for a payment %q that nobody made", id)
		}
		called[id]++
	}
	for id := range l.payments {
		if called[id] == 0 {
			l.Problem("payment %s: the handler was never called for it", id)
			continue
		}
		l.CallsAgain += called[id] - 1
	}
}

// Print writes the problems, if any, and the figures.
func (l *Ledger) Print(out io.Writer) {
	l.Problems.Print(out)
	if l.redis {
		fmt.Fprintln(out,
			"Redis is effectively once: the effects and the marker are in two places. A payment counts under reruns, not doubled,\n"+
				"where its worker was killed, or lost its claim, while its effects may have been committed and its marker was not.")
	}
	figure := func(name string, value int) { fmt.Fprintf(out, "%s: %d\n", name, value) }
	figure("payments", l.Payments)
	figure("applied", l.Applied)
	figure("lost", l.Lost)
	figure("doubled", l.Doubled)
	figure("duplicates", l.Duplicates)
	figure("kills", l.Kills)
	figure("calls_again", l.CallsAgain)
	if l.redis {
		figure("reruns", l.Reruns)
	}
}
