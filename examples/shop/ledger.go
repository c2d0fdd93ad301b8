package main

import (
	"context"
	"strings"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
)

// Inbox is what one inbox has stored.
type Inbox struct {
	Messages map[string]string                 // types by ID
	Statuses map[string]map[string]demo.Status // by handler key and message ID
	Rejected int
}

// Result is what is left when the application has stopped.
type Result struct {
	Orders, Shipping                Inbox
	Reserved, Paid, Parcelled       map[string]int // how often, by order ID
	Completed, Poisoned, Unfinished int            // statuses of both
	Unread                          int            // announcements that the broker has and shipping has not
	Mails                           int            // that were sent
}

// ReadResult reads both databases, the broker and the mailer.
func (r *Running) ReadResult(ctx context.Context) (result Result, err error) {
	if result.Orders, err = result.readInbox(ctx, r.Orders.DB); err != nil {
		return result, err
	}
	if result.Shipping, err = result.readInbox(ctx, r.Shipping.DB); err != nil {
		return result, err
	}
	var reserved, paid, parcelled []string
	pluck := func(db *gorm.DB, table any, ids *[]string) *gorm.DB { return db.Model(table).Pluck("order_id", ids) }
	if err := demo.Read(ctx, r.Orders.DB, func(db *gorm.DB) map[string]*gorm.DB {
		return map[string]*gorm.DB{"reservations": pluck(db, &orders.Reservation{}, &reserved),
			"payments": pluck(db, &orders.Payment{}, &paid)}
	}); err != nil {
		return result, err
	}
	if err := demo.Read(ctx, r.Shipping.DB, func(db *gorm.DB) map[string]*gorm.DB {
		return map[string]*gorm.DB{"parcels": pluck(db, &shipping.Parcel{}, &parcelled)}
	}); err != nil {
		return result, err
	}
	result.Reserved, result.Paid, result.Parcelled = count(reserved), count(paid), count(parcelled)
	unread, err := r.broker.Unread(ctx, shipping.ConfirmedTopic)
	result.Unread, result.Mails = int(unread), int(r.Mailer.Sent())
	return result, err
}

// readInbox reads an inbox and counts its statuses.
func (r *Result) readInbox(ctx context.Context, db *gorm.DB) (in Inbox, err error) {
	stored, err := demo.ReadStored(ctx, db)
	in = Inbox{Messages: map[string]string{}, Statuses: map[string]map[string]demo.Status{},
		Rejected: len(stored.Rejected)}
	for _, m := range stored.Messages {
		in.Messages[m.ID] = m.Type
	}
	for _, s := range stored.Statuses {
		if in.Statuses[s.HandlerKey] == nil {
			in.Statuses[s.HandlerKey] = map[string]demo.Status{}
		}
		in.Statuses[s.HandlerKey][s.MessageID] = s
		switch {
		case s.Completed:
			r.Completed++
		case s.Poisoned:
			r.Poisoned++
		default:
			r.Unfinished++
		}
	}
	return in, err
}

func count(ids []string) map[string]int {
	times := map[string]int{}
	for _, id := range ids {
		times[id]++
	}
	return times
}

// balance compares what customers ordered with what the databases hold.
type balance struct {
	*demo.Ledger
	Journal
	Result
	missing map[string]bool // what is lost
	unread  []string        // orders that are announced and not in shipping's inbox
	doubled int
}

