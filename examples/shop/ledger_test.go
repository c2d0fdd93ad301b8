package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
	"github.com/gorm-inbox/inbox/examples/internal/scratchtest"
	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
	"github.com/gorm-inbox/inbox/models"
)

// perfect is n orders, all done, but for mails to those who cannot be reached.
func perfect(n int) (journal Journal, b Books) {
	done := Status{Completed: true, Outcome: models.OutcomeProcessed}
	empty := func(keys ...string) Inbox {
		in := Inbox{Messages: map[string]string{}, Statuses: map[string]map[string]Status{}}
		for _, key := range keys {
			in.Statuses[key] = map[string]Status{}
		}
		return in
	}
	b = Books{Orders: empty(orders.ReserveStock, orders.TakePayment, orders.Announce),
		Shipping: empty(shipping.CreateParcel, shipping.NotifyCustomer),
		Reserved: map[string]int{}, Paid: map[string]int{}, Parcelled: map[string]int{}}
	b.Orders.Rejected, journal.Garbled, journal.Twice = 2, 2, 3
	for i := range n {
		o := makeOrder(i + 1)
		confirmation := orders.ConfirmationOf(o.ID)
		journal.Orders = append(journal.Orders, o)
		b.Orders.Messages[o.ID] = orders.Placed
		b.Orders.Messages[confirmation], b.Shipping.Messages[confirmation] = orders.Confirmed, orders.Confirmed
		b.Reserved[o.ID], b.Paid[o.ID], b.Parcelled[o.ID] = 1, 1, 1
		b.Orders.Statuses[orders.ReserveStock][o.ID], b.Orders.Statuses[orders.TakePayment][o.ID] = done, done
		b.Orders.Statuses[orders.Announce][confirmation] = done
		b.Shipping.Statuses[shipping.CreateParcel][confirmation] = done
		b.Shipping.Statuses[shipping.NotifyCustomer][confirmation] = done
		b.Completed += 5
		b.Mails++
		if strings.HasSuffix(o.Customer, shipping.BrokenDomain) {
			b.Shipping.Statuses[shipping.NotifyCustomer][confirmation] = Status{Poisoned: true}
			b.Completed, b.Poisoned, b.Mails = b.Completed-1, b.Poisoned+1, b.Mails-1
		}
	}
	return journal, b
}

func TestPerfectBooksBalance(t *testing.T) {
	journal, b := perfect(30)
	l := Balance(journal, b)
	l.RequireDone(journal, b)
	require.NoError(t, l.Err())
	require.True(t, l.Balanced())
	var out bytes.Buffer
	l.Print(&out)
	require.Equal(t, "lost 0, doubled 0, poisoned 5, completed 145\n", out.String())
	l.NotOK = 1
	require.False(t, l.Balanced(), "a check has failed")
}

const (
	first, news   = "order-000001", "order-000001/confirmed" // whose mail server is broken
	second, other = "order-000002", "order-000002/confirmed"
)

