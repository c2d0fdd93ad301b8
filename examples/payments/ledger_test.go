package main

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/demotest"
)

// perfect returns the result of workers that did everything right.
func perfect(n int) (payments []Payment, r Result, seen Seen) {
	payments = MakePayments(n, rand.New(rand.NewPCG(1, 1)))
	seen.Acknowledged, seen.Unsure = map[string]int{}, map[string]int{}
	for id := 1; id <= accounts; id++ {
		r.Accounts = append(r.Accounts, Account{ID: id})
	}
	for _, p := range payments {
		r.Accounts[p.Account-1].Balance += p.Cents
		r.Entries = append(r.Entries, Entry{PaymentID: p.ID, Account: p.Account, Cents: p.Cents})
		seen.Acknowledged[p.ID] = 2
		r.Markers, r.Calls = append(r.Markers, p.ID), append(r.Calls, p.ID)
	}
	seen.Sent = 3 * n
	return payments, r, seen
}

// again applies a payment once more.
func again(r *Result, i int) {
	e := r.Entries[i]
	r.Entries, r.Calls = append(r.Entries, e), append(r.Calls, e.PaymentID)
	r.Accounts[e.Account-1].Balance += e.Cents
}

func TestPerfectResultBalances(t *testing.T) {
	payments, result, seen := perfect(500)
	seen.Killed = []Point{inHandler}
	ledger := Balance(payments, result, seen, false)
	require.Empty(t, ledger.Problems)
	var out bytes.Buffer
	ledger.Print(&out)
	require.Equal(t, "payments: 500\napplied: 500\nlost: 0\ndoubled: 0\nduplicates: 1000\nkills: 1\ncalls_again: 0\n",
		out.String())
}

func TestBrokenResultsAreDetected(t *testing.T) {
	for name, broken := range map[string]struct {
		breaks func(r *Result, seen *Seen)
		says   string
		counts []int // lost, doubled
	}{
		"a payment is not applied": {func(r *Result, _ *Seen) {
			r.Entries = r.Entries[1:]
		}, "lost: 1", []int{1, 0}},
		"a payment is applied twice": {func(r *Result, _ *Seen) { again(r, 0) }, "doubled: 1", []int{0, 1}},
		"an unknown payment is entered": {func(r *Result, _ *Seen) {
			r.Entries[0].PaymentID = "x"
		}, `entries of unknown "x"`, []int{1, 0}},
		"a wrong amount is entered": {func(r *Result, _ *Seen) {
			r.Entries[0].Cents++
		}, "cents entered for account", []int{0, 0}},
		"a wrong account is entered": {func(r *Result, _ *Seen) {
			r.Entries[0].Account++
		}, "cents entered for account", []int{0, 0}},
		"half a transaction": {func(r *Result, _ *Seen) {
			r.Accounts[3].Balance--
		}, "account 4: a balance of", []int{0, 0}},
		"an account is missing": {func(r *Result, _ *Seen) {
			r.Accounts = r.Accounts[1:]
		}, "accounts: 49, should be 50", []int{0, 0}},
		"a marker is missing": {func(r *Result, _ *Seen) {
			r.Markers = r.Markers[1:]
		}, "no markers", []int{0, 0}},
		"a payment is not acknowledged": {func(_ *Result, seen *Seen) {
			delete(seen.Acknowledged, "payment-000007")
		}, "no acknowledgements", []int{0, 0}},
		"an effect without a call": {func(r *Result, _ *Seen) { r.Calls = r.Calls[1:] }, "no calls", []int{0, 0}},
		"a call for no payment": {func(r *Result, _ *Seen) {
			r.Calls = append(r.Calls, "x")
		}, `calls of unknown "x"`, []int{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, redis := range []bool{false, true} {
				payments, result, seen := perfect(500)
				broken.breaks(&result, &seen)
				ledger := Balance(payments, result, seen, redis)
				require.Contains(t, strings.Join(ledger.Problems, "\n"), broken.says)
				require.Equal(t, broken.counts, demotest.Counts(ledger, "lost", "doubled"))
			}
		})
	}
}

func TestRedisMayRepeatOneEffectPerKill(t *testing.T) {
	payments, result, seen := perfect(100)
	again(&result, 0)
	seen.Unsure[payments[0].ID] = 1
	require.False(t, Balance(payments, result, seen, false).Balanced())

	ledger := Balance(payments, result, seen, true)
	require.True(t, ledger.Balanced())
	require.Equal(t, 1, ledger.Count("reruns"))

	again(&result, 0) // the second one has no kill
	ledger = Balance(payments, result, seen, true)
	require.False(t, ledger.Balanced())
	require.Equal(t, []int{1, 1}, demotest.Counts(ledger, "reruns", "doubled"))
}

func TestRepeatedCallsAreCountedAndAllowed(t *testing.T) {
	payments, result, seen := perfect(100)
	result.Calls = append(result.Calls, result.Calls[0], result.Calls[0])
	ledger := Balance(payments, result, seen, false)
	require.Equal(t, 2, ledger.Count("calls_again"))
	require.True(t, ledger.Balanced())
}
