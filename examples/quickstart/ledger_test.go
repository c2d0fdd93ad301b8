package main

import (
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
	"github.com/gorm-inbox/inbox/examples/internal/scratchtest"
	"github.com/gorm-inbox/inbox/models"
)

// perfect makes the books of a service that did everything right.
func perfect(n int) (Journal, Books) {
	journal := Journal{Orders: map[string]*OrderPlaced{}}
	var books Books
	for i, e := range MakeEvents(n, rand.New(rand.NewPCG(1, 1))) {
		journal.Records++
		switch {
		case e.Order == nil:
			at := Coordinates{Partition: int32(i % partitions), Offset: int64(i)}
			journal.Malformed, books.Rejected = append(journal.Malformed, at), append(books.Rejected, at)
		case e.Duplicate:
			journal.Duplicates++
		default:
			journal.Orders[e.Order.OrderID] = e.Order
			books.Messages = append(books.Messages, e.Order.OrderID)
			for _, key := range HandlerKeys() {
				s := Status{MessageID: e.Order.OrderID, HandlerKey: key, Completed: true, Outcome: models.OutcomeProcessed}
				switch e.Order.Trouble[key] {
				case once:
					s.ErrorCount = 1
				case always:
					s = Status{MessageID: s.MessageID, HandlerKey: key, Poisoned: true, ErrorCount: 3}
				}
				books.Statuses = append(books.Statuses, s)
				switch {
				case !s.Completed:
				case key == bookRevenue:
					books.Revenue = append(books.Revenue, RevenueEntry{OrderID: e.Order.OrderID, Cents: e.Order.Cents})
				default:
					books.Mails = append(books.Mails, e.Order.OrderID)
				}
			}
		}
	}
	return journal, books
}

func status(ledger *Ledger) int { return command.Verdict(ledger, nil, io.Discard, io.Discard) }

func TestPerfectBooksBalance(t *testing.T) {
	journal, books := perfect(300)
	ledger := Balance(journal, books, 0, time.Second)
	require.Empty(t, ledger.Problems)
	require.Equal(t, scratch.Balanced, status(ledger))
	require.Equal(t, 264, ledger.Accepted)
	require.Equal(t, 30, ledger.Duplicates)
	require.Equal(t, 12, ledger.Retried)
	require.Equal(t, 3, ledger.Poisoned)
	require.Equal(t, scratch.Unbalanced, command.Verdict(ledger, errors.New("the service stopped with exit status 1"),
		io.Discard, io.Discard))
}

// statusOf finds the status with a trouble of the given kind.
func statusOf(journal Journal, books Books, key, trouble string) *Status {
	for i := range books.Statuses {
		s := &books.Statuses[i]
		if s.HandlerKey == key && journal.Orders[s.MessageID].Trouble[key] == trouble {
			return s
		}
	}
	panic("no order with trouble " + trouble)
}

