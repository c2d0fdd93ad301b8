package main

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
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
	if err := db.WithContext(ctx).Find(&r.Revenue).Error; err != nil {
		return r, fmt.Errorf("read revenue: %w", err)
	}
	r.Mails, err = demo.ReadLines(mailFile)
	return r, err
}

// balance compares the producer's journal with the result.
type balance struct {
	*demo.Ledger
	Journal
	Result
	kills int
}

// Balance makes the ledger. The program's doc comment says what each figure means. kills is how often
// the service was killed on the way.
func Balance(journal Journal, result Result, kills int) *demo.Ledger {
	l := balance{new(demo.Ledger), journal, result, kills}
	lost, _ := demo.Once(l.Ledger, "messages", l.Orders, l.IDs())
	lost += l.rejected()
	doubled := l.revenue()
	reruns := demo.AtLeastOnce(l.Ledger, "mails", l.notified(), l.Mails)
	// Each record became a message, a rejected row, or nothing because it is a duplicate.
	duplicates := l.Records - int(l.Unread) - len(l.Messages) - len(l.Rejected)
	l.Expect("records that were not read, or whose offset was not committed", int(l.Unread), 0)
	l.Expect("duplicates recognised", duplicates, l.Duplicates)

	l.Figure("produced", l.Records)
	l.Figure("duplicates_sent", l.Duplicates)
	l.Figure("accepted", len(l.Messages))
	l.Figure("duplicates", duplicates)
	l.Figure("rejected", len(l.Rejected))
	l.statuses()
	l.Figure("kills", kills)
	l.Figure("reruns", reruns)
	l.Zero("lost", lost)
	l.Zero("doubled", doubled)
	return l.Ledger
}

// rejected requires that each malformed record is stored once as rejected, and no other record is.
func (l balance) rejected() (lost int) {
	name := func(r demo.Record) string { return fmt.Sprintf("record %d/%d", r.Partition, r.Offset) }
	malformed, found := map[string]bool{}, []string{}
	for _, r := range l.Malformed {
		malformed[name(r)] = true
	}
	for _, r := range l.Rejected {
		found = append(found, name(r))
	}
	lost, _ = demo.Once(l.Ledger, "rejected rows", malformed, found)
	return lost
}

// statuses requires a status of each handler for each order: poisoned where the handler always fails,
// completed everywhere else. It adds the figures of the statuses.
func (l balance) statuses() {
	expected, found := map[string]bool{}, []string{}
	name := func(id, key string) string { return id + ", " + key }
	for id := range l.Orders {
		for _, key := range HandlerKeys() {
			expected[name(id, key)] = true
		}
	}
	completed, retried, poisoned, failing := map[string]int{}, 0, 0, 0
	for _, s := range l.Statuses {
		name := name(s.MessageID, s.HandlerKey)
		found = append(found, name)
		if l.Orders[s.MessageID] == nil {
			continue // its message is reported
		}
		switch {
		case s.Processed() && !s.Poisoned:
			completed[s.HandlerKey]++
			if s.ErrorCount > 0 {
				retried++
			}
		case s.Poisoned:
			poisoned++
		}
		if s.Claimed {
			l.Problem("%s: still claimed although the service has stopped", name)
		}
		switch fault := l.Orders[s.MessageID].Faults[s.HandlerKey]; {
		case fault == always && !s.Poisoned:
			l.Problem("%s: always fails but is not poisoned", name)
		case fault != always && (!s.Processed() || s.Poisoned):
			l.Problem("%s: not completed", name)
		case fault == once:
			failing++ // its first attempt was to fail
		case fault == "" && s.ErrorCount > 0:
			l.Problem("%s: failed %d times without reason", name, s.ErrorCount)
		}
	}
	demo.Once(l.Ledger, "statuses", expected, found)
	// A killed first attempt counts as one (contract 5.9): the second does not fail any more.
	if retried > failing || (l.kills == 0 && retried < failing) {
		l.Problem("retried: %d, should be %d", retried, failing)
	}
	for _, key := range HandlerKeys() {
		l.Figure("completed_"+key, completed[key])
	}
	l.Figure("retried", retried)
	l.Figure("poisoned", poisoned)
}

// revenue requires exactly one entry of the right amount for each order whose booking is completed.
func (l balance) revenue() (doubled int) {
	var booked []string
	for _, entry := range l.Revenue {
		booked = append(booked, entry.OrderID)
		if order := l.Orders[entry.OrderID]; order != nil && order.Cents != entry.Cents {
			l.Problem("%s: booked %d cents, should be %d", order.OrderID, entry.Cents, order.Cents)
		}
	}
	_, doubled = demo.Once(l.Ledger, "revenue entries", l.completed(bookRevenue), booked)
	return doubled
}

// notified are the orders whose customers were sent a mail, according to the inbox.
func (l balance) notified() map[string]bool { return l.completed(notifyCustomer) }

// completed are the messages that a handler has completed.
func (l balance) completed(key string) map[string]bool {
	ids := map[string]bool{}
	for _, s := range l.Statuses {
		if s.HandlerKey == key && s.Completed {
			ids[s.MessageID] = true
		}
	}
	return ids
}
