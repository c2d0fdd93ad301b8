package main

import (
	"bytes"
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
	done := demo.Status{Completed: true, Outcome: models.OutcomeProcessed}
	empty := func(keys ...string) Inbox {
		in := Inbox{Messages: map[string]string{}, Statuses: map[string]map[string]demo.Status{}}
		for _, key := range keys {
			in.Statuses[key] = map[string]demo.Status{}
		}
		return in
	}
	r = Result{Orders: empty(orders.ReserveStock, orders.TakePayment, orders.Announce),
		Shipping: empty(shipping.CreateParcel, shipping.NotifyCustomer),
		Reserved: map[string]int{}, Paid: map[string]int{}, Parcelled: map[string]int{}}
	r.Orders.Rejected, journal.Garbled, journal.Twice = 2, 2, 3
	for i := range n {
		o := makeOrder(i + 1)
		confirmation := orders.ConfirmationOf(o.ID)
		journal.Orders = append(journal.Orders, o)
		r.Orders.Messages[o.ID] = orders.Placed
		r.Orders.Messages[confirmation], r.Shipping.Messages[confirmation] = orders.Confirmed, orders.Confirmed
		r.Reserved[o.ID], r.Paid[o.ID], r.Parcelled[o.ID] = 1, 1, 1
		r.Orders.Statuses[orders.ReserveStock][o.ID], r.Orders.Statuses[orders.TakePayment][o.ID] = done, done
		r.Orders.Statuses[orders.Announce][confirmation] = done
		r.Shipping.Statuses[shipping.CreateParcel][confirmation] = done
		r.Shipping.Statuses[shipping.NotifyCustomer][confirmation] = done
		r.Completed += 5
		r.Mails++
		if strings.HasSuffix(o.Customer, shipping.BrokenDomain) {
			r.Shipping.Statuses[shipping.NotifyCustomer][confirmation] = demo.Status{Poisoned: true}
			r.Completed, r.Poisoned, r.Mails = r.Completed-1, r.Poisoned+1, r.Mails-1
		}
	}
	return journal, r
}

func TestPerfectResultBalances(t *testing.T) {
	journal, r := perfect(30)
	l := Balance(journal, r, true)
	require.Empty(t, l.Problems)
	var out bytes.Buffer
	l.Print(&out)
	require.Equal(t, "lost 0, doubled 0, poisoned 5, completed 145\n", out.String())
}

const (
	first, announced = "order-000001", "order-000001/confirmed" // whose mail server is broken
	second, other    = "order-000002", "order-000002/confirmed"
)

func TestLedgerNoticesWhatIsWrong(t *testing.T) {
	for name, broken := range map[string]struct {
		breaks        func(journal *Journal, r *Result)
		says          string
		lost, doubled int
	}{
		"a message is missing": {func(_ *Journal, r *Result) {
			delete(r.Orders.Messages, first)
		}, "not in the inbox of orders", 1, 0},
		"a reservation is missing": {func(_ *Journal, r *Result) { r.Reserved[first] = 0 }, "no reservations", 1, 0},
		"a reservation is doubled": {func(_ *Journal, r *Result) { r.Reserved[first] = 3 }, "3 reservations", 0, 2},
		"a payment is missing":     {func(_ *Journal, r *Result) { r.Paid[first] = 0 }, "no payments", 1, 0},
		"a payment is doubled":     {func(_ *Journal, r *Result) { r.Paid[first] = 2 }, "2 payments", 0, 1},
		"a payment without completion": {func(_ *Journal, r *Result) {
			r.Orders.Statuses[orders.TakePayment][first] = demo.Status{}
		}, "has not completed", 0, 0},
		"a payment is not confirmed": {func(_ *Journal, r *Result) {
			delete(r.Orders.Messages, announced)
		}, "is paid and not confirmed", 1, 0},
		"a confirmation without a payment": {func(_ *Journal, r *Result) {
			r.Paid[first], r.Orders.Statuses[orders.TakePayment][first] = 0, demo.Status{}
		}, "confirmed and not paid", 0, 0},
		"an announcement is lost": {func(_ *Journal, r *Result) {
			delete(r.Shipping.Messages, announced)
		}, "neither in the inbox of shipping nor unread", 1, 0},
		"a parcel is missing":         {func(_ *Journal, r *Result) { r.Parcelled[second] = 0 }, "no parcels", 1, 0},
		"a parcel is doubled":         {func(_ *Journal, r *Result) { r.Parcelled[second] = 2 }, "2 parcels", 0, 1},
		"a mail is missing":           {func(_ *Journal, r *Result) { r.Mails-- }, "mails were sent", 1, 0},
		"a garbled record is missing": {func(_ *Journal, r *Result) { r.Orders.Rejected-- }, "not among the rejected", 1, 0},
		"a good record is rejected":   {func(_ *Journal, r *Result) { r.Orders.Rejected++ }, "only 2 are garbled", 0, 0},
		"an order of no customer": {func(_ *Journal, r *Result) {
			r.Shipping.Messages["order-9/confirmed"] = orders.Confirmed
		}, "was never placed", 0, 0},

		"a status is left": {func(_ *Journal, r *Result) { r.Unfinished++ }, "1 statuses and 0 records are left", 0, 0},
		"a record is left": {func(_ *Journal, r *Result) { r.Unread++ }, "0 statuses and 1 records are left", 0, 0},
		"nothing is done":  {func(_ *Journal, r *Result) { r.Completed = 0 }, "nothing done", 0, 0},
		"a parcel is poisoned": {func(_ *Journal, r *Result) {
			r.Parcelled[second], r.Shipping.Statuses[shipping.CreateParcel][other] = 0, demo.Status{Poisoned: true}
		}, "poisoned for " + shipping.CreateParcel, 1, 0},
		"a mail is poisoned that can be sent": {func(_ *Journal, r *Result) {
			r.Shipping.Statuses[shipping.NotifyCustomer][other] = demo.Status{Poisoned: true}
		}, "poisoned for " + shipping.NotifyCustomer, 0, 0},
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
func TestWorkLeftUndoneIsNotLost(t *testing.T) {
	journal, r := perfect(30)
	delete(r.Shipping.Messages, announced)
	r.Parcelled[first], r.Shipping.Statuses[shipping.CreateParcel][announced] = 0, demo.Status{}
	r.Unread = 1
	delete(r.Orders.Statuses[orders.Announce], other)
	delete(r.Shipping.Messages, other)
	r.Parcelled[second], r.Shipping.Statuses[shipping.CreateParcel][other] = 0, demo.Status{}
	r.Orders.Statuses[orders.ReserveStock]["order-000003"] = demo.Status{Completed: true, Outcome: models.OutcomeDiscarded}
	r.Reserved["order-000003"] = 0
	require.Empty(t, Balance(journal, r, false).Problems)
}
