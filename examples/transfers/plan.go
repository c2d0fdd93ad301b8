package main

import (
	"fmt"
	"math/rand/v2"
)

// One transfer in so many fails its first attempts, and this often at most.
const (
	oneFailsIn   = 50
	mostFailures = 3
)

// mostCents is the largest amount of a transfer.
const mostCents = 10_000

// OpeningBalance is what each account has at first: nine tenths of what its transfers are likely to
// add up to, so that the last ones are refused unless the amount is small enough for what is left. Which
// ones depends on the order in which the transfers are booked.
func OpeningBalance(transfers, accounts int) int64 {
	return int64(transfers) * mostCents / 2 * 9 / 10 / int64(accounts)
}

// MakeTransfers makes n transfers between accounts in the order in which they are to be accepted.
func MakeTransfers(n, accounts int, random *rand.Rand) []Transfer {
	transfers := make([]Transfer, n)
	numbers := make([]int, accounts+1)
	for i := range transfers {
		from := 1 + random.IntN(accounts)
		to := 1 + random.IntN(accounts-1)
		if to >= from {
			to++
		}
		numbers[from]++
		transfers[i] = Transfer{ID: fmt.Sprintf("transfer-%06d", i+1), From: from, To: to, Cents: 1 +
			random.Int64N(mostCents), Number: numbers[from]}
		if random.IntN(oneFailsIn) == 0 {
			transfers[i].Failures = 1 + random.IntN(mostFailures)
		}
	}
	return transfers
}

// Replay is what the accounts should have after transfers that are booked one by one in the order of
// their acceptance.
type Replay struct {
	Accounts map[int]Account
	Balances map[int]int64
	Refused  map[string]bool // by transfer ID
}

// NewReplay books transfers between accounts 1 to n with the opening balance.
func NewReplay(transfers []Transfer, n int, opening int64) *Replay {
	r := &Replay{Accounts: map[int]Account{}, Balances: map[int]int64{}, Refused: map[string]bool{}}
	for id := 1; id <= n; id++ {
		r.Accounts[id] = Account{ID: id, Available: opening}
		r.Balances[id] = opening
	}
	for _, t := range transfers {
		payer := r.Accounts[t.From]
		payer.Transfers++
		if payer.Available < t.Cents {
			r.Refused[t.ID] = true
		} else {
			payer.Available -= t.Cents
			r.Balances[t.From] -= t.Cents
			r.Balances[t.To] += t.Cents
		}
		r.Accounts[t.From] = payer
	}
	return r
}