// Balance makes the ledger. It holds wherever the application was stopped, if all orders have been accepted.
// With done it balances only if nothing was left to do, and nothing failed for good but mails to customers
// whose mail server is broken.
func Balance(journal Journal, result Result, done bool) *demo.Ledger {
	l := &balance{Ledger: &demo.Ledger{OneLine: true}, Journal: journal, Result: result, missing: map[string]bool{}}
	ordered := map[string]bool{}
	for _, o := range journal.Orders {
		ordered[o.ID] = true
		l.follow(o.ID)
	}
	for _, in := range []Inbox{result.Orders, result.Shipping} {
		for id := range in.Messages {
			if order, _, _ := strings.Cut(id, "/"); !ordered[order] {
				l.Problem("message %s is of an order that was never placed", id)
			}
		}
	}
	if missing := journal.Garbled - result.Orders.Rejected; missing > 0 {
		l.lost("garbled", "%d of %d garbled records are not among the rejected", missing, journal.Garbled)
	} else if missing < 0 {
		l.Problem("%d records are rejected, and only %d are garbled", result.Orders.Rejected, journal.Garbled)
	}
	// What was announced while shipping stopped is still in the broker.
	for _, id := range l.unread[min(result.Unread, len(l.unread)):] {
		l.lost(id, "order %s is announced, and neither in the inbox of shipping nor unread", id)
	}
	notified := 0
	for _, s := range result.Shipping.Statuses[shipping.NotifyCustomer] {
		if s.Processed() {
			notified++
		}
	}
	if result.Mails < notified { // at least once: more is no error
		l.lost("mails", "%d customers count as notified, and only %d mails were sent", notified, result.Mails)
	}
	if done {
		l.requireDone()
	}
	l.Figure("lost", len(l.missing))
	l.Figure("doubled", l.doubled)
	l.Figure("poisoned", result.Poisoned)
	l.Figure("completed", result.Completed)
	return l.Ledger
}

// follow follows an order through both contexts, as far as it has come.
func (l *balance) follow(id string) {
	of, sh := l.Result.Orders, l.Shipping
	if of.Messages[id] == "" {
		l.lost(id, "order %s was acknowledged and is not in the inbox of orders", id)
		return
	}
	confirmation := orders.ConfirmationOf(id)
	l.effect("reservations", id, l.Reserved[id], of.Statuses[orders.ReserveStock][id])
	l.effect("payments", id, l.Paid[id], of.Statuses[orders.TakePayment][id])
	if paid, announced := l.Paid[id] > 0, of.Messages[confirmation] != ""; paid && !announced {
		l.lost(id, "order %s is paid and not confirmed", id)
	} else if announced && !paid {
		l.Problem("order %s is confirmed and not paid", id)
	}
	if of.Statuses[orders.Announce][confirmation].Processed() && sh.Messages[confirmation] == "" {
		l.unread = append(l.unread, id)
	}
	l.effect("parcels", id, l.Parcelled[id], sh.Statuses[shipping.CreateParcel][confirmation])
}

// effect compares a handler's status with what it has written.
func (l *balance) effect(what, id string, times int, s demo.Status) {
	switch {
	case times > 1:
		l.doubled += times - 1
		l.Problem("order %s has %d %s", id, times, what)
	case times == 0 && s.Processed():
		l.lost(id, "order %s has no %s, and its handler has completed", id, what)
	case times == 1 && !s.Processed():
		l.Problem("order %s has %s, and its handler has not completed", id, what)
	}
}

// lost counts what is lost once, in whatever ways that shows.
func (l *balance) lost(what, format string, args ...any) {
	l.missing[what] = true
	l.Problem(format, args...)
}

// requireDone requires that nothing was left to do.
func (l *balance) requireDone() {
	if l.Completed == 0 || len(l.Journal.Orders) == 0 {
		l.Problem("nothing was ordered, or nothing done")
	}
	if l.Unfinished+l.Unread > 0 {
		l.Problem("%d statuses and %d records are left", l.Unfinished, l.Unread)
	}
	unreachable := map[string]bool{}
	for _, o := range l.Journal.Orders {
		unreachable[orders.ConfirmationOf(o.ID)] = strings.HasSuffix(o.Customer, "@"+shipping.BrokenDomain)
		if l.Parcelled[o.ID] == 0 {
			l.lost(o.ID, "order %s has no parcel", o.ID)
		}
	}
	for _, in := range []Inbox{l.Result.Orders, l.Shipping} {
		for key, statuses := range in.Statuses {
			for id, s := range statuses {
				if s.Poisoned && (key != shipping.NotifyCustomer || !unreachable[id]) {
					l.Problem("message %s is poisoned for %s", id, key)
				}
			}
		}
	}
}
