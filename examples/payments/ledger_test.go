package main

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
	"github.com/gorm-inbox/inbox/examples/internal/scratchtest"
)

// perfect makes the books of workers that did everything right.
func perfect(n int) (payments []Payment, b Books, seen Deliveries) {
	payments = MakePayments(n, rand.New(rand.NewPCG(1, 1)))
	b.Remembered, seen.Acknowledged, seen.Unsure = map[string]bool{}, map[string]int{}, map[string]int{}
	for id := 1; id <= accounts; id++ {
		b.Accounts = append(b.Accounts, Account{ID: id})
	}
	for _, p := range payments {
		b.Accounts[p.Account-1].Balance += p.Cents
		b.Entries = append(b.Entries, Entry{PaymentID: p.ID, Account: p.Account, Cents: p.Cents})
		b.Remembered[p.ID], seen.Acknowledged[p.ID] = true, 2
		b.Calls = append(b.Calls, p.ID)
	}
	seen.Sent = 3 * n
	return payments, b, seen
}

// again applies a payment once more.
func again(b *Books, i int) {
	e := b.Entries[i]
	b.Entries, b.Calls = append(b.Entries, e), append(b.Calls, e.PaymentID)
	b.Accounts[e.Account-1].Balance += e.Cents
}

func status(ledger *Ledger) int { return command.Verdict(ledger, nil, io.Discard, io.Discard) }

func TestPerfectBooksBalance(t *testing.T) {
	payments, books, seen := perfect(500)
	seen.Killed = []Point{inBody}
	ledger := Balance(payments, books, seen, false)
	require.Empty(t, ledger.Problems)
	require.Equal(t, scratch.Balanced, status(ledger))
	var out bytes.Buffer
	require.Equal(t, scratch.Unbalanced, command.Verdict(ledger, errors.New("worker-1 stopped with exit status 1"), &out,
		io.Discard))
	require.Equal(t, "payments: 500\napplied: 500\nlost: 0\ndoubled: 0\nduplicates: 1000\nkills: 1\ncalls_again: 0\n",
		out.String())
}

func TestBrokenBooksAreNoticed(t *testing.T) {
	for name, broken := range map[string]struct {
		breaks func(b *Books, seen *Deliveries)
		says   string
		counts [2]int // lost, doubled
	}{
		"a payment is not applied": {func(b *Books, _ *Deliveries) {
			b.Entries = b.Entries[1:]
		}, "lost: 1", [2]int{1, 0}},
		"a payment is applied twice": {func(b *Books, _ *Deliveries) { again(b, 0) }, "doubled: 1", [2]int{0, 1}},
		"a payment nobody made": {func(b *Books, _ *Deliveries) {
			b.Entries[0].PaymentID = "x"
		}, `a payment "x" that nobody made`, [2]int{1, 0}},
		"a wrong amount is entered": {func(b *Books, _ *Deliveries) {
			b.Entries[0].Cents++
		}, "cents entered for account", [2]int{}},
		"a wrong account is entered": {func(b *Books, _ *Deliveries) {
			b.Entries[0].Account++
		}, "cents entered for account", [2]int{}},
		"half a transaction": {func(b *Books, _ *Deliveries) {
			b.Accounts[3].Balance--
		}, "account 4: a balance of", [2]int{}},
		"an account is missing": {func(b *Books, _ *Deliveries) {
			b.Accounts = b.Accounts[1:]
		}, "accounts: 49, should be 50", [2]int{}},
		"a marker is missing": {func(b *Books, _ *Deliveries) {
			delete(b.Remembered, "payment-000007")
		}, "does not remember it", [2]int{}},
		"a payment is not acknowledged": {func(_ *Books, seen *Deliveries) {
			delete(seen.Acknowledged, "payment-000007")
		}, "not acknowledged", [2]int{}},
		"an effect without a call": {func(b *Books, _ *Deliveries) { b.Calls = b.Calls[1:] }, "never called", [2]int{}},
		"a call for nobody's payment": {func(b *Books, _ *Deliveries) {
			b.Calls = append(b.Calls, "x")
		}, `a call for a payment "x"`, [2]int{}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, redis := range []bool{false, true} {
				payments, books, seen := perfect(500)
				broken.breaks(&books, &seen)
				ledger := Balance(payments, books, seen, redis)
				require.Equal(t, scratch.Unbalanced, status(ledger))
				require.Contains(t, strings.Join(ledger.Problems, "\n"), broken.says)
				require.Equal(t, broken.counts, [2]int{ledger.Lost, ledger.Doubled})
			}
		})
	}
}

func TestEffectsAgainAreForgivenToRedisAloneAndOncePerKill(t *testing.T) {
	payments, books, seen := perfect(100)
	again(&books, 0)
	seen.Unsure[payments[0].ID] = 1
	require.Equal(t, scratch.Unbalanced, status(Balance(payments, books, seen, false)))

	ledger := Balance(payments, books, seen, true)
	require.Equal(t, scratch.Balanced, status(ledger))
	require.Equal(t, 1, ledger.Reruns)
	var out bytes.Buffer
	ledger.Print(&out)
	require.Contains(t, out.String(), "Redis is effectively once")
	require.Contains(t, out.String(), "\nreruns: 1\n")

	again(&books, 0) // the second one has no kill
	ledger = Balance(payments, books, seen, true)
	require.Equal(t, scratch.Unbalanced, status(ledger))
	require.Equal(t, [2]int{1, 1}, [2]int{ledger.Reruns, ledger.Doubled})
}

func TestRepeatedCallsAreShownAndForgiven(t *testing.T) {
	payments, books, seen := perfect(100)
	books.Calls = append(books.Calls, books.Calls[0], books.Calls[0])
	ledger := Balance(payments, books, seen, false)
	require.Equal(t, 2, ledger.CallsAgain)
	require.Equal(t, scratch.Balanced, status(ledger))
}

func TestManyProblemsArePrintedShort(t *testing.T) {
	payments, books, seen := perfect(100)
	books.Remembered = nil
	ledger := Balance(payments, books, seen, false)
	scratchtest.RequireProblemsShort(t, ledger.Problems, ledger.Print, "lost: 0")
}
