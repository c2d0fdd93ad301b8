package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/examples/internal/demotest"
	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
	"github.com/gorm-inbox/inbox/models"
)

// perfect is n orders, all done, but for mails to those who cannot be reached.
func perfect(n int) (journal Journal, r Result) {
	journal.Garbled, journal.Twice, r.Orders.Rejected = 2, 3, make([]demo.Record, 2)
	for i := range n {
		o := makeOrder(i + 1)
		confirmation := orders.ConfirmationOf(o.ID)
		journal.Orders = append(journal.Orders, o)
		r.Orders.Messages = append(r.Orders.Messages, demo.Message{ID: o.ID, Type: orders.Placed},
			demo.Message{ID: confirmation, Type: orders.Confirmed})
		r.Shipping.Messages = append(r.Shipping.Messages, demo.Message{ID: confirmation, Type: orders.Confirmed})
		r.Reserved, r.Paid, r.Parcelled = append(r.Reserved, o.ID), append(r.Paid, o.ID), append(r.Parcelled, o.ID)
		done := func(id, key string) demo.Status {
			return demo.Status{MessageID: id, HandlerKey: key, Completed: true, Outcome: models.OutcomeProcessed}
		}
		r.Orders.Statuses = append(r.Orders.Statuses, done(o.ID, orders.ReserveStock), done(o.ID, orders.TakePayment),
			done(confirmation, orders.Announce))
		notified := done(confirmation, shipping.NotifyCustomer)
		if strings.HasSuffix(o.Customer, shipping.BrokenDomain) {
			notified = poisoned(confirmation, shipping.NotifyCustomer)
		} else {
			r.Mails++
		}
		r.Shipping.Statuses = append(r.Shipping.Statuses, done(confirmation, shipping.CreateParcel), notified)
	}
	return journal, r
}

func poisoned(id, key string) demo.Status {
	return demo.Status{MessageID: id, HandlerKey: key, Poisoned: true}
}

// without removes what is equal or about a message.
func without[T fmt.Stringer](all []T, id string) []T {
	return slices.DeleteFunc(slices.Clone(all), func(one T) bool { return one.String() == id })
}

// statusOf returns that of a message, to be changed.
func statusOf(in demo.Stored, key, id string) *demo.Status {
	i := slices.IndexFunc(in.Statuses, func(s demo.Status) bool { return s.HandlerKey == key && s.MessageID == id })
	return &in.Statuses[i]
}

// pending makes a status one that nothing has happened to.
func pending(s *demo.Status) { *s = demo.Status{MessageID: s.MessageID, HandlerKey: s.HandlerKey} }

func TestPerfectResultBalances(t *testing.T) {
	journal, r := perfect(30)
	l := Balance(journal, r, true)
	require.Empty(t, l.Problems)
	var out bytes.Buffer
	l.Print(&out)
	require.Equal(t, "lost 0, doubled 0, out_of_order 0, poisoned 5, completed 145\n", out.String())
}

const (
	first, announced = "order-000001", "order-000001/confirmed" // whose mail server is broken
	second, other    = "order-000002", "order-000002/confirmed"
)

