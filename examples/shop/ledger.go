package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
	"github.com/gorm-inbox/inbox/models"
)

// Ledger compares what customers ordered with what the databases hold.
type Ledger struct {
	scratch.Problems
	Lost, Doubled       int
	Poisoned, Completed int
	// NotOK counts the checks that have failed.
	NotOK int

	missing []string // that Lost counts
	unread  []string // orders that are announced and not in shipping's inbox
}

// Balance makes the ledger. It holds wherever the application was stopped, if all
// that was ordered has been accepted.
func Balance(journal Journal, b Books) *Ledger {
	l := &Ledger{Poisoned: b.Poisoned, Completed: b.Completed}
	ordered := map[string]bool{}
	for _, o := range journal.Orders {
		ordered[o.ID] = true
		l.follow(o.ID, b)
	}
	for _, in := range []Inbox{b.Orders, b.Shipping} {
		for id := range in.Messages {
			if order, _, _ := strings.Cut(id, "/"); !ordered[order] {
				l.Problem("message %s is of an order that nobody placed", id)
			}
		}
	}
	if b.Orders.Rejected < journal.Garbled {
		l.lost("garbled", "%d of %d garbled records are not among the rejected", journal.Garbled-b.Orders.Rejected,
			journal.Garbled)
	} else if b.Orders.Rejected > journal.Garbled {
		l.Problem("%d records are rejected, and only %d are garbled", b.Orders.Rejected, journal.Garbled)
	}
	// Announced while shipping stopped is in the broker still.
	for _, id := range l.unread[min(b.Unread, len(l.unread)):] {
		l.lost(id, "order %s is announced, and neither in the inbox of shipping nor unread", id)
	}
	notified := 0
	for _, s := range b.Shipping.Statuses[shipping.NotifyCustomer] {
		if s.done() {
			notified++
		}
	}
	if b.Mails < notified { // at least once: more is no error
		l.lost("mails", "%d customers count as notified, and only %d mails were sent", notified, b.Mails)
	}
	return l
}

// follow follows an order through both contexts, as far as it has come.
func (l *Ledger) follow(id string, b Books) {
	if b.Orders.Messages[id] == "" {
		l.lost(id, "order %s was acknowledged and is not in the inbox of orders", id)
		return
	}
	confirmation := orders.ConfirmationOf(id)
	l.effect("reservations", id, b.Reserved[id], b.Orders.Statuses[orders.ReserveStock][id])
	l.effect("payments", id, b.Paid[id], b.Orders.Statuses[orders.TakePayment][id])
	if paid, news := b.Paid[id] > 0, b.Orders.Messages[confirmation] != ""; paid && !news {
		l.lost(id, "order %s is paid, and nothing tells others", id)
	} else if news && !paid {
		l.Problem("order %s is confirmed and not paid", id)
	}
	if b.Orders.Statuses[orders.Announce][confirmation].done() && b.Shipping.Messages[confirmation] == "" {
		l.unread = append(l.unread, id)
	}
	l.effect("parcels", id, b.Parcelled[id], b.Shipping.Statuses[shipping.CreateParcel][confirmation])
}

// effect compares a handler's status with what it has written.
func (l *Ledger) effect(what, id string, times int, s Status) {
	switch {
	case times > 1:
		l.Doubled += times - 1
		l.Problem("order %s has %d %s", id, times, what)
	case times == 0 && s.done():
		l.lost(id, "order %s has no %s, and its handler has completed", id, what)
	case times == 1 && !s.done():
		l.Problem("order %s has %s, and its handler has not completed", id, what)
	}
}

// done: by its handler, not by an operator who has discarded it.
func (s Status) done() bool { return s.Completed && s.Outcome == models.OutcomeProcessed }

// lost counts what is lost once, in whatever ways that shows.
func (l *Ledger) lost(what, format string, args ...any) {
	if !slices.Contains(l.missing, what) {
		l.missing = append(l.missing, what)
		l.Lost++
	}
	l.Problem(format, args...)
}

// RequireDone has the ledger balance only if nothing was left to do, and nothing
// given up but mails to customers whose mail server is broken.
func (l *Ledger) RequireDone(journal Journal, b Books) {
	if b.Completed == 0 || len(journal.Orders) == 0 {
		l.Problem("nothing was ordered, or nothing done")
	}
	if b.Unfinished+b.Unread > 0 {
		l.Problem("%d statuses and %d records are left", b.Unfinished, b.Unread)
	}
	unreachable := map[string]bool{}
	for _, o := range journal.Orders {
		unreachable[orders.ConfirmationOf(o.ID)] = strings.HasSuffix(o.Customer, "@"+shipping.BrokenDomain)
		if b.Parcelled[o.ID] == 0 {
			l.lost(o.ID, "order %s has no parcel", o.ID)
		}
	}
	for _, in := range []Inbox{b.Orders, b.Shipping} {
		for key, statuses := range in.Statuses {
			for id, s := range statuses {
				if s.Poisoned && (key != shipping.NotifyCustomer || !unreachable[id]) {
					l.Problem("message %s is poisoned for %s", id, key)
				}
			}
		}
	}
}

// Err is nil if the ledger balances, and says how far it does not.
func (l *Ledger) Err() error {
	if l.Problems.Balanced() {
		return nil
	}
	return fmt.Errorf("%d problems, the first: %s", len(l.Problems), l.Problems[0])
}

// Balanced reports whether nothing is wrong.
func (l *Ledger) Balanced() bool { return l.Problems.Balanced() && l.NotOK == 0 }

// Print writes the problems, if any, and the last line.
func (l *Ledger) Print(out io.Writer) {
	l.Problems.Print(out)
	fmt.Fprintf(out, "lost %d, doubled %d, poisoned %d, completed %d\n", l.Lost, l.Doubled, l.Poisoned, l.Completed)
}
