package main

import (
	"context"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/models"
)

// Result is everything the service left behind, read when it has stopped. Nothing in it comes from a
// counter of the service.
type Result struct {
	demo.Stored
	Revenue []RevenueEntry
	Mails   []string
	Unread  int64 // records whose offsets are not committed
}

// ReadResult reads the database and the mail file.
func ReadResult(ctx context.Context, db *gorm.DB, mailFile string) (r Result, err error) {
	if r.Stored, err = demo.ReadStored(ctx, db); err != nil {
		return r, err
	}
	if err := demo.Read(ctx, db, &r.Revenue); err != nil {
		return r, err
	}
	r.Mails, err = demo.ReadLines(mailFile)
	return r, err
}

// Balance compares the producer's journal with the result. The program's doc comment says what each figure
// means. kills is how often the service was killed on the way.
func Balance(journal Journal, r Result, kills int) *demo.Ledger {
	l := new(demo.Ledger)
	var orders []demo.Message
	for id := range journal.Orders {
		orders = append(orders, demo.Message{ID: id})
	}
	lostOrders, _ := demo.Same(l, "messages", orders, r.Messages)
	lostRecords, _ := demo.Same(l, "rejected rows", journal.Malformed, r.Rejected)
	// Each record became a message, a rejected row, or nothing because it is a duplicate.
	duplicates := journal.Records - int(r.Unread) - len(r.Messages) - len(r.Rejected)
	l.Expect("records that were not read, or whose offset was not committed", int(r.Unread), 0)
	l.Expect("duplicates recognised", duplicates, journal.Duplicates)

	l.Figure("produced", journal.Records)
	l.Figure("duplicates_sent", journal.Duplicates)
	l.Figure("accepted", len(r.Messages))
	l.Figure("duplicates", duplicates)
	l.Figure("rejected", len(r.Rejected))
	completed := statuses(l, journal, r, kills)
	doubled := revenue(l, journal, r, completed[bookRevenue])
	l.Figure("kills", kills)
	l.Figure("reruns", demo.AtLeastOnce(l, "mails", completed[notifyCustomer], r.Mails))
	l.Zero("lost", len(lostOrders)+len(lostRecords))
	l.Zero("doubled", doubled)
	return l
}

// statuses requires a status of each handler for each order: poisoned where the handler always fails, completed
// everywhere else. It adds the figures of the statuses, and returns the messages that each handler has completed.
func statuses(l *demo.Ledger, journal Journal, r Result, kills int) (completed map[string]map[string]bool) {
	var expected []demo.Status
	failing := 0 // orders whose first attempt was to fail
	for id, order := range journal.Orders {
		for _, key := range handlerKeys {
			s := demo.Status{MessageID: id, HandlerKey: key, Completed: true, Outcome: models.OutcomeProcessed}
			switch order.Faults[key] {
			case always:
				s = demo.Status{MessageID: id, HandlerKey: key, Poisoned: true}
			case once:
				failing++
			}
			expected = append(expected, s)
		}
	}
	demo.Same(l, "statuses", expected, r.Statuses)

	completed = map[string]map[string]bool{bookRevenue: {}, notifyCustomer: {}}
	retried, poisoned := 0, 0
	for _, s := range r.Statuses {
		order := journal.Orders[s.MessageID]
		if order == nil || completed[s.HandlerKey] == nil {
			continue // it is reported as unknown
		}
		switch {
		case s.Poisoned:
			poisoned++
		case s.Completed:
			completed[s.HandlerKey][s.MessageID] = true
			if s.ErrorCount > 0 {
				retried++
			}
		}
		if s.ErrorCount > 0 && order.Faults[s.HandlerKey] == "" {
			l.Problem("%s: failed %d times without reason", s, s.ErrorCount)
		}
	}
	// A killed first attempt counts as one (contract 5.9): the second does not fail any more.
	if retried > failing || (kills == 0 && retried < failing) {
		l.Problem("retried: %d, should be %d", retried, failing)
	}
	for _, key := range handlerKeys {
		l.Figure("completed_"+key, len(completed[key]))
	}
	l.Figure("retried", retried)
	l.Figure("poisoned", poisoned)
	return completed
}

// revenue requires exactly one entry of the right amount for each order whose booking is completed.
func revenue(l *demo.Ledger, journal Journal, r Result, completed map[string]bool) (doubled int) {
	booked := make([]string, len(r.Revenue))
	for i, entry := range r.Revenue {
		booked[i] = entry.OrderID
		if order := journal.Orders[entry.OrderID]; order != nil && order.Cents != entry.Cents {
			l.Problem("%s: booked %d cents, should be %d", order.OrderID, entry.Cents, order.Cents)
		}
	}
	_, doubled = demo.Once(l, "revenue entries", completed, booked)
	return doubled
}