func TestBrokenBooksAreNoticed(t *testing.T) {
	pending := func(s *Status) { s.Completed, s.Outcome = false, "" }
	for name, broken := range map[string]struct {
		breaks func(j *Journal, b *Books)
		says   string
		check  func(t *testing.T, l *Ledger)
	}{
		"a message is missing": {func(_ *Journal, b *Books) { b.Messages = b.Messages[1:] }, "is not in the database",
			func(t *testing.T, l *Ledger) { require.Equal(t, 1, l.Lost) }},
		"a rejected record is missing": {func(_ *Journal, b *Books) {
			b.Rejected = b.Rejected[1:]
		}, "is not kept as rejected",
			func(t *testing.T, l *Ledger) { require.Equal(t, 1, l.Lost) }},
		"a status is missing": {func(_ *Journal, b *Books) { b.Statuses = b.Statuses[1:] }, "0 statuses", nil},
		"a status is there twice": {func(_ *Journal, b *Books) {
			b.Statuses = append(b.Statuses, b.Statuses[0])
		}, "2 statuses", nil},
		"a sound record is refused": {func(_ *Journal, b *Books) {
			b.Rejected = append(b.Rejected, Coordinates{9, 9})
		}, "rejected without reason", nil},
		"a record is refused twice": {func(_ *Journal, b *Books) {
			b.Rejected = append(b.Rejected, b.Rejected[0])
		}, "rejected without reason", nil},
		"a message nobody produced": {func(_ *Journal, b *Books) {
			b.Messages = append(b.Messages, "order-x")
		}, "was never produced", nil},
		"a record is not read": {func(_ *Journal, b *Books) { b.Unread = 1 }, "not read", nil},
		"a duplicate is taken twice": {func(j *Journal, b *Books) {
			b.Messages = append(b.Messages, b.Messages[0])
		}, "duplicates recognised: 29, should be 30", nil},
		"an order is booked twice": {func(_ *Journal, b *Books) { b.Revenue = append(b.Revenue, b.Revenue[0]) }, "doubled: 1",
			func(t *testing.T, l *Ledger) { require.Equal(t, 1, l.Doubled) }},
		"a booking is missing": {func(_ *Journal, b *Books) {
			b.Revenue = b.Revenue[1:]
		}, "revenue booked 0 times", nil},
		"a wrong amount is booked": {func(_ *Journal, b *Books) { b.Revenue[0].Cents++ }, "should be", nil},
		"revenue of nobody's order": {func(_ *Journal, b *Books) {
			b.Revenue[0].OrderID = "order-x"
		}, "revenue of an unknown order", nil},
		"a mail is missing": {func(_ *Journal, b *Books) { b.Mails = b.Mails[1:] }, "mail sent 0 times", nil},
		"a mail about nobody's": {func(_ *Journal, b *Books) {
			b.Mails = append(b.Mails, "order-x")
		}, "mail about an unknown order", nil},
		"a status is pending": {func(j *Journal, b *Books) {
			pending(statusOf(*j, *b, bookRevenue, ""))
		}, "not completed", nil},
		"a status is still claimed": {func(j *Journal, b *Books) {
			statusOf(*j, *b, bookRevenue, "").Claimed = true
		}, "still claimed", nil},
		"a status was discarded": {func(j *Journal, b *Books) {
			statusOf(*j, *b, bookRevenue, "").Outcome = models.OutcomeDiscarded
		}, "not completed", nil},
		"a sound order is poisoned": {func(j *Journal, b *Books) {
			s := statusOf(*j, *b, notifyCustomer, "")
			pending(s)
			s.Poisoned = true
		}, "not completed", nil},
		"a sound order was retried": {func(j *Journal, b *Books) {
			statusOf(*j, *b, notifyCustomer, "").ErrorCount = 1
		}, "failed 1 times without reason", nil},
		"a failure was not retried": {func(j *Journal, b *Books) {
			statusOf(*j, *b, notifyCustomer, once).ErrorCount = 0
		}, "retried: 11, should be 12", nil},
		"a hopeless one is no more": {func(j *Journal, b *Books) {
			statusOf(*j, *b, bookRevenue, always).Poisoned = false
		}, "not poisoned", nil},
		"a hopeless one had effects": {func(j *Journal, b *Books) {
			b.Mails = append(b.Mails, statusOf(*j, *b, notifyCustomer, always).MessageID)
		}, "mail sent 1 times", nil},
	} {
		t.Run(name, func(t *testing.T) {
			journal, books := perfect(300)
			broken.breaks(&journal, &books)
			ledger := Balance(journal, books, 0, time.Second)
			require.Equal(t, scratch.Unbalanced, status(ledger))
			require.Contains(t, strings.Join(ledger.Problems, "\n"), broken.says)
			if broken.check != nil {
				broken.check(t, ledger)
			}
		})
	}
}

func TestMailsSentAgainAreShownAndForgiven(t *testing.T) {
	journal, books := perfect(300)
	books.Mails = append(books.Mails, books.Mails[0], books.Mails[0])
	ledger := Balance(journal, books, 1, time.Second)
	require.Equal(t, 2, ledger.Reruns)
	require.Equal(t, scratch.Balanced, status(ledger))
}

func TestManyProblemsArePrintedShort(t *testing.T) {
	journal, books := perfect(300)
	books.Messages = nil
	ledger := Balance(journal, books, 0, time.Second)
	scratchtest.RequireProblemsShort(t, ledger.Problems, ledger.Print, "lost: 264")
}
