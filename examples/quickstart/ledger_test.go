package main

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/examples/internal/demotest"
	"github.com/gorm-inbox/inbox/models"
)

// perfect returns the result of a service that did everything right.
func perfect(n int) (Journal, Result) {
	journal := Journal{Orders: map[string]*OrderPlaced{}}
	var result Result
	for i, e := range MakeEvents(n, rand.New(rand.NewPCG(1, 1))) {
		journal.Records++
		switch {
		case e.Order == nil:
			at := demo.Record{Partition: int32(i % demo.Partitions), Offset: int64(i)}
			journal.Malformed, result.Rejected = append(journal.Malformed, at), append(result.Rejected, at)
		case e.Duplicate:
			journal.Duplicates++
		default:
			journal.Orders[e.Order.OrderID] = e.Order
			result.Messages = append(result.Messages, demo.Message{ID: e.Order.OrderID})
			for _, key := range handlerKeys {
				s := demo.Status{MessageID: e.Order.OrderID, HandlerKey: key, Completed: true, Outcome: models.OutcomeProcessed}
				switch e.Order.Faults[key] {
				case once:
					s.ErrorCount = 1
				case always:
					s = demo.Status{MessageID: s.MessageID, HandlerKey: key, Poisoned: true, ErrorCount: 3}
				}
				result.Statuses = append(result.Statuses, s)
				switch {
				case !s.Completed:
				case key == bookRevenue:
					result.Revenue = append(result.Revenue, RevenueEntry{OrderID: e.Order.OrderID, Cents: e.Order.Cents})
				default:
					result.Mails = append(result.Mails, e.Order.OrderID)
				}
			}
		}
	}
	return journal, result
}

func TestPerfectResultBalances(t *testing.T) {
	journal, result := perfect(300)
	ledger := Balance(journal, result, 0)
	require.Empty(t, ledger.Problems)
	require.Equal(t, []int{264, 30, 12, 3}, demotest.Counts(ledger, "accepted", "duplicates", "retried", "poisoned"))
}

// statusOf finds the status with a fault of the given kind.
func statusOf(journal Journal, result Result, key, fault string) *demo.Status {
	for i := range result.Statuses {
		s := &result.Statuses[i]
		if s.HandlerKey == key && journal.Orders[s.MessageID].Faults[key] == fault {
			return s
		}
	}
	panic("no such order")
}

func TestBrokenResultsAreDetected(t *testing.T) {
	pending := func(s *demo.Status) { s.Completed, s.Outcome = false, "" }
	for name, broken := range map[string]struct {
		breaks func(j Journal, r *Result)
		says   string
		counts []int // lost, doubled
	}{
		"a message is missing": {func(_ Journal, r *Result) {
			r.Messages = r.Messages[1:]
		}, ": messages: 0", []int{1, 0}},
		"a rejected record is missing": {func(_ Journal, r *Result) {
			r.Rejected = r.Rejected[1:]
		}, ": rejected rows: 0", []int{1, 0}},
		"a status is missing": {func(_ Journal, r *Result) {
			r.Statuses = r.Statuses[1:]
		}, ": statuses: 0", []int{0, 0}},
		"a status is there twice": {func(_ Journal, r *Result) {
			r.Statuses = append(r.Statuses, r.Statuses[0])
		}, ": statuses: 2", []int{0, 0}},
		"a valid record is rejected": {func(_ Journal, r *Result) {
			r.Rejected = append(r.Rejected, demo.Record{Partition: 9, Offset: 9})
		}, `rejected rows of unknown "record 9/9"`, []int{0, 0}},
		"a record is rejected twice": {func(_ Journal, r *Result) {
			r.Rejected = append(r.Rejected, r.Rejected[0])
		}, ": rejected rows: 2", []int{0, 0}},
		"a message was never produced": {func(_ Journal, r *Result) {
			r.Messages = append(r.Messages, demo.Message{ID: "order-x"})
		}, `messages of unknown "order-x"`, []int{0, 0}},
		"a record is not read": {func(_ Journal, r *Result) { r.Unread = 1 }, "not read", []int{0, 0}},
		"a duplicate is accepted": {func(_ Journal, r *Result) {
			r.Messages = append(r.Messages, r.Messages[0])
		}, "duplicates recognised: 29, should be 30", []int{0, 0}},
		"an order is booked twice": {func(_ Journal, r *Result) {
			r.Revenue = append(r.Revenue, r.Revenue[0])
		}, "doubled: 1", []int{0, 1}},
		"a booking is missing": {func(_ Journal, r *Result) {
			r.Revenue = r.Revenue[1:]
		}, ": revenue entries: 0", []int{0, 0}},
		"a wrong amount is booked": {func(_ Journal, r *Result) { r.Revenue[0].Cents++ }, "should be", []int{0, 0}},
		"an unknown order is booked": {func(_ Journal, r *Result) {
			r.Revenue[0].OrderID = "order-x"
		}, `revenue entries of unknown "order-x"`, []int{0, 0}},
		"a mail is missing": {func(_ Journal, r *Result) { r.Mails = r.Mails[1:] }, ": no mails", []int{0, 0}},
		"a mail about an unknown order": {func(_ Journal, r *Result) {
			r.Mails = append(r.Mails, "order-x")
		}, `mails of unknown "order-x"`, []int{0, 0}},
		"a status is pending": {func(j Journal, r *Result) {
			pending(statusOf(j, *r, bookRevenue, ""))
		}, ": pending", []int{0, 0}},
		"a status is still claimed": {func(j Journal, r *Result) {
			statusOf(j, *r, bookRevenue, "").Claimed = true
		}, "still claimed", []int{0, 0}},
		"a status was discarded": {func(j Journal, r *Result) {
			statusOf(j, *r, bookRevenue, "").Outcome = models.OutcomeDiscarded
		}, ": discarded", []int{0, 0}},
		"an order without faults is poisoned": {func(j Journal, r *Result) {
			s := statusOf(j, *r, notifyCustomer, "")
			pending(s)
			s.Poisoned = true
		}, ": poisoned", []int{0, 0}},
		"an order without faults was retried": {func(j Journal, r *Result) {
			statusOf(j, *r, notifyCustomer, "").ErrorCount = 1
		}, "failed 1 times without reason", []int{0, 0}},
		"a failure was not retried": {func(j Journal, r *Result) {
			statusOf(j, *r, notifyCustomer, once).ErrorCount = 0
		}, "retried: 11, should be 12", []int{0, 0}},
		"what always fails is not poisoned": {func(j Journal, r *Result) {
			statusOf(j, *r, bookRevenue, always).Poisoned = false
		}, ": poisoned: statuses: 0", []int{0, 0}},
		"what always fails had effects": {func(j Journal, r *Result) {
			r.Mails = append(r.Mails, statusOf(j, *r, notifyCustomer, always).MessageID)
		}, "mails of unknown", []int{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			journal, result := perfect(300)
			broken.breaks(journal, &result)
			ledger := Balance(journal, result, 0)
			require.Contains(t, strings.Join(ledger.Problems, "\n"), broken.says)
			require.Equal(t, broken.counts, demotest.Counts(ledger, "lost", "doubled"))
		})
	}
}

func TestRepeatedMailsAreCountedAndAllowed(t *testing.T) {
	journal, result := perfect(300)
	result.Mails = append(result.Mails, result.Mails[0], result.Mails[0])
	ledger := Balance(journal, result, 1)
	require.Equal(t, 2, ledger.Count("reruns"))
	require.True(t, ledger.Balanced())
}
