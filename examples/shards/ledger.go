package main

import (
	"context"
	"fmt"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/models"
)

// Result is everything that is left when all has ended. Nothing in it comes from a counter.
type Result struct {
	Shards map[string]*Shard
	Calls  []string // a deposit's ID for each call of the handler
	Unread int64
}

// Shard is what one database holds.
type Shard struct {
	demo.Stored
	Accounts []Account
	Entries  []Entry
}

// Processed counts the deposits that the shard has booked itself.
func (s *Shard) Processed() (n int) {
	for _, status := range s.Statuses {
		if status.Processed() {
			n++
		}
	}
	return n
}

// ReadResult reads the databases, the broker and the file of the handler's calls.
func (c *Cluster) ReadResult(ctx context.Context) (r Result, err error) {
	r.Shards = map[string]*Shard{}
	for _, shard := range c.table.Shards() {
		s, db := &Shard{}, c.databases[shard].DB
		if s.Stored, err = demo.ReadStored(ctx, db); err != nil {
			return r, err
		}
		if err := demo.Read(ctx, db, &s.Accounts, &s.Entries); err != nil {
			return r, err
		}
		r.Shards[shard] = s
	}
	if r.Shards[added] == nil {
		r.Shards[added] = &Shard{} // the run has failed before
	}
	if r.Unread, err = c.unread(ctx, c.table.Shards()...); err != nil {
		return r, err
	}
	r.Calls, err = demo.ReadLines(c.env.File("calls.log"))
	return r, err
}

// placed is an account in the database of a shard.
type placed struct {
	Account
	shard string
}

// String says where the account is and what it holds.
func (p placed) String() string {
	return fmt.Sprintf("%s in %s: %d cents of %d deposits", p.ID, p.shard, p.Cents, p.Deposits)
}

// Balance compares what was sent with what the databases of all shards hold. The program's doc comment says what each
// figure means.
func Balance(journal map[string]Sent, table Table, r Result) *demo.Ledger {
	l := new(demo.Ledger)
	var booked, completed []string
	var accounts []placed
	outOfOrder := 0
	for name, shard := range r.Shards {
		for _, entry := range shard.Entries {
			booked = append(booked, entry.DepositID)
			sent, known := journal[entry.DepositID]
			if known && entry.Position != sent.Number {
				outOfOrder++
				l.Problem("%s: number %d of %s is booked as number %d in %s", sent.ID, sent.Number, sent.Account,
					entry.Position, name)
			}
			if known && table[sent.Partition] != name {
				l.Problem("%s is in %s, and its partition %d is not", sent.ID, name, sent.Partition)
			}
		}
		for _, account := range shard.Accounts {
			accounts = append(accounts, placed{account, name})
		}
		for _, status := range shard.Statuses {
			switch {
			case status.Processed() && !status.Poisoned && !status.Claimed:
				completed = append(completed, status.MessageID)
			case name != added || status.Outcome != models.OutcomeDiscarded:
				l.Problem("%s in %s", status, name)
			}
		}
		l.Expect("rejected records in "+name, len(shard.Rejected), 0)
	}
	lost, doubled := demo.Once(l, "bookings", journal, booked)
	demo.Once(l, "completed statuses", journal, completed)
	demo.Same(l, "accounts", expectedAccounts(journal, table), accounts)
	l.Expect("records that are unread", int(r.Unread), 0)

	l.Figure("expected", len(journal))
	l.Figure("effects", len(booked))
	l.Zero("lost", len(lost))
	l.Zero("doubled", doubled)
	l.Zero("out_of_order", outOfOrder)
	return l
}

// expectedAccounts returns what each account should hold, in the database of its partition's owner.
func expectedAccounts(journal map[string]Sent, table Table) (all []placed) {
	sums := map[string]*placed{}
	for _, sent := range journal {
		p := sums[sent.Account]
		if p == nil {
			p = &placed{Account{ID: sent.Account}, table[sent.Partition]}
			sums[sent.Account] = p
		}
		p.Deposits++
		p.Cents += sent.Cents
	}
	for _, p := range sums {
		all = append(all, *p)
	}
	return all
}