func TestLedgerDetectsErrors(t *testing.T) {
	for name, broken := range map[string]struct {
		breaks        func(journal *Journal, r *Result)
		says          string
		lost, doubled int
	}{
		"a message is missing": {func(_ *Journal, r *Result) {
			r.Orders.Messages = without(r.Orders.Messages, first)
		}, first + ": messages in orders: 0", 1, 0},
		"a reservation is missing": {func(_ *Journal, r *Result) { r.Reserved = r.Reserved[1:] }, "reservations: 0", 1, 0},
		"a reservation is doubled": {func(_ *Journal, r *Result) {
			r.Reserved = append(r.Reserved, first, first)
		}, "reservations: 3", 0, 2},
		"a payment is missing": {func(_ *Journal, r *Result) { r.Paid = r.Paid[1:] }, "payments: 0", 1, 0},
		"a payment is doubled": {func(_ *Journal, r *Result) { r.Paid = append(r.Paid, first) }, "payments: 2", 0, 1},
		"a payment without completion": {func(_ *Journal, r *Result) {
			pending(statusOf(r.Orders, orders.TakePayment, first))
		}, "payments of unknown", 0, 0},
		"a payment is not confirmed": {func(_ *Journal, r *Result) {
			r.Orders.Messages = without(r.Orders.Messages, announced)
		}, announced + ": messages in orders: 0", 1, 0},
		"a confirmation without a payment": {func(_ *Journal, r *Result) {
			r.Paid = r.Paid[1:]
			pending(statusOf(r.Orders, orders.TakePayment, first))
		}, `messages in orders of unknown "` + announced, 0, 0},
		"an announcement is lost": {func(_ *Journal, r *Result) {
			r.Shipping.Messages = without(r.Shipping.Messages, announced)
		}, announced + ": messages in shipping: 0", 1, 0},
		"a parcel is missing": {func(_ *Journal, r *Result) { r.Parcelled = r.Parcelled[1:] }, "parcels: 0", 1, 0},
		"a parcel is never made": {func(_ *Journal, r *Result) {
			r.Parcelled = r.Parcelled[1:]
			pending(statusOf(r.Shipping, shipping.CreateParcel, announced))
		}, "has no parcel", 1, 0},
		"a parcel is doubled": {func(_ *Journal, r *Result) { r.Parcelled = append(r.Parcelled, first) }, "parcels: 2", 0, 1},
		"a parcel without completion": {func(_ *Journal, r *Result) {
			r.Shipping.Statuses = slices.Delete(r.Shipping.Statuses, 0, 1)
		}, "parcels of unknown", 0, 0},
		"a mail is missing": {func(_ *Journal, r *Result) { r.Mails-- }, "mails were sent", 1, 0},
		"a customer's payments are out of order": {func(_ *Journal, r *Result) {
			r.Paid[0], r.Paid[customerCount] = r.Paid[customerCount], r.Paid[0]
		}, "out_of_order: 1", 0, 0},
		"a customer's parcels are out of order": {func(_ *Journal, r *Result) {
			r.Parcelled[0], r.Parcelled[customerCount] = r.Parcelled[customerCount], r.Parcelled[0]
		}, "out_of_order: 1", 0, 0},
		"a garbled record is missing": {func(_ *Journal, r *Result) {
			r.Orders.Rejected = r.Orders.Rejected[1:]
		}, "1 of 2 garbled", 1, 0},
		"a good record is rejected": {func(_ *Journal, r *Result) {
			r.Orders.Rejected = make([]demo.Record, 3)
		}, "3 of 2 garbled", 0, 0},
		"an order of no customer": {func(_ *Journal, r *Result) {
			r.Shipping.Messages = append(r.Shipping.Messages, demo.Message{ID: "order-9/confirmed"})
		}, "messages in shipping of unknown", 0, 0},

		"a status is left": {func(_ *Journal, r *Result) {
			pending(statusOf(r.Orders, orders.Announce, announced))
		}, "1 statuses and 0 records are left", 0, 0},
		"a record is left": {func(_ *Journal, r *Result) { r.Unread++ }, "0 statuses and 1 records are left", 0, 0},
		"nothing is done": {func(_ *Journal, r *Result) {
			r.Orders.Statuses, r.Shipping.Statuses = nil, nil
		}, "nothing done", 0, 0},
		"a parcel is poisoned": {func(_ *Journal, r *Result) {
			r.Parcelled = slices.Delete(r.Parcelled, 1, 2)
			*statusOf(r.Shipping, shipping.CreateParcel, other) = poisoned(other, shipping.CreateParcel)
		}, shipping.CreateParcel + ": poisoned", 1, 0},
		"a mail is poisoned that can be sent": {func(_ *Journal, r *Result) {
			*statusOf(r.Shipping, shipping.NotifyCustomer, other) = poisoned(other, shipping.NotifyCustomer)
		}, shipping.NotifyCustomer + ": poisoned", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			journal, r := perfect(30)
			broken.breaks(&journal, &r)
			l := Balance(journal, r, true)
			require.Contains(t, strings.Join(l.Problems, "\n"), broken.says)
			require.Equal(t, []int{broken.lost, broken.doubled}, demotest.Counts(l, "lost", "doubled"), "%v", l.Problems)
		})
	}
}

// An operator may have stopped it at any moment.
func TestUnfinishedWorkIsNotLost(t *testing.T) {
	journal, r := perfect(30)
	// The first announcement is still in the broker, the second is not made yet.
	for _, id := range []string{announced, other} {
		r.Shipping.Messages = without(r.Shipping.Messages, id)
		pending(statusOf(r.Shipping, shipping.CreateParcel, id))
	}
	r.Unread, r.Parcelled = 1, r.Parcelled[2:]
	pending(statusOf(r.Orders, orders.Announce, other))
	discarded := statusOf(r.Orders, orders.ReserveStock, "order-000003")
	discarded.Outcome = models.OutcomeDiscarded
	r.Reserved = slices.Delete(r.Reserved, 2, 3)
	require.Empty(t, Balance(journal, r, false).Problems)
}
