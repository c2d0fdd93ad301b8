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

// perfect returns deposits that were sent, and the databases of shards that did everything right.
func perfect() (map[string]Sent, Table, Result) {
	journal, table := map[string]Sent{}, firstTable()
	r := Result{Shards: map[string]*Shard{added: {}}}
	for _, shard := range table.Shards() {
		r.Shards[shard] = &Shard{}
	}
	deposits := Deposits{Accounts: 50, Random: rand.New(rand.NewPCG(1, 1))}
	for _, d := range deposits.Next(300) {
		sent := Sent{Deposit: d, Partition: len(d.Account) % len(table)}
		journal[d.ID] = sent
		shard := r.Shards[table[sent.Partition]]
		shard.Entries = append(shard.Entries, Entry{DepositID: d.ID, Account: d.Account, Position: d.Number})
		shard.Statuses = append(shard.Statuses, demo.Status{MessageID: d.ID, HandlerKey: bookDeposit, Completed: true,
			Outcome: models.OutcomeProcessed})
	}
	for _, p := range expectedAccounts(journal, table) {
		r.Shards[p.shard].Accounts = append(r.Shards[p.shard].Accounts, p.Account)
	}
	return journal, table, r
}

// anyOf returns a shard that has booked something.
func anyOf(r Result) *Shard {
	for _, name := range firstTable().Shards() {
		if len(r.Shards[name].Entries) > 0 {
			return r.Shards[name]
		}
	}
	panic("none")
}

func TestPerfectResultBalances(t *testing.T) {
	journal, table, r := perfect()
	r.Shards[added].Statuses = append(r.Shards[added].Statuses, demo.Status{MessageID: "deposit-000001",
		HandlerKey: bookDeposit, Completed: true, Outcome: models.OutcomeDiscarded}) // what it has learned
	ledger := Balance(journal, table, r)
	require.Empty(t, ledger.Problems)
	require.Equal(t, []int{300, 300, 0, 0, 0},
		demotest.Counts(ledger, "expected", "effects", "lost", "doubled", "out_of_order"))
}

func TestBrokenResultsAreDetected(t *testing.T) {
	for name, broken := range map[string]struct {
		breaks func(r *Result)
		says   string
		counts []int // lost, doubled, out of order
	}{
		"a deposit is not booked": {func(r *Result) { anyOf(*r).Entries = anyOf(*r).Entries[1:] }, "lost: 1", []int{1, 0, 0}},
		"a deposit is booked in two shards": {func(r *Result) {
			r.Shards[added].Entries = append(r.Shards[added].Entries, anyOf(*r).Entries[0])
		}, "doubled: 1", []int{0, 1, 0}},
		"a deposit stayed with the former owner": {func(r *Result) {
			r.Shards[added].Entries, anyOf(*r).Entries = anyOf(*r).Entries[:1], anyOf(*r).Entries[1:]
		}, "is in " + added, []int{0, 0, 0}},
		"a deposit is booked too early": {func(r *Result) {
			anyOf(*r).Entries[0].Position++
		}, "is booked as number", []int{0, 0, 1}},
		"an account is in two shards": {func(r *Result) {
			r.Shards[added].Accounts = append(r.Shards[added].Accounts, anyOf(*r).Accounts[0])
		}, "accounts of unknown", []int{0, 0, 0}},
		"an account has too much": {func(r *Result) { anyOf(*r).Accounts[0].Cents++ }, "accounts: 0", []int{0, 0, 0}},
		"a status is pending": {func(r *Result) {
			anyOf(*r).Statuses[0].Completed = false
		}, "pending in shard", []int{0, 0, 0}},
		"a status was discarded": {func(r *Result) {
			anyOf(*r).Statuses[0].Outcome = models.OutcomeDiscarded
		}, "discarded in shard", []int{0, 0, 0}},
		"a record is rejected": {func(r *Result) {
			r.Shards[added].Rejected = []demo.Record{{}}
		}, "rejected records in " + added, []int{0, 0, 0}},
		"a record is unread": {func(r *Result) { r.Unread = 1 }, "unread: 1", []int{0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			journal, table, r := perfect()
			broken.breaks(&r)
			ledger := Balance(journal, table, r)
			require.Contains(t, strings.Join(ledger.Problems, "\n"), broken.says)
			require.Equal(t, broken.counts, demotest.Counts(ledger, "lost", "doubled", "out_of_order"))
		})
	}
}
