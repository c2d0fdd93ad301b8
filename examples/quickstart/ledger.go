package main

import (
	"fmt"
	"io"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
	"github.com/gorm-inbox/inbox/models"
)

// Ledger is the producer's journal and the service's books side by side. The
// doc comment of the program says what each figure means.
type Ledger struct {
	Produced, DuplicatesSent, Accepted, Duplicates, Rejected int
	Completed                                                map[string]int // by handler key
	Retried, Poisoned, Reruns, Lost, Doubled, Kills          int
	Took                                                     time.Duration

	scratch.Problems
}

// Balance compares. kills is how often the service was killed on the way.
func Balance(journal Journal, books Books, kills int, took time.Duration) *Ledger {
	l := &Ledger{
		Produced: journal.Records, DuplicatesSent: journal.Duplicates, Accepted: len(books.Messages),
		Rejected:  len(books.Rejected),
		Completed: map[string]int{}, Kills: kills, Took: took,
	}
	// Each record became one of three things. What is left over when the two
	// that leave a row are subtracted from the records read is the third.
	l.Duplicates = journal.Records - int(books.Unread) - l.Accepted - l.Rejected

	l.messages(journal, books)
	l.rejected(journal, books)
	l.statuses(journal, books)
	l.revenue(journal, books)
	l.mails(journal, books)

	l.expect("records that were not read, or whose offset was not committed", int(books.Unread), 0)
	l.expect("duplicates recognised", l.Duplicates, journal.Duplicates)
	l.expect("lost", l.Lost, 0)
	l.expect("doubled", l.Doubled, 0)
	return l
}

func (l *Ledger) expect(what string, got, want int) {
	if got != want {
		l.Problem("%s: %d, should be %d", what, got, want)
	}
}

// messages: each order is there once, and nothing else is.
func (l *Ledger) messages(journal Journal, books Books) {
	stored := map[string]bool{}
	for _, id := range books.Messages {
		if journal.Orders[id] == nil {
			l.Problem("message %q was never produced", id)
		}
		stored[id] = true
	}
	for id := range journal.Orders {
		if !stored[id] {
			l.Lost++
			l.Problem("order %s is not in the database", id)
		}
	}
}

// rejected: each malformed record is there once, and nothing else is.
func (l *Ledger) rejected(journal Journal, books Books) {
	times := map[Coordinates]int{}
	for _, c := range books.Rejected {
		times[c]++
	}
	for _, c := range journal.Malformed {
		if times[c] == 0 {
			l.Lost++
			l.Problem("malformed record %d/%d is not kept as rejected", c.Partition, c.Offset)
		}
		times[c]--
	}
	for c, n := range times {
		if n > 0 {
			l.Problem("record %d/%d is rejected without reason", c.Partition, c.Offset)
		}
	}
}

// statuses: each order has one for each handler, which is poisoned where the
// handler always fails, and completed everywhere else.
func (l *Ledger) statuses(journal Journal, books Books) {
	type slot struct{ message, key string }
	found := map[slot]int{}
	failing := 0 // first attempts that were to fail
	for _, s := range books.Statuses {
		found[slot{s.MessageID, s.HandlerKey}]++
		order := journal.Orders[s.MessageID]
		if order == nil {
			continue // its message is reported
		}
		completed := s.Completed && s.Outcome == models.OutcomeProcessed && !s.Poisoned
		if completed {
			l.Completed[s.HandlerKey]++
			if s.ErrorCount > 0 {
				l.Retried++
			}
		} else if s.Poisoned {
			l.Poisoned++
		}
		if s.Claimed {
			l.Problem("order %s, %s: still claimed although the service has stopped", s.MessageID, s.HandlerKey)
		}
		switch trouble := order.Trouble[s.HandlerKey]; {
		case trouble == always && !s.Poisoned:
			l.Problem("order %s, %s: always fails but is not poisoned", s.MessageID, s.HandlerKey)
		case trouble != always && !completed:
			l.Problem("order %s, %s: not completed", s.MessageID, s.HandlerKey)
		case trouble == once:
			failing++
		case trouble == "" && s.ErrorCount > 0:
			l.Problem("order %s, %s: failed %d times without reason", s.MessageID, s.HandlerKey, s.ErrorCount)
		}
	}
	for id := range journal.Orders {
		for _, key := range HandlerKeys() {
			if n := found[slot{id, key}]; n != 1 {
				l.Problem("order %s, %s: %d statuses", id, key, n)
			}
		}
	}
	// A killed first attempt counts as one (contract 5.9): its order is past
	// its trouble when it comes again.
	if l.Retried > failing || (l.Kills == 0 && l.Retried < failing) {
		l.Problem("retried: %d, should be %d", l.Retried, failing)
	}
}

// revenue: exactly one entry for each order whose booking is completed, of the
// right amount, and none for the others.
func (l *Ledger) revenue(journal Journal, books Books) {
	booked := map[string]int{}
	for _, entry := range books.Revenue {
		booked[entry.OrderID]++
		if booked[entry.OrderID] > 1 {
			l.Doubled++
		}
		order := journal.Orders[entry.OrderID]
		switch {
		case order == nil:
			l.Problem("revenue of an unknown order %q", entry.OrderID)
		case order.Cents != entry.Cents:
			l.Problem("order %s: booked %d cents, should be %d", order.OrderID, entry.Cents, order.Cents)
		}
	}
	l.effects("revenue booked", bookRevenue, books, booked)
}

// mails: at least one for each order whose notification is completed, and
// none for the others.
func (l *Ledger) mails(journal Journal, books Books) {
	sent := map[string]int{}
	for _, id := range books.Mails {
		sent[id]++
		if sent[id] > 1 {
			l.Reruns++
		}
		if journal.Orders[id] == nil {
			l.Problem("mail about an unknown order %q", id)
		}
	}
	l.effects("mail sent", notifyCustomer, books, sent)
}

// effects compares a handler's effects with its statuses.
func (l *Ledger) effects(what, key string, books Books, times map[string]int) {
	for _, s := range books.Statuses {
		if s.HandlerKey == key && s.Completed != (times[s.MessageID] > 0) {
			l.Problem("order %s, %s: completed is %t, %s %d times", s.MessageID, key, s.Completed, what, times[s.MessageID])
		}
	}
}

// Print writes the problems, if any, and the figures.
func (l *Ledger) Print(out io.Writer) {
	l.Problems.Print(out)
	figure := func(name string, value any) { fmt.Fprintf(out, "%s: %v\n", name, value) }
	figure("produced", l.Produced)
	figure("duplicates_sent", l.DuplicatesSent)
	figure("accepted", l.Accepted)
	figure("duplicates", l.Duplicates)
	figure("rejected", l.Rejected)
	for _, key := range HandlerKeys() {
		figure("completed_"+key, l.Completed[key])
	}
	figure("retried", l.Retried)
	figure("poisoned", l.Poisoned)
	figure("kills", l.Kills)
	figure("reruns", l.Reruns)
	figure("lost", l.Lost)
	figure("doubled", l.Doubled)
	figure("seconds", fmt.Sprintf("%.1f", l.Took.Seconds()))
}
