package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
)

// Result is what is left when the application has stopped.
type Result struct {
	Orders, Shipping          demo.Stored
	Reserved, Paid, Parcelled []string // an order's ID for each row, in the order of the rows
	Unread                    int      // announcements that the broker has and shipping has not
	Mails                     int      // that were sent; unknown (-1) if those who sent them were killed
}

// ReadResult reads both databases, the broker and the mailer.
func (r *Running) ReadResult(ctx context.Context) (result Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if result.Orders, err = demo.ReadStored(ctx, r.Orders.DB); err != nil {
		return result, err
	}
	if result.Shipping, err = demo.ReadStored(ctx, r.Shipping.DB); err != nil {
		return result, err
	}
	ordersDB, shippingDB := r.Orders.DB.WithContext(ctx), r.Shipping.DB.WithContext(ctx)
	if err := errors.Join(
		ordersDB.Model(&orders.Reservation{}).Order("number").Pluck("order_id", &result.Reserved).Error,
		ordersDB.Model(&orders.Payment{}).Order("number").Pluck("order_id", &result.Paid).Error,
		shippingDB.Model(&shipping.Parcel{}).Order("number").Pluck("order_id", &result.Parcelled).Error); err != nil {
		return result, err
	}
	unread, err := r.broker.Unread(ctx, shipping.ConfirmedTopic)
	result.Unread, result.Mails = int(unread), -1
	if r.Mailer != nil {
		result.Mails = int(r.Mailer.Sent())
	}
	return result, err
}

// orderOf returns the order that a message is about.
func orderOf(messageID string) string {
	order, _, _ := strings.Cut(messageID, "/")
	return order
}

// processed returns the orders that a handler has completed.
func processed(in demo.Stored, key string) map[string]bool {
	done := map[string]bool{}
	for _, s := range in.Statuses {
		if s.HandlerKey == key && s.Processed() {
			done[orderOf(s.MessageID)] = true
		}
	}
	return done
}

// Balance makes the ledger. It holds wherever the application was stopped, if all orders have been accepted.
// With done it balances only if nothing was left to do, and nothing failed for good but mails to customers
// whose mail server is broken.
func Balance(journal Journal, r Result, done bool) *demo.Ledger {
	l, missing, doubled := &demo.Ledger{OneLine: true}, map[string]bool{}, 0
	once := func(what string, expected map[string]bool, found []string) {
		lost, again := demo.Once(l, what, expected, found)
		for _, id := range lost {
			missing[orderOf(id)] = true // counts once, in whatever ways it shows
		}
		doubled += again
	}
	ids := func(in demo.Stored) (ids []string) {
		for _, m := range in.Messages {
			ids = append(ids, m.ID)
		}
		return ids
	}

	// What customers placed is in the inbox of orders; so is the confirmation of what is paid.
	inOrders, placed := map[string]bool{}, map[string]bool{}
	for _, o := range journal.Orders {
		inOrders[o.ID], placed[o.ID] = true, true
	}
	for _, id := range r.Paid {
		inOrders[orders.ConfirmationOf(id)] = true
	}
	once("messages in orders", inOrders, ids(r.Orders))
	// Each effect is there once if its handler has completed, and else is not.
	once("reservations", processed(r.Orders, orders.ReserveStock), r.Reserved)
	once("payments", processed(r.Orders, orders.TakePayment), r.Paid)
	once("parcels", processed(r.Shipping, shipping.CreateParcel), r.Parcelled)
	once("messages in shipping", expectedInShipping(placed, r), ids(r.Shipping))

	if lost := journal.Garbled - len(r.Orders.Rejected); lost != 0 {
		l.Problem("%d of %d garbled records are rejected", len(r.Orders.Rejected), journal.Garbled)
		if lost > 0 {
			missing["garbled"] = true
		}
	}
	// At least once: more mails are no error.
	if notified := len(processed(r.Shipping, shipping.NotifyCustomer)); r.Mails >= 0 && r.Mails < notified {
		l.Problem("%d customers count as notified, and only %d mails were sent", notified, r.Mails)
		missing["mails"] = true
	}

	unreachable, parcelled := map[string]bool{}, map[string]bool{}
	for _, id := range r.Parcelled {
		parcelled[id] = true
	}
	for _, o := range journal.Orders {
		unreachable[orders.ConfirmationOf(o.ID)] = strings.HasSuffix(o.Customer, "@"+shipping.BrokenDomain)
		if done && !parcelled[o.ID] {
			l.Problem("order %s has no parcel", o.ID)
			missing[o.ID] = true
		}
	}
	completed, poisoned, unfinished := 0, 0, 0
	for _, in := range []demo.Stored{r.Orders, r.Shipping} {
		for _, s := range in.Statuses {
			switch {
			case s.Completed:
				completed++
			case s.Poisoned:
				poisoned++
				if done && (s.HandlerKey != shipping.NotifyCustomer || !unreachable[s.MessageID]) {
					l.Problem("%s", s)
				}
			default:
				unfinished++
			}
		}
	}
	if done && unfinished+r.Unread > 0 {
		l.Problem("%d statuses and %d records are left", unfinished, r.Unread)
	}
	if done && (completed == 0 || len(journal.Orders) == 0) {
		l.Problem("nothing was ordered, or nothing done")
	}
	l.Figure("lost", len(missing))
	l.Figure("doubled", doubled)
	l.Zero("out_of_order", overtaking(journal, r.Paid)+overtaking(journal, r.Parcelled))
	l.Figure("poisoned", poisoned)
	l.Figure("completed", completed)
	return l
}

// overtaking counts the orders that stand before one that the same customer placed earlier.
func overtaking(journal Journal, found []string) (n int) {
	placed := map[string]int{}
	for i, o := range journal.Orders {
		placed[o.ID] = i
	}
	last := map[string]int{} // by customer
	for _, id := range found {
		at, known := placed[id]
		if !known {
			continue // a problem already
		}
		customer := journal.Orders[at].Customer
		if before, is := last[customer]; is && at < before {
			n++
		}
		last[customer] = at
	}
	return n
}

// expectedInShipping returns the confirmations that shipping must have: those that are announced, but for as many
// as the broker still has. One may be there that is not announced yet: its announcer was stopped in between.
func expectedInShipping(placed map[string]bool, r Result) map[string]bool {
	expected, there := map[string]bool{}, map[string]bool{}
	for _, m := range r.Shipping.Messages {
		there[orderOf(m.ID)] = true
	}
	announced, unread := processed(r.Orders, orders.Announce), r.Unread
	for id := range placed {
		switch {
		case there[id]:
			expected[orders.ConfirmationOf(id)] = true
		case announced[id] && unread > 0:
			unread--
		case announced[id]:
			expected[orders.ConfirmationOf(id)] = true
		}
	}
	return expected
}