func TestLedgerNoticesWhatIsWrong(t *testing.T) {
	for name, broken := range map[string]struct {
		breaks        func(journal *Journal, b *Books)
		says          string
		lost, doubled int
	}{
		"a message is missing": {func(_ *Journal, b *Books) {
			delete(b.Orders.Messages, first)
		}, "not in the inbox of orders", 1, 0},
		"a reservation is missing": {func(_ *Journal, b *Books) { b.Reserved[first] = 0 }, "no reservations", 1, 0},
		"a reservation is doubled": {func(_ *Journal, b *Books) { b.Reserved[first] = 3 }, "3 reservations", 0, 2},
		"a payment is missing":     {func(_ *Journal, b *Books) { b.Paid[first] = 0 }, "no payments", 1, 0},
		"a payment is doubled":     {func(_ *Journal, b *Books) { b.Paid[first] = 2 }, "2 payments", 0, 1},
		"a payment without completion": {func(_ *Journal, b *Books) {
			b.Orders.Statuses[orders.TakePayment][first] = Status{}
		}, "has not completed", 0, 0},
		"a payment that nobody hears of": {func(_ *Journal, b *Books) {
			delete(b.Orders.Messages, news)
		}, "nothing tells others", 1, 0},
		"news without a payment": {func(_ *Journal, b *Books) {
			b.Paid[first], b.Orders.Statuses[orders.TakePayment][first] = 0, Status{}
		}, "confirmed and not paid", 0, 0},
		"an announcement is lost": {func(_ *Journal, b *Books) {
			delete(b.Shipping.Messages, news)
		}, "neither in the inbox of shipping nor unread", 1, 0},
		"a parcel is missing":         {func(_ *Journal, b *Books) { b.Parcelled[second] = 0 }, "no parcels", 1, 0},
		"a parcel is doubled":         {func(_ *Journal, b *Books) { b.Parcelled[second] = 2 }, "2 parcels", 0, 1},
		"a mail is missing":           {func(_ *Journal, b *Books) { b.Mails-- }, "mails were sent", 1, 0},
		"a garbled record is missing": {func(_ *Journal, b *Books) { b.Orders.Rejected-- }, "not among the rejected", 1, 0},
		"a good record is rejected":   {func(_ *Journal, b *Books) { b.Orders.Rejected++ }, "only 2 are garbled", 0, 0},
		"an order of nobody": {func(_ *Journal, b *Books) {
			b.Shipping.Messages["order-9/confirmed"] = orders.Confirmed
		}, "nobody placed", 0, 0},

		"a status is left": {func(_ *Journal, b *Books) { b.Unfinished++ }, "1 statuses and 0 records are left", 0, 0},
		"a record is left": {func(_ *Journal, b *Books) { b.Unread++ }, "0 statuses and 1 records are left", 0, 0},
		"nothing is done":  {func(_ *Journal, b *Books) { b.Completed = 0 }, "nothing done", 0, 0},
		"a parcel is given up": {func(_ *Journal, b *Books) {
			b.Parcelled[second], b.Shipping.Statuses[shipping.CreateParcel][other] = 0, Status{Poisoned: true}
		}, "poisoned for " + shipping.CreateParcel, 1, 0},
		"a mail is given up that can be sent": {func(_ *Journal, b *Books) {
			b.Shipping.Statuses[shipping.NotifyCustomer][other] = Status{Poisoned: true}
		}, "poisoned for " + shipping.NotifyCustomer, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			journal, b := perfect(30)
			broken.breaks(&journal, &b)
			l := Balance(journal, b)
			l.RequireDone(journal, b)
			require.True(t, scratch.Failed(l, nil))
			require.ErrorContains(t, l.Err(), "the first: ")
			require.Contains(t, strings.Join(l.Problems, "\n"), broken.says)
			require.Equal(t, fmt.Sprint(broken.lost, broken.doubled), fmt.Sprint(l.Lost, l.Doubled), "%v", l.Problems)
		})
	}
}

// An operator may have stopped it at any moment.
func TestWorkLeftUndoneIsNotLost(t *testing.T) {
	journal, b := perfect(30)
	delete(b.Shipping.Messages, news)
	b.Parcelled[first], b.Shipping.Statuses[shipping.CreateParcel][news] = 0, Status{}
	b.Unread = 1
	delete(b.Orders.Statuses[orders.Announce], other)
	delete(b.Shipping.Messages, other)
	b.Parcelled[second], b.Shipping.Statuses[shipping.CreateParcel][other] = 0, Status{}
	b.Orders.Statuses[orders.ReserveStock]["order-000003"] = Status{Completed: true, Outcome: models.OutcomeDiscarded}
	b.Reserved["order-000003"] = 0
	require.NoError(t, Balance(journal, b).Err())
}

func TestManyProblemsArePrintedShort(t *testing.T) {
	journal, b := perfect(50)
	b.Orders.Messages = nil
	l := Balance(journal, b)
	scratchtest.RequireProblemsShort(t, l.Problems, l.Print,
		fmt.Sprintf("lost 50, doubled 0, poisoned %d, completed %d", b.Poisoned, b.Completed))
}
