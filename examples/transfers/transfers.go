package main

import (
	"fmt"
	"math/rand/v2"
)

// Of the transfers, one in so many fails its first attempts, and these many
// times at most.
const (
	oneFailsIn   = 50
	mostFailures = 3
)

// mostCents is the largest amount of a transfer.
const mostCents = 10_000

// OpeningBalance is what each account has at first: nine tenths of what it
// is likely to be asked for, so that its last transfers are refused, unless
// the amount is small enough for what is left. Which ones depends on the
// order in which the transfers are booked.
func OpeningBalance(transfers, accounts int) int64 {
	return int64(transfers) * mostCents / 2 * 9 / 10 / int64(accounts)
}

// MakeTransfers makes n transfers between accounts in the order in which they
// are to be accepted.
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
